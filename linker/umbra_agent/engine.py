"""Engine mode: keep the engine that the launch document asks for running, and replace it in place."""

import time
from dataclasses import dataclass
from pathlib import Path

from umbra_agent import metrics
from umbra_agent.child import become_subreaper
from umbra_agent.engine_view import not_ready_reason, samples, status
from umbra_agent.report import compact, say, write_termination
from umbra_agent.serving import Server, Views
from umbra_agent.signals import Signals
from umbra_agent.supervisor import Supervisor, SupervisorOptions
from umbra_agent.upgrade import Upgrade, received

MODE = "engine"
TICK_SECONDS = 0.1


@dataclass(frozen=True)
class EngineOptions:
    """Engine mode: the supervisor and what the agent shows of it."""

    supervisor: SupervisorOptions
    boot_id: Path
    termination_log: Path
    bind: str
    port: int
    rest: tuple[str, ...]
    """Our own command line after the mode, for the agent that may replace this one."""
    handover: int | None
    """Descriptor with what an earlier agent left."""


def read_epoch(boot_id: Path) -> str | None:
    """The store's boot id, or None while no store has written one."""
    try:
        return boot_id.read_text(encoding="utf-8").strip()[:64] or None
    except (OSError, UnicodeDecodeError):
        return None


def run(options: EngineOptions) -> int:
    """Supervise until SIGTERM or SIGINT. Returns 0 once the engine and all that it started have ended."""
    signals = Signals()
    become_subreaper()
    upgrade = Upgrade(options.supervisor.kit_root, MODE, options.rest)
    engine = Supervisor(options.supervisor, upgrade)
    earlier = received(options.handover)
    if earlier is not None:
        engine.take_over(earlier)
    server = Server(
        options.bind,
        options.port,
        Views(
            status=lambda: status(engine.snapshot, read_epoch(options.boot_id), time.time()),
            ready=lambda: not_ready_reason(engine.snapshot),
            metrics=lambda: metrics.render(samples(engine.snapshot)),
        ),
        None if earlier is None else int(earlier["listener"]),
    )
    engine.start_probes()
    say(f"Engine agent {engine.snapshot.agent_kit} listens on port {server.server_port}.")
    while True:
        engine.step(signals.stop)
        if engine.finished:
            break
        if upgrade.accepted and engine.replaceable and not signals.stop:
            engine.hand_over(server.fileno())
        signals.wait(TICK_SECONDS)
    last = engine.snapshot.last_exit
    message = {"agent": "engine", "reason": "Stopped", "lastExit": last.to_status() if last else None}
    write_termination(options.termination_log, compact(message))
    say("The engine agent ends.")
    return 0
