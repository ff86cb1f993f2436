"""Store mode: run the store server, tell when it is ready, and end when it ends."""

import os
import secrets
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from umbra_agent import evidence, metrics
from umbra_agent.child import Child, Exit, become_subreaper, descendants
from umbra_agent.kit import installed_version
from umbra_agent.metrics import Sample
from umbra_agent.output import Output
from umbra_agent.probe import Poll, http2_alive
from umbra_agent.report import bounded, compact, say, write_termination
from umbra_agent.serving import Server, Views
from umbra_agent.signals import Signals
from umbra_agent.store_log import StoreLog
from umbra_agent.upgrade import Upgrade, received

MODE = "store"
TICK_SECONDS = 0.1
PROBE_TIMEOUT_SECONDS = 2.0
# The server's own default when UMBP_DRAM_CAPACITY is unset.
DEFAULT_CAPACITY_BYTES = 4 << 30
# Up to here the server registers its tier before it listens; above it does so later, in a background thread.
REGISTERED_AT_START_BYTES = 2 << 30

# Twenty ticks: how often the link to the current kit is looked at.
KIT_PERIOD_SECONDS = 2.0

State = Literal["starting", "ready", "stopped"]
Stage = Literal["process", "answers", "registered"]


@dataclass(frozen=True)
class StoreOptions:
    """Command line, paths and ports of store mode; durations in seconds."""

    argv: tuple[str, ...]
    socket: Path
    boot_id: Path
    termination_log: Path
    bind: str
    port: int
    stop_seconds: float
    """SIGKILL this long after SIGTERM; unmapping a TB tier takes minutes."""
    kit_root: Path
    run_dir: Path
    rest: tuple[str, ...]
    """Our own command line after the mode, for the agent that may replace this one."""
    handover: int | None
    """Descriptor with what an earlier agent left."""


def capacity(environment: Mapping[str, str]) -> tuple[int, str | None]:
    """Tier size in bytes from UMBP_DRAM_CAPACITY, and a problem when the server will not take that value."""
    text = environment.get("UMBP_DRAM_CAPACITY")
    if text is None:
        return DEFAULT_CAPACITY_BYTES, None
    if text.isascii() and text.isdecimal() and int(text) > 0:
        return int(text), None
    problem = "UMBP_DRAM_CAPACITY is not a positive number of bytes: the server falls back to 4 GiB; correct the size."
    return DEFAULT_CAPACITY_BYTES, problem


def write_boot_id(path: Path) -> str:
    """Write a new random boot id (the epoch, 32 hex digits) to `path` by rename and return it."""
    epoch = secrets.token_hex(16)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.tmp")
    staging.write_text(epoch + "\n", encoding="utf-8")
    staging.chmod(0o644)
    staging.replace(path)
    return epoch


