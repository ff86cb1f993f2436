"""The engine's life: a state machine with one step per tick, run in the main thread.

waiting -> starting -> serving -> draining -> stopping -> waiting (new revision) or the end (SIGTERM)
draining begins with a while in which the engine goes on as before and only the agent says that it is not ready: whoever
sends requests must learn of it first. Then new requests are refused, and once none runs the engine is told to end. The
old revision wanted again before that: -> serving.
An exit of its own, from starting or serving: stopping -> failed (back-off) -> starting
Which document is to run is decided in `revisions`; what belongs to one life of the engine is in `session`.
"""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from umbra_agent.backoff import Backoff, budget
from umbra_agent.child import Exit
from umbra_agent.drain import DRAIN_FLAG, RUNNING_FILE, DrainFlag, RunningCount
from umbra_agent.engine_view import (
    EngineSnapshot,
    ExitReason,
    LastExit,
    snapshot_from_handover,
    snapshot_to_handover,
)
from umbra_agent.gpu_memory import GpuMemory
from umbra_agent.kit import installed_version
from umbra_agent.launch import Launch, child_environment
from umbra_agent.live import LiveFile
from umbra_agent.readiness import Probes
from umbra_agent.report import say
from umbra_agent.revisions import Revisions
from umbra_agent.session import Session
from umbra_agent.upgrade import Upgrade

# An engine that never served has nothing to drain.
UNREADY_STOP_SECONDS = 30.0
# SGLang looks every 5 s whether it was told to end, then gives its schedulers 15 s: a clean end needs this much of a
# bound that runs out with requests still running. Of a short bound, half.
END_SECONDS = 20.0


@dataclass(frozen=True)
class SupervisorOptions:
    """Where the supervisor finds things, and its bounds; durations in seconds."""

    document: Path
    kit_root: Path
    drain_flag: Path
    run_dir: Path
    """Folder on the pod's disk for live.json, last-good.json and evidence."""
    store_port: int | None
    """Port of the store agent on loopback; None starts the engine without waiting for a store."""
    rest_seconds: float
    """How long the processes that the engine's main process left behind may take after SIGTERM."""
    lame_duck_seconds: float
    """From the agent's "not ready" until the engine is told to end; part of the drain's own bound."""
    drm: Path
    """The driver's view of the node's GPUs, /sys/class/drm."""
    dri: Path
    """This container's GPUs, /dev/dri."""
    gpu_memory_seconds: float
    """How long an engine waits for the memory of the one before."""


