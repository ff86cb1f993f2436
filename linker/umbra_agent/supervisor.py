"""The engine's life: a state machine with one step per tick, run in the main thread.

waiting -> starting -> serving -> draining -> stopping -> waiting (new revision) or the end (SIGTERM)
An exit of its own, from starting or serving: stopping -> failed (back-off) -> starting
"""

import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from umbra_agent.child import Child, Exit
from umbra_agent.drain import DrainFlag
from umbra_agent.engine_view import EngineSnapshot, ExitReason, LastExit
from umbra_agent.kit import installed_version
from umbra_agent.launch import Launch, LaunchFile, child_environment
from umbra_agent.probe import Poll, http_ready
from umbra_agent.report import say

PROBE_TIMEOUT_SECONDS = 2.0
# An engine that never served has nothing to drain.
UNREADY_STOP_SECONDS = 30.0
BACKOFF_LIMIT_SECONDS = 60.0
# Ready for this long means that the next exit is a new failure, not the same one again.
STABLE_SECONDS = 60.0


@dataclass(frozen=True)
class SupervisorOptions:
    """Where the supervisor finds things, and its bounds; durations in seconds."""

    document: Path
    kit_root: Path
    drain_flag: Path
    store_port: int | None
    """Port of the store agent on loopback; None starts the engine without waiting for a store."""
    rest_seconds: float
    """How long the processes that the engine's main process left behind may take after SIGTERM."""


def backoff_seconds(failures: int) -> float:
    """Wait before the start after the `failures`-th exit in a row: 1, 2, 4 ... 60 s."""
    return min(BACKOFF_LIMIT_SECONDS, 2.0 ** min(max(failures, 1) - 1, 16))


