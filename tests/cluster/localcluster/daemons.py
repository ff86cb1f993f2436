"""The long-running processes of one cluster: started once, restarted when dead or changed."""

import sys
from collections.abc import Callable
from pathlib import Path

from . import cache, forward, network, probe, process
from .errors import ClusterError
from .layout import MARK, Layout
from .state import State

_FORWARD = "forward-"


class Daemons:
    """Starts and watches processes; `namespace` is the network namespace that they live in, if any."""

    def __init__(self, where: Layout, state: State, namespace: str | None) -> None:
        self._layout = where
        self._state = state
        self._namespace = namespace
        self._environment = {MARK: str(where.directory)}
        self._watched: list[str] = []

    def ensure(self, name: str, argv: list[str], *configuration: Path) -> bool:
        """Start the process unless it runs with this very command line and configuration; True when it was started."""
        command = network.inside(self._namespace, argv) if self._namespace else argv
        identity = cache.key(*command, *configuration)
        self._watched.append(name)
        if self._state.runs(name, identity):
            return False
        if old := self._state.processes.get(name):
            process.stop([old])
        started = process.daemon(command, self._layout.log(name), self._environment)
        self._state.record(name, started, identity)
        return True

    def forward(self, name: str, target: str, port: int = 0) -> int:
        """A loopback port that leads to `target` (`address:port`) in the namespace; the same one while it runs.

        `port` 0 takes the port of the last time if it is free, else any. Raises ClusterError when another wished-for
        port is in use.
        """
        if self._namespace is None:
            raise ClusterError(
                f"Without a node there is no network to forward into: use `{self._layout.command('up')}`."
            )
        key = f"{_FORWARD}{name}"
        known = self._state.processes.get(key)
        old_target, _, old_port = self._state.values.get(key, "").rpartition(" ")
        if known and known.alive and old_target == target and port in (0, int(old_port)):
            return int(old_port)
        if known:
            process.stop([known])
        # A restarted forward keeps its port if it can: somebody may have written it down.
        try:
            listener = forward.listen(port or int(old_port or 0))
        except OSError:
            if port:
                raise ClusterError(f"Port {port} of 127.0.0.1 is in use: choose another one, or 0 for any.") from None
            listener = forward.listen()
        with listener:
            number = int(listener.getsockname()[1])
            descriptor = str(listener.fileno())
            argv = [
                sys.executable,
                "-m",
                "localcluster.forward",
                descriptor,
                str(network.path(self._namespace)),
                target,
            ]
            environment = {**self._environment, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
            started = process.daemon(argv, self._layout.log(key), environment, [listener.fileno()])
        self._state.record(key, started, cache.key(*argv))
        self._state.set(key, f"{target} {number}")
        return number

    def restart_forwards(self) -> None:
        """Start the forwards anew that died, each on its old port."""
        for key, value in list(self._state.values.items()):
            if key.startswith(_FORWARD):
                self.forward(key.removeprefix(_FORWARD), value.rpartition(" ")[0])

    def dead(self) -> str | None:
        """A sentence on the first watched process that ended, with its last words."""
        for name in self._watched:
            if not self._state.processes[name].alive:
                log = self._layout.log(name)
                return f"{name} ended: {probe.last_words(log)} (whole log: {log})."
        return None

    def wait(self, what: str, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready`; raise ClusterError when a watched process dies or the time is over."""
        probe.wait_until(ready, what, seconds, self.dead)