class Supervisor:
    """The supervisor. `step` is called in the main thread; `snapshot` may be read from any thread."""

    def __init__(self, options: SupervisorOptions, upgrade: Upgrade) -> None:
        self._options = options
        self._upgrade = upgrade
        self._revisions = Revisions(options.document, options.kit_root, options.run_dir / "last-good.json")
        self._drain_flag = DrainFlag(options.drain_flag)
        self._running_file = options.run_dir / "running"
        self._running = RunningCount(self._running_file)
        self._live = LiveFile(options.run_dir / "live.json")
        remembered = options.run_dir / "gpu-memory.json"
        self._gpu_memory = GpuMemory(options.drm, options.dri, remembered, options.gpu_memory_seconds)
        self._session: Session | None = None
        self._problem: str | None = None
        self._memory_held = False
        self._backoff = Backoff()
        self._phase_began = time.monotonic()
        self._exit_reason: ExitReason = "Exited"
        self._stop_began: float | None = None
        self._refusing = False
        self._told_to_end = False
        self.finished = False
        self.snapshot = EngineSnapshot(agent_kit=installed_version(Path(__file__).parent))
        self._probes = Probes(options.store_port, lambda: self._session, lambda: self.snapshot.state == "serving")

    def start_probes(self) -> None:
        """Begin to probe the engine and, unless it runs without one, the store."""
        self._probes.start()

    def step(self, stop: bool) -> None:
        """Look at the document, the child and the probes once, and do what follows. `stop`: SIGTERM was received."""
        self._memory_held = False
        self._follow_document()
        self._follow_store()
        if self._session is not None:
            self._session.child.reap()
        match self.snapshot.state:
            case "waiting" | "failed":
                self._step_idle(stop)
            case "starting" | "serving":
                self._step_running(stop)
            case "draining":
                self._step_draining(stop)
            case "stopping":
                self._step_stopping(stop)
        held = self._revisions.held
        parts = (self._revisions.file.problem, held and held.reason, self._problem)
        session = self._session
        self._set(
            problem=" ".join(part for part in parts if part) or None,
            gpu_memory_held=self._memory_held,
            progress=None if session is None else session.progress.latest,
            reading=None if session is None else self._probes.reading(session.child.pid),
        )

    @property
    def replaceable(self) -> bool:
        """Whether another agent could go on from here: nothing is being stopped or collected."""
        if self.snapshot.state in ("draining", "stopping"):
            return False
        return self._session is None or self._session.child.exit is None

    def hand_over(self, listener: int) -> None:
        """Become the agent that the upgrade accepted. Returns only when that failed, with nothing lost."""
        session = self._session
        if session is not None and not session.output.pause():
            say("Nobody takes the engine's output: the agent is replaced later.")
            session.output.start()
            return
        state = {
            "snapshot": snapshot_to_handover(self.snapshot),
            "backoff": self._backoff.to_handover(),
            "revisions": self._revisions.to_handover(),
            "session": None if session is None else session.to_handover(),
            "phaseBegan": self._phase_began,
        }
        self._revisions.cancel()
        self._upgrade.become(state, [] if session is None else [session.output.descriptor], listener)
        if session is not None:
            session.output.start()

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Go on where an earlier agent was; before the first step."""
        self._backoff.take_over(state["backoff"])
        self._revisions.take_over(state["revisions"])
        self._phase_began = float(state["phaseBegan"])
        self.snapshot = snapshot_from_handover(state["snapshot"], self.snapshot.agent_kit)
        if state["session"] is not None:
            self._session = Session.take_over(state["session"])

    def _follow_document(self) -> None:
        file, before = self._revisions.file, self._revisions.file.problem
        changed = self._revisions.follow()
        if file.problem is not None and file.problem != before:
            say(f"{file.problem} The engine is left as it is.")
        wanted, session = self._revisions.wanted, self._session
        if changed and wanted is not None:
            say(f"Launch document revision {wanted.revision} is wanted.")
            self._set(wanted_revision=wanted.revision)
        self._set(refused_documents=file.refused + self._revisions.refused)
        if session is None or wanted is None or wanted.revision != session.launch.revision:
            return
        if wanted.live != session.launch.live:
            session.launch = replace(session.launch, live=wanted.live)
            self._live.write(session.launch)
            say("The live settings changed.")
            if self.snapshot.state == "serving":
                self._revisions.became_ready(session.launch)

    def _follow_store(self) -> None:
        if self._options.store_port is None:
            self._set(store_ready_once=True)
            return
        ready = self._probes.store_problem is None
        once = self.snapshot.store_ready_once or (ready and not self._backoff.starts)
        self._set(store_ready=ready, store_ready_once=once)

    def _step_idle(self, stop: bool) -> None:
        if stop:
            self.finished = True
            return
        obstacle = self._obstacle()
        if obstacle is not None:
            self._problem = obstacle
            return
        target = self._revisions.target
        if target is None or self._backoff.waits(target.revision, budget(target.live)) or self._upgrade_pending():
            return
        held = self._gpu_memory.obstacle()
        if held is None:
            self._start(target)
        else:
            self._problem, self._memory_held = held, True

    def _obstacle(self) -> str | None:
        """Why no engine may start: empty where that is no problem, or is told as the document's; None if one may."""
        target = self._revisions.target
        if target is None:
            return "Waiting for a valid launch document." if self._revisions.file.problem is None else ""
        if not self._kit_in_place(target):
            return f"Waiting for kit {target.kit} under {self._options.kit_root}: see the kit container."
        if not self.snapshot.store_ready_once:
            if not self._probes.store_asked:
                # The store is up before this container starts: until its first answer nothing is wrong.
                return ""
            return f"Waiting for the store: {self._probes.store_problem}."
        return None

    def _kit_in_place(self, launch: Launch) -> bool:
        return (self._options.kit_root / launch.kit).is_dir()

    def _upgrade_pending(self) -> bool:
        """Whether the agent is about to become the one of the wanted document's kit: then nothing starts or stops."""
        wanted = self._revisions.wanted
        return wanted is not None and self._upgrade.pending(wanted.kit)

    def _start(self, launch: Launch) -> None:
        reason = self._backoff.starting(launch.revision)
        if reason != "First":
            name = "exited_restarts" if reason == "Exited" else "revision_restarts"
            self._set(**{name: getattr(self.snapshot, name) + 1})
        self._problem = None
        self._gpu_memory.starting()
        self._drain_flag.down()
        self._running.forget()
        self._live.write(launch)
        self._phase_began = time.monotonic()
        try:
            environment = child_environment(os.environ, launch, self._options.kit_root)
            files = {DRAIN_FLAG: str(self._options.drain_flag), RUNNING_FILE: str(self._running_file)}
            self._session = Session.start(launch, {**environment, **files})
        except OSError as error:
            say(f"The engine could not be started: {error.strerror}.")
            code = 127 if isinstance(error, FileNotFoundError) else 126
            self._fail(launch, LastExit(Exit(code, None, time.time()), "StartFailed"))
            return
        say(f"Engine revision {launch.revision} started as process {self._session.child.pid}.")
        self._set(
            state="starting",
            recovery_stopped=False,
            kit=launch.kit,
            revision=launch.revision,
            started_at=self._session.child.started_at,
            ready_at=None,
            engine_problem="not probed yet",
            backoff_seconds=0.0,
        )
        self._probes.engine.wake()

    def _step_running(self, stop: bool) -> None:
        session, target = self._session, self._revisions.target
        if session is None or target is None:
            return
        self._problem = None
        if session.child.exit is not None:
            self._enter_stopping("Exited")
        elif stop:
            self._drain()
        elif self._upgrade_pending() or target.revision == session.launch.revision:
            self._follow_engine(session)
        elif not self._kit_in_place(target):
            self._problem = f"Revision {target.revision} waits for kit {target.kit}; the engine is left as it is."
        elif self._revisions.may_replace(session.launch):
            self._drain()
        else:
            self._follow_engine(session)

    def _follow_engine(self, session: Session) -> None:
        token, reason = self._probes.engine.latest
        if token != session.child.pid:
            return
        self._set(engine_problem=reason)
        if reason is None and self.snapshot.state == "starting":
            seconds = time.monotonic() - self._phase_began
            say(f"Engine revision {self.snapshot.revision} is ready after {seconds:.1f} s.")
            session.progress.clear()
            self._set(state="serving", ready_at=time.time(), start_seconds=seconds)
            self._revisions.became_ready(session.launch)

    def _drain(self) -> None:
        if self._session is None:
            return
        self._quiet()
        say(f"Draining engine revision {self.snapshot.revision} (at most {self._drain_bound():g} s).")
        self._stop_began = self._phase_began = time.monotonic()
        self._exit_reason = "Stopped"
        self._refusing = self._told_to_end = False
        self._set(state="draining")
        self._step_leaving(self._session, stop=True)

    def _quiet(self) -> None:
        """End what was started beside the engine, so that whatever is left to collect is the engine's."""
        self._revisions.cancel()
        self._upgrade.cancel()

    def _drain_bound(self) -> float:
        """Bound in seconds from the newest document: an operator may shorten a drain that is under way."""
        wanted = self._revisions.wanted
        bound = float(wanted.drain_timeout_seconds) if wanted is not None else 0.0
        return bound if self.snapshot.ready_at is not None else min(bound, UNREADY_STOP_SECONDS)

    def _step_draining(self, stop: bool) -> None:
        session = self._session
        if session is None:
            return
        if session.child.exit is not None:
            self._enter_stopping(self._exit_reason)
        elif not self._told_to_end:
            self._step_leaving(session, stop)
        elif self._exit_reason == "Stopped" and time.monotonic() - self._phase_began >= self._drain_bound():
            say("The drain took too long: the engine's main process is killed.")
            self._exit_reason = "DrainTimeout"
            session.record_evidence(self._evidence_dir, "the drain took too long")
            session.kill_main()

    def _step_leaving(self, session: Session, stop: bool) -> None:
        """Refuse new requests once none are to be expected, and tell the engine to end once none runs.

        Go back to serving if it is wanted again before that.
        """
        target = self._revisions.target
        if not stop and target is not None and target.revision == session.launch.revision:
            say(f"Engine revision {target.revision} is wanted again: it goes on.")
            self._drain_flag.down()
            self._set(state="serving")
            return
        elapsed, bound = time.monotonic() - self._phase_began, self._drain_bound()
        lame_duck = self._options.lame_duck_seconds if self.snapshot.ready_at is not None else 0.0
        if not self._refusing and elapsed >= min(lame_duck, bound):
            self._refusing = True
            self._drain_flag.up()
            if running := self._running.latest:
                say(f"New requests are refused; {running} are still to be answered.")
        if self._refusing and (not self._running.latest or elapsed >= bound - min(END_SECONDS, bound / 2)):
            self._told_to_end = True
            session.child.signal_main(signal.SIGTERM)

    @property
    def _evidence_dir(self) -> Path:
        return self._options.run_dir / "evidence"

    def _enter_stopping(self, reason: ExitReason) -> None:
        if self._session is None:
            return
        self._quiet()
        child = self._session.child
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
        session = self._session
        if session is None or session.child.exit is None:
            return
        if not session.child.empty:
            waited = time.monotonic() - self._phase_began
            if waited >= self._options.rest_seconds:
                session.record_evidence(self._evidence_dir, "processes of the old engine did not end")
                left = session.child.signal_all(signal.SIGKILL)
                # A process in uninterruptible sleep may still hold GPU memory: a new engine would fail or corrupt it.
                self._problem = f"{left} processes of the old engine do not end after SIGKILL; the new one waits."
            return
        last = LastExit(session.child.exit, self._exit_reason, session.explain(self._exit_reason != "Exited"))
        self._session = None
        self._gpu_memory.ended()
        if self._stop_began is not None:
            self._set(stop_seconds=time.monotonic() - self._stop_began)
        self._problem = None
        if self._exit_reason == "Exited" and not stop:
            self._fail(session.launch, last)
        else:
            self._set(state="waiting", last_exit=last, revision=None, kit=None, started_at=None, ready_at=None)
            self.finished = stop

    def _fail(self, launch: Launch, last: LastExit) -> None:
        ready_at = self.snapshot.ready_at
        allowed = budget(launch.live)
        wait = self._backoff.failed(launch.revision, None if ready_at is None else last.exit.at - ready_at, allowed)
        times = f"{self._backoff.failures} times in a row"
        cause = f" ({last.explanation.detail})" if last.explanation else ""
        sentence = f"The engine ended by itself ({last.exit}), {times}; next start in {wait:g} s."
        if self._backoff.stopped and allowed is not None:
            wait = 0.0
            sentence = (
                f"The engine ended by itself ({last.exit}) and was restarted {allowed.restarts} times in "
                f"{allowed.seconds} s, as often as spec.recovery allows: it stays down until restart.id or the spec "
                "changes."
            )
        say(f"{sentence}{cause}")
        # The last good document does not wait for the back-off of another one.
        self._problem = None if self._revisions.ended(launch, ready_at is not None) else sentence
        self._set(
            state="failed",
            recovery_stopped=self._backoff.stopped,
            last_exit=last,
            backoff_seconds=wait,
            revision=None,
            kit=None,
            started_at=None,
            ready_at=None,
        )

    def _set(self, **changes: Any) -> None:
        self.snapshot = replace(self.snapshot, **changes)
