"""What the engine agent shows: readiness, /status and metrics, all from one frozen snapshot."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from umbra_agent.child import Exit
from umbra_agent.exit_cause import Explanation
from umbra_agent.metrics import (
    DOCUMENTS_REFUSED,
    ENGINE_BACKOFF,
    ENGINE_RESTARTS,
    ENGINE_START_DURATION,
    ENGINE_STARTED,
    ENGINE_STATE,
    ENGINE_STOP_DURATION,
    INFO,
    READY,
    STORE_READY,
    Sample,
    one_hot,
)
from umbra_agent.progress import Progress
from umbra_agent.scrape import Reading

State = Literal["waiting", "starting", "serving", "draining", "stopping", "failed"]
ExitReason = Literal["Exited", "Stopped", "DrainTimeout", "StartFailed"]


@dataclass(frozen=True)
class LastExit:
    """The engine's last end. Exited: by itself. Stopped: as asked. DrainTimeout: killed. StartFailed: never ran."""

    exit: Exit
    reason: ExitReason
    explanation: Explanation | None = None

    def to_status(self) -> dict[str, Any]:
        """The lastExit object of /status and of the termination message."""
        return {
            "code": self.exit.code,
            "signal": self.exit.signal,
            "reason": self.reason,
            "at": round(self.exit.at, 3),
            "cause": self.explanation.cause if self.explanation else None,
            "detail": self.explanation.detail if self.explanation else None,
        }


@dataclass(frozen=True)
class EngineSnapshot:
    """The supervisor's state at one moment. Times are Unix seconds, durations seconds."""

    state: State = "waiting"
    agent_kit: str = "unknown"
    kit: str | None = None
    revision: str | None = None
    wanted_revision: str | None = None
    exited_restarts: int = 0
    revision_restarts: int = 0
    refused_documents: int = 0
    backoff_seconds: float = 0.0
    recovery_stopped: bool = False
    """The engine stays down: it was restarted as often as the launch document allows."""
    gpu_memory_held: bool = False
    """The next engine waits for memory that GPUs hold after the end of the one before."""
    store_ready_once: bool = False
    store_ready: bool = False
    engine_problem: str | None = None
    """Why the engine's own /ready is not 200 at present; None when it is."""
    started_at: float | None = None
    ready_at: float | None = None
    start_seconds: float | None = None
    stop_seconds: float | None = None
    last_exit: LastExit | None = None
    progress: Progress | None = None
    reading: Reading | None = None
    """What the engine last said under /metrics; None before it served."""
    problem: str | None = None


def not_ready_reason(snapshot: EngineSnapshot) -> str | None:
    """None when requests may come, else why not.

    The store counts only before the first start: when it is lost or frozen later, requests are cache misses. An engine
    that serves while another revision waits, is judged or is held back still serves; readiness drops with the drain.
    """
    if snapshot.state != "serving":
        return snapshot.problem or f"the engine is {snapshot.state}"
    if not snapshot.store_ready_once:
        return "the store was never ready"
    if snapshot.engine_problem is not None:
        return f"the engine is not ready: {snapshot.engine_problem}"
    return None


def status(snapshot: EngineSnapshot, epoch: str | None, now: float) -> dict[str, Any]:
    """The /status document at the Unix time `now`. Holds no argument and no environment value."""
    reading = snapshot.reading
    return {
        "agent": "engine",
        "kit": snapshot.kit or snapshot.agent_kit,
        "agentKit": snapshot.agent_kit,
        "revision": snapshot.revision,
        "wantedRevision": snapshot.wanted_revision,
        "state": snapshot.state,
        "ready": not_ready_reason(snapshot) is None,
        "restarts": snapshot.exited_restarts,
        "recoveryStopped": snapshot.recovery_stopped,
        "gpuMemoryHeld": snapshot.gpu_memory_held,
        "epoch": epoch,
        "storeReadyOnce": snapshot.store_ready_once,
        "startedAt": None if snapshot.started_at is None else round(snapshot.started_at, 3),
        "readyAt": None if snapshot.ready_at is None else round(snapshot.ready_at, 3),
        "progress": None if snapshot.progress is None else snapshot.progress.to_status(now),
        "lastExit": None if snapshot.last_exit is None else snapshot.last_exit.to_status(),
        "problem": snapshot.problem,
        "digestProblem": None if reading is None else reading.problem,
        "digest": None if reading is None or reading.digest is None else reading.digest.to_status(),
    }


def snapshot_to_handover(snapshot: EngineSnapshot) -> dict[str, Any]:
    """For the agent that replaces this one."""
    return asdict(replace(snapshot, progress=None, reading=None))


def snapshot_from_handover(document: Mapping[str, Any], agent_kit: str) -> EngineSnapshot:
    """What an earlier agent showed; fields that this version does not know are left out."""
    known = {name: document[name] for name in EngineSnapshot.__dataclass_fields__ if name in document}
    last = known.get("last_exit")
    if last is not None:
        explanation = Explanation(**last["explanation"]) if last["explanation"] else None
        known["last_exit"] = LastExit(Exit(**last["exit"]), last["reason"], explanation)
    return EngineSnapshot(**{**known, "agent_kit": agent_kit, "progress": None, "reading": None})


def samples(snapshot: EngineSnapshot) -> list[Sample]:
    """The metrics of /metrics. A duration that has not been measured yet is absent."""
    info = {"agent": "engine", "kit": snapshot.agent_kit, "revision": snapshot.revision or ""}
    found = [
        Sample(INFO, 1, info),
        Sample(READY, float(not_ready_reason(snapshot) is None)),
        *one_hot(ENGINE_STATE, get_args(State), snapshot.state),
        Sample(ENGINE_RESTARTS, snapshot.exited_restarts, {"reason": "Exited"}),
        Sample(ENGINE_RESTARTS, snapshot.revision_restarts, {"reason": "Revision"}),
        Sample(ENGINE_BACKOFF, snapshot.backoff_seconds),
        Sample(DOCUMENTS_REFUSED, snapshot.refused_documents),
        Sample(STORE_READY, float(snapshot.store_ready)),
    ]
    optional = (
        (ENGINE_STARTED, snapshot.started_at),
        (ENGINE_START_DURATION, snapshot.start_seconds),
        (ENGINE_STOP_DURATION, snapshot.stop_seconds),
    )
    return found + [Sample(metric, value) for metric, value in optional if value is not None]