def registration_awaited(environment: Mapping[str, str], capacity_bytes: int) -> bool:
    """Whether the server registers its tier for GPU access after it has begun to answer."""
    enabled = environment.get("UMBP_DRAM_HOST_REGISTER") not in ("0", "off", "false")
    return enabled and capacity_bytes > REGISTERED_AT_START_BYTES


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The container's environment, with a log level at which the server says what the agent listens for.

    Below "info" it never prints the registration line, and a large tier would never count as ready.
    """
    return {"MORI_UMBP_LOG_LEVEL": "info", **environment}


@dataclass(frozen=True)
class Observed:
    """What readiness depends on."""

    alive: bool
    socket_problem: str | None
    """Why the socket does not answer, or None."""
    registration_awaited: bool
    registered: bool = False
    registration_failed: bool = False
    gatherable: int | None = None
    """Devices that can reach the registered tier, of `devices`; None: the server did not say."""
    devices: int | None = None


def not_ready_reason(observed: Observed) -> str | None:
    """None when engines may use the store. Answering is not enough: a large tier is registered only minutes later."""
    if not observed.alive:
        return "the store server is not running"
    if observed.socket_problem is not None:
        return f"the store server is not ready: {observed.socket_problem}"
    if observed.registration_awaited and not observed.registered:
        if observed.gatherable is not None and observed.devices is not None:
            return unreachable(observed.gatherable, observed.devices)
        if observed.registration_failed:
            return "the tier could not be registered for GPU access: look at the store's log and at the memlock limit"
        return "the tier is not registered for GPU access yet"
    return None


def unreachable(gatherable: int, devices: int) -> str:
    """What to say when the tier is registered but `devices - gatherable` GPUs do not see it at its address.

    A rank on such a GPU copies through pageable memory, many times slower, and nothing else tells.
    """
    if devices == 0:
        return "the tier is registered but the store sees no GPU: look at the devices of its container"
    return (
        f"the tier is registered but only {gatherable} of {devices} GPUs can reach it: look at the store's log, "
        "the devices of its container and the GPU driver"
    )


class Store:
    """One life of the store server. `step` is called in the main thread, the views from any."""

    def __init__(self, options: StoreOptions, earlier: Mapping[str, Any] | None = None) -> None:
        """Write the boot id, then start the server; or go on with the server that an earlier agent left.

        Raises OSError when it cannot be started.
        """
        self._options = options
        self._kit = installed_version(Path(__file__).parent)
        self.capacity_bytes, self._problem = capacity(os.environ)
        read: Mapping[str, Any] = earlier or {}
        if earlier is None:
            self.epoch = write_boot_id(options.boot_id)
            # The server blocks these only after its backend has made threads, and then dies of SIGTERM.
            blocked = (signal.SIGTERM, signal.SIGINT)
            self._child = Child.start(options.argv, server_environment(os.environ), blocked)
        else:
            self.epoch = str(earlier["epoch"])
            self._child = Child(int(earlier["pid"]), float(earlier["startedAt"]), int(earlier["output"]))
        self.log = StoreLog.from_handover(read.get("log", {}))
        tail = str(read.get("tail", "")).encode("latin-1")
        self.output = Output(self._child.output, self.log.notice, tail, read.get("lines", ()))
        self.output.start()
        self._stop_began: float | None = None
        self._exit_seen: float | None = None
        self._answered = bool(read.get("answered", False))
        self.overdue = False
        self._registered_after: float | None = read.get("registeredAfter")
        self._poll = Poll(self._probe, lambda: self._child.pid, lambda: 1.0 if self.reason() is None else 0.1)
        self._poll.start()
        how = "started" if earlier is None else "goes on"
        say(f"Store server {how} as process {self._child.pid}, epoch {self.epoch}.")

    def hand_over(self, upgrade: Upgrade, listener: int) -> None:
        """Become the agent that the upgrade accepted. Returns only when that failed, with nothing lost."""
        if self._child.exit is None and self._stop_began is None and self.output.pause():
            state = {
                "epoch": self.epoch,
                "pid": self._child.pid,
                "startedAt": self._child.started_at,
                "output": self.output.descriptor,
                "tail": self.output.tail.decode("latin-1"),
                "lines": self.output.lines,
                "log": self.log.to_handover(),
                "answered": self._answered,
                "registeredAfter": self._registered_after,
            }
            upgrade.become(state, [self.output.descriptor], listener)
        self.output.start()

    @property
    def exit(self) -> Exit | None:
        """How the server's main process ended, or None."""
        return self._child.exit

    def step(self, stop: bool) -> bool:
        """Do one tick; return True once the server and everything it started have ended."""
        child = self._child
        child.reap()
        if self._registered_after is None and self.log.registered:
            self._registered_after = time.time() - child.started_at
            say(f"The tier is registered for GPU access after {self._registered_after:.1f} s.")
        now = time.monotonic()
        if child.exit is not None:
            self._end_rest(now)
            return child.empty
        self._answered = self._answered or self._poll.latest[1] is None
        if stop and self._stop_began is None:
            self._stop_began = now
            # Before its first answer the server holds nothing, and would see SIGTERM only after minutes of allocation.
            child.signal_main(signal.SIGTERM if self._answered else signal.SIGKILL)
        elif self._stop_began is not None and not self.overdue and now - self._stop_began >= self._options.stop_seconds:
            say("The store server did not end in time and is killed.")
            self.overdue = True
            evidence.record(
                self._options.run_dir / "evidence",
                "the store server did not end in time",
                descendants(os.getpid()),
                self.output.lines,
            )
            child.signal_main(signal.SIGKILL)
        return False

    def _end_rest(self, now: float) -> None:
        """Whatever the server left behind is killed: it holds no request, and the epoch is over."""
        if self._exit_seen is None:
            self._exit_seen = now
            self._child.reap()
        if not self._child.empty:
            self._child.signal_all(signal.SIGKILL)

    def _probe(self) -> str | None:
        return http2_alive(self._options.socket, PROBE_TIMEOUT_SECONDS)

    def reason(self) -> str | None:
        """None when ready, else why not."""
        return not_ready_reason(
            Observed(
                alive=self._child.exit is None,
                socket_problem=self._poll.latest[1],
                registration_awaited=registration_awaited(os.environ, self.capacity_bytes),
                registered=self.log.registered,
                registration_failed=self.log.registration_failed,
                gatherable=self.log.gatherable,
                devices=self.log.devices,
            )
        )

    @property
    def stage(self) -> Stage | None:
        """How far the server has come; None once it has ended. Up to 2 GiB `answers` is all that is needed."""
        if self._child.exit is not None:
            return None
        if self._poll.latest[1] is not None:
            return "process"
        return "registered" if self.log.registered else "answers"

    @property
    def state(self) -> State:
        """starting also means: was ready and does not answer at present."""
        if self._child.exit is not None:
            return "stopped"
        return "ready" if self.reason() is None else "starting"

    def status(self) -> dict[str, Any]:
        """The /status document."""
        return {
            "agent": "store",
            "kit": self._kit,
            "epoch": self.epoch,
            "state": self.state,
            "stage": self.stage,
            "capacityBytes": self.capacity_bytes,
            "registered": self.log.registered,
            "evictions": self.log.evictions(),
            "startedAt": round(self._child.started_at, 3),
            "lastExit": exit_status(self.exit),
            "problem": self._problem or self.reason(),
        }

    def samples(self) -> list[Sample]:
        """The metrics of /metrics."""
        found = [
            Sample(metrics.INFO, 1, {"agent": "store", "kit": self._kit, "revision": ""}),
            Sample(metrics.READY, float(self.reason() is None)),
            *metrics.one_hot(metrics.STORE_STATE, get_args(State), self.state),
            Sample(metrics.STORE_CAPACITY, self.capacity_bytes),
            Sample(metrics.STORE_REGISTERED, float(self.log.registered)),
            Sample(metrics.STORE_STARTED, self._child.started_at),
            Sample(metrics.STORE_EVICTION_ROUNDS, self.log.eviction_rounds),
            Sample(metrics.STORE_EVICTED_KEYS, self.log.evicted_keys),
            Sample(metrics.STORE_EVICTED_BYTES, self.log.evicted_bytes),
            Sample(metrics.STORE_EVICTION_STUCK, self.log.eviction_stuck),
        ]
        if self._registered_after is not None:
            found.append(Sample(metrics.STORE_REGISTRATION_DURATION, self._registered_after))
        return found