class Supervisor:
    """The supervisor. `step` is called in the main thread; `snapshot` may be read from any thread."""

    def __init__(self, options: SupervisorOptions) -> None:
        self._options = options
        self._file = LaunchFile(options.document)
        self._drain_flag = DrainFlag(options.drain_flag)
        self._child: Child | None = None
        self._running: Launch | None = None
        self._problem: str | None = None
        self._starts = 0
        self._failures = 0
        self._failed_revision: str | None = None
        self._phase_began = time.monotonic()
        self._retry_at = 0.0
        self._exit_reason: ExitReason = "Exited"
        self._stop_began: float | None = None
        self.finished = False
        self.snapshot = EngineSnapshot(agent_kit=installed_version(Path(__file__).parent))
        self._engine_poll = Poll(self._probe_engine, self._child_token, self._probe_period)
        self._store_poll = Poll(self._probe_store, lambda: True, lambda: 1.0 if self.snapshot.store_ready else 0.25)

    def start_probes(self) -> None:
        """Begin to probe the engine and, unless it runs without one, the store."""
        self._engine_poll.start()
        if self._options.store_port is not None:
            self._store_poll.start()

    def step(self, stop: bool) -> None:
        """Look at the document, the child and the probes once, and do what follows. `stop`: SIGTERM was received."""
        self._follow_document()
        self._follow_store()
        if self._child is not None:
            self._child.reap()
        match self.snapshot.state:
            case "waiting" | "failed":
                self._step_idle(stop)
            case "starting" | "serving":
                self._step_running(stop)
            case "draining":
                self._step_draining()
            case "stopping":
                self._step_stopping(stop)
        problem = " ".join(part for part in (self._file.problem, self._problem) if part) or None
        self._set(problem=problem)

    def _follow_document(self) -> None:
        before = (self._file.wanted, self._file.problem)
        self._file.follow(os.environ)
        wanted, problem = self._file.wanted, self._file.problem
        if problem is not None and problem != before[1]:
            say(f"{problem} The engine is left as it is.")
        if wanted is not None and wanted is not before[0]:
            say(f"Launch document revision {wanted.revision} is wanted.")
            self._set(wanted_revision=wanted.revision)
        self._set(refused_documents=self._file.refused)

    def _follow_store(self) -> None:
        if self._options.store_port is None:
            self._set(store_ready_once=True)
            return
        ready = self._store_poll.latest == (True, None)
        self._set(store_ready=ready, store_ready_once=self.snapshot.store_ready_once or (ready and not self._starts))

    def _step_idle(self, stop: bool) -> None:
        if stop:
            self.finished = True
            return
        obstacle = self._obstacle()
        if obstacle is not None:
            self._problem = obstacle
            return
        same = self._file.wanted is not None and self._file.wanted.revision == self._failed_revision
        if self.snapshot.state == "failed" and same and time.monotonic() < self._retry_at:
            return
        self._start()

    def _obstacle(self) -> str | None:
        if self._file.wanted is None:
            return "Waiting for a valid launch document." if self._file.problem is None else ""
        if not self._kit_in_place(self._file.wanted):
            return f"Waiting for kit {self._file.wanted.kit} under {self._options.kit_root}: see the kit container."
        if not self.snapshot.store_ready_once:
            return f"Waiting for the store: {self._store_poll.latest[1]}."
        return None

    def _kit_in_place(self, launch: Launch) -> bool:
        return (self._options.kit_root / launch.kit).is_dir()

    def _start(self) -> None:
        launch = self._file.wanted
        if launch is None:
            return
        again = launch.revision == self._failed_revision
        if not again:
            self._failures = 0
        if self._starts:
            name = "exited_restarts" if again else "revision_restarts"
            self._set(**{name: getattr(self.snapshot, name) + 1})
        self._starts += 1
        self._failed_revision = None
        self._problem = None
        self._drain_flag.down()
        self._phase_began = time.monotonic()
        try:
            self._child = Child(launch.argv, child_environment(os.environ, launch, self._options.kit_root))
        except OSError as error:
            say(f"The engine could not be started: {error.strerror}.")
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._fail(launch, LastExit(Exit(code, None, time.time()), "StartFailed"))
            return
        self._running = launch
        say(f"Engine revision {launch.revision} started as process {self._child.pid}.")
        self._set(
            state="starting",
            kit=launch.kit,
            revision=launch.revision,
            started_at=self._child.started_at,
            ready_at=None,
            engine_problem="not probed yet",
            backoff_seconds=0.0,
        )
        self._engine_poll.wake()

    def _step_running(self, stop: bool) -> None:
        child, running, wanted = self._child, self._running, self._file.wanted
        if child is None or running is None or wanted is None:
            return
        self._problem = None
        if child.exit is not None:
            self._enter_stopping("Exited")
        elif stop:
            self._drain()
        elif wanted.revision != running.revision:
            if self._kit_in_place(wanted):
                self._drain()
            else:
                self._problem = f"Revision {wanted.revision} waits for kit {wanted.kit}; the engine is left as it is."
        else:
            self._follow_engine(child)

    def _follow_engine(self, child: Child) -> None:
        token, reason = self._engine_poll.latest
        if token != child.pid:
            return
        self._set(engine_problem=reason)
        if reason is None and self.snapshot.state == "starting":
            seconds = time.monotonic() - self._phase_began
            say(f"Engine revision {self.snapshot.revision} is ready after {seconds:.1f} s.")
            self._set(state="serving", ready_at=time.time(), start_seconds=seconds)

    def _drain(self) -> None:
        child = self._child
        if child is None:
            return
        self._drain_flag.up()
        say(f"Draining engine revision {self.snapshot.revision} (at most {self._drain_bound():g} s).")
        self._stop_began = self._phase_began = time.monotonic()
        self._exit_reason = "Stopped"
        self._set(state="draining")
        child.signal_main(signal.SIGTERM)

    def _drain_bound(self) -> float:
        """Bound in seconds from the newest document: an operator may shorten a drain that is under way."""
        bound = float(self._file.wanted.drain_timeout_seconds) if self._file.wanted is not None else 0.0
        return bound if self.snapshot.ready_at is not None else min(bound, UNREADY_STOP_SECONDS)

    def _step_draining(self) -> None:
        child = self._child
        if child is None:
            return
        if child.exit is not None:
            self._enter_stopping(self._exit_reason)
        elif self._exit_reason == "Stopped" and time.monotonic() - self._phase_began >= self._drain_bound():
            say("The drain took too long: the engine's main process is killed.")
            self._exit_reason = "DrainTimeout"
            child.signal_main(signal.SIGKILL)

    def _enter_stopping(self, reason: ExitReason) -> None:
        child = self._child
        if child is None:
            return
        say(f"The engine's main process ended ({child.exit}, {reason}); ending what it left behind.")
        self._exit_reason = reason
        self._phase_began = time.monotonic()
        if reason == "Exited":
            self._stop_began = self._phase_began
        self._set(state="stopping")
        child.reap()
        if not child.empty:
            child.signal_all(signal.SIGTERM)

    def _step_stopping(self, stop: bool) -> None:
        child, running = self._child, self._running
        if child is None or child.exit is None or running is None:
            return
        if not child.empty:
            waited = time.monotonic() - self._phase_began
            if waited >= self._options.rest_seconds:
                left = child.signal_all(signal.SIGKILL)
                # A process in uninterruptible sleep may still hold GPU memory: a new engine would fail or corrupt it.
                self._problem = f"{left} processes of the old engine do not end after SIGKILL; the new one waits."
            return
        last = LastExit(child.exit, self._exit_reason)
        self._child = self._running = None
        if self._stop_began is not None:
            self._set(stop_seconds=time.monotonic() - self._stop_began)
        self._problem = None
        if self._exit_reason == "Exited" and not stop:
            self._fail(running, last)
        else:
            self._set(state="waiting", last_exit=last, revision=None, kit=None, started_at=None, ready_at=None)
            self.finished = stop

    def _fail(self, launch: Launch, last: LastExit) -> None:
        ready_at = self.snapshot.ready_at
        if ready_at is not None and last.exit.at - ready_at >= STABLE_SECONDS:
            self._failures = 0
        self._failures += 1
        wait = backoff_seconds(self._failures)
        self._retry_at = time.monotonic() + wait
        self._failed_revision = launch.revision
        self._problem = (
            f"The engine ended by itself ({last.exit}), {self._failures} times in a row; next start in {wait:g} s."
        )
        say(self._problem)
        self._set(
            state="failed",
            last_exit=last,
            backoff_seconds=wait,
            revision=None,
            kit=None,
            started_at=None,
            ready_at=None,
        )

    def _child_token(self) -> int | None:
        child = self._child
        return None if child is None or child.exit is not None else child.pid

    def _probe_engine(self) -> str | None:
        running = self._running
        return "not running" if running is None else http_ready(running.port, PROBE_TIMEOUT_SECONDS)

    def _probe_store(self) -> str | None:
        return http_ready(self._options.store_port or 0, PROBE_TIMEOUT_SECONDS)

    def _probe_period(self) -> float:
        """Seconds: dense while starting, sparse later, since each probe is a line in the engine's access log."""
        return 2.0 if self.snapshot.state == "serving" else 0.2

    def _set(self, **changes: Any) -> None:
        self.snapshot = replace(self.snapshot, **changes)
