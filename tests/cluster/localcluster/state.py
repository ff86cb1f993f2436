"""What runs for a cluster: the record that `down` and the next `up` work from."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from . import cache
from .process import Process


def boot_id() -> str:
    """Identity of this boot of the machine; pids and sysctls recorded under another one mean nothing."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class State:
    """The record of one cluster. Every change is on disk before the call returns."""

    path: Path
    processes: dict[str, Process] = field(default_factory=dict)
    # What each process was started with, as a hash: a new binary, flag or configuration means restart.
    identities: dict[str, str] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> "State":
        """Read the record; an absent, broken or older-boot one is empty."""
        try:
            content = json.loads(path.read_text())
            if content["boot"] != boot_id():
                return State(path)
            processes = {name: Process(pid, start) for name, (pid, start) in content["processes"].items()}
            return State(path, processes, dict(content["identities"]), dict(content["values"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return State(path)

    def runs(self, name: str, identity: str) -> bool:
        """Whether the process `name` runs and was started with exactly this."""
        process = self.processes.get(name)
        return process is not None and process.alive and self.identities.get(name) == identity

    def record(self, name: str, process: Process, identity: str) -> None:
        """Remember a process that was just started."""
        self.processes[name] = process
        self.identities[name] = identity
        self._save()

    def forget(self, name: str) -> None:
        """Drop a process that was stopped."""
        self.processes.pop(name, None)
        self.identities.pop(name, None)
        self._save()

    def set(self, name: str, value: str) -> None:
        """Remember a value (a port, a mode)."""
        self.values[name] = value
        self._save()

    def _save(self) -> None:
        content = {
            "boot": boot_id(),
            "processes": {name: [process.pid, process.start] for name, process in self.processes.items()},
            "identities": self.identities,
            "values": self.values,
        }
        cache.write(self.path, json.dumps(content, indent=1))
