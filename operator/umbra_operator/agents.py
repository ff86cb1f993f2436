"""What the agents of a pod say on ``/status``, reduced to what decisions use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from umbra_operator.readings import EngineReading, StoreReading, engine_reading, store_reading

SERVING = "serving"
"""State of an engine agent whose engine takes requests."""


@dataclass(frozen=True, slots=True)
class EngineAgent:
    """The engine container's agent."""

    revision: str | None
    """Revision of the running engine."""
    wanted_revision: str | None
    """Revision in the launch document that the agent sees."""
    state: str
    restarts: int
    problem: str | None
    stopped: bool = False
    """Whether it stays down because its restarts are spent."""
    memory_held: bool = False
    """Whether the next engine waits for memory that GPUs still hold."""
    reading: EngineReading | None = field(default=None, compare=False)
    """Its numbers, which are other ones in each answer: they make no answer a different one."""
    digest_problem: str | None = field(default=None, compare=False)
    """Why there are no newer numbers."""

    def serves(self, revision: str | None) -> bool:
        """Whether the engine takes requests at this revision."""
        return self.state == SERVING and self.revision == revision


@dataclass(frozen=True, slots=True)
class StoreAgent:
    """The store container's agent."""

    epoch: str | None
    """Boot id of the store process."""
    state: str
    problem: str | None
    reading: StoreReading | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Agents:
    """Last answers of one pod's agents; None where one did not answer."""

    engine: EngineAgent | None = None
    store: StoreAgent | None = None


def engine_agent(body: Mapping[str, Any]) -> EngineAgent:
    """Parses the engine agent's ``/status``. Raises KeyError or TypeError when it is something else."""
    return EngineAgent(
        revision=_word(body["revision"]),
        wanted_revision=_word(body["wantedRevision"]),
        state=str(body["state"])[:32],
        restarts=int(body["restarts"]),
        problem=_text(body["problem"]),
        stopped=body.get("recoveryStopped") is True,
        memory_held=body.get("gpuMemoryHeld") is True,
        reading=engine_reading(body),
        digest_problem=_text(body.get("digestProblem")),
    )


def store_agent(body: Mapping[str, Any]) -> StoreAgent:
    """Parses the store agent's ``/status``. Raises KeyError or TypeError when it is something else."""
    return StoreAgent(
        epoch=_word(body["epoch"]),
        state=str(body["state"])[:32],
        problem=_text(body["problem"]),
        reading=store_reading(body),
    )


def _word(value: Any) -> str | None:
    """At most as long as the status of a K3Deployment can hold."""
    return None if value is None else str(value)[:64]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)[:512]
