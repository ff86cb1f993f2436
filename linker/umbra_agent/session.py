"""One life of the engine: its processes, what they print, and what can be said of their end."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from umbra_agent import evidence, exit_cause
from umbra_agent.arguments import redacted, values
from umbra_agent.child import Child, descendants
from umbra_agent.exit_cause import Explanation
from umbra_agent.launch import Launch, compact_document, parse
from umbra_agent.output import Output
from umbra_agent.progress import ProgressLog
from umbra_agent.report import say


class Session:
    """Start and use it in the main thread."""

    def __init__(self, launch: Launch, child: Child, output: Mapping[str, Any], oom_kills: int | None) -> None:
        """`output` is what an earlier agent had read of the child's output; empty for a new child."""
        self.launch = launch
        self.child = child
        self.progress = ProgressLog()
        tail = str(output.get("tail", "")).encode("latin-1")
        self.output = Output(child.output, self.progress.notice, tail, output.get("lines", ()))
        self.output.start()
        self._oom_kills = oom_kills
        self._recorded = False

    @classmethod
    def start(cls, launch: Launch, environment: Mapping[str, str]) -> "Session":
        """Start the engine. Raises OSError."""
        before = exit_cause.oom_kills()
        return cls(launch, Child.start(launch.argv, environment), {}, before)

    @classmethod
    def take_over(cls, document: Mapping[str, Any]) -> "Session":
        """Go on with the child that an earlier agent started and this process still has."""
        child = Child(int(document["pid"]), float(document["startedAt"]), int(document["output"]))
        say(f"The engine goes on as process {child.pid}.")
        return cls(parse(compact_document(document["launch"])), child, document, document["oomKills"])

    def to_handover(self) -> dict[str, Any]:
        """For the agent that replaces this one. The output must be paused."""
        return {
            "pid": self.child.pid,
            "startedAt": self.child.started_at,
            "output": self.output.descriptor,
            "tail": self.output.tail.decode("latin-1"),
            "lines": self.output.lines,
            "launch": self.launch.to_document(),
            "oomKills": self._oom_kills,
        }

    def record_evidence(self, folder: Path, why: str) -> None:
        """Keep what the processes were doing, once in a life: before the first kill."""
        if not self._recorded:
            self._recorded = True
            evidence.record(folder, why, descendants(os.getpid()), self.output.lines)

    def kill_main(self) -> None:
        """SIGKILL the main process."""
        self.child.signal_main(signal.SIGKILL)

    def explain(self, asked: bool) -> Explanation | None:
        """Why it ended, without any value of its arguments or environment; None while it has not."""
        if self.child.exit is None:
            return None
        # The last lines may still be in the pipe; every writer has ended, so this is short.
        self.output.join(1.0)
        now, secrets = exit_cause.oom_kills(), values(self.launch)
        kills = now - self._oom_kills if now is not None and self._oom_kills is not None else 0
        return exit_cause.explain(
            self.child.exit, [redacted(line, secrets) for line in self.output.lines], kills, asked
        )