def exit_status(ended: Exit | None) -> dict[str, Any] | None:
    """The lastExit object of /status and of the termination message."""
    if ended is None:
        return None
    return {"code": ended.code, "signal": ended.signal, "at": round(ended.at, 3)}


def run(options: StoreOptions) -> int:
    """Run the server until it ends; return its exit code, 128 + signal, or 126/127 when it cannot be started.

    When it ended by the signal that it was sent because the agent was asked to stop, that is 0.
    """
    signals = Signals()
    become_subreaper()
    upgrade = Upgrade(options.kit_root, MODE, options.rest)
    try:
        earlier = received(options.handover)
        store = Store(options, earlier)
    except OSError as error:
        reason = f"The store server cannot be started ({error.strerror}): check the profile's store image and argv."
        say(reason)
        write_termination(options.termination_log, compact({"agent": "store", "reason": reason}))
        return 127 if isinstance(error, FileNotFoundError) else 126
    views = Views(status=store.status, ready=store.reason, metrics=lambda: metrics.render(store.samples()))
    server = Server(options.bind, options.port, views, None if earlier is None else int(earlier["listener"]))
    say(f"Store agent listens on port {server.server_port}.")
    look_at = time.monotonic() + KIT_PERIOD_SECONDS
    while not store.step(signals.stop):
        if not signals.stop and store.exit is None and time.monotonic() >= look_at:
            # While the new agent is rehearsed, its answer is looked for at every tick.
            if not upgrade.pending("current"):
                look_at = time.monotonic() + KIT_PERIOD_SECONDS
            elif upgrade.accepted:
                store.hand_over(upgrade, server.fileno())
        signals.wait(TICK_SECONDS)
    return _finish(store, options, signals.stop)


def _finish(store: Store, options: StoreOptions, asked: bool) -> int:
    # The last lines may still be in the pipe; every writer has ended, so this is short.
    store.output.join(2.0)
    ended = store.exit or Exit(1, None, time.time())
    reason = "Stopped" if asked else "Exited"
    message: dict[str, Any] = {"agent": "store", "reason": reason, "epoch": store.epoch, "lastExit": exit_status(ended)}
    if not asked:
        message["lastLines"] = [bounded(line, 200) for line in store.output.lines[-5:]]
    write_termination(options.termination_log, compact(message))
    say(f"The store server ended ({ended}, {reason}).")
    return 0 if asked and not store.overdue and ended.signal is not None else ended.shell_code
