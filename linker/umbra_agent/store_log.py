"""Notices the lines of the store server that the agent needs."""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# UMBP 1.2.4: "[DRAMTier] host memory registered for GPU access: 4096 MiB in 0.5 s (8/8 devices gatherable)".
_REGISTERED = re.compile(rb"registered for GPU access(?:[^\r\n]*\((\d+)/(\d+) devices gatherable\))?")
_NOT_REGISTERED = re.compile(rb"hipHostRegister of \d+ MiB failed")
_EVICTED = re.compile(rb"local eviction freed (\d+) key\(s\) \((\d+) bytes\)")
_STUCK = re.compile(rb"local eviction found no reclaimable key")


@dataclass
class StoreLog:
    """What was noticed so far. Written by the output's thread, may be read from any."""

    registered: bool = False
    """The line was seen and leaves no device out."""
    gatherable: int | None = None
    """Devices that can reach the registered memory, of `devices`; None: the line did not say."""
    devices: int | None = None
    registration_failed: bool = False
    eviction_rounds: int = 0
    evicted_keys: int = 0
    evicted_bytes: int = 0
    eviction_stuck: int = 0

    def notice(self, line: bytes) -> None:
        """Update from one line."""
        if registered := _REGISTERED.search(line):
            if registered[1] is not None:
                self.gatherable, self.devices = int(registered[1]), int(registered[2])
            self.registered = self.devices is None or 0 < self.devices == self.gatherable
        elif _NOT_REGISTERED.search(line):
            self.registration_failed = True
        elif evicted := _EVICTED.search(line):
            self.eviction_rounds += 1
            self.evicted_keys += int(evicted[1])
            self.evicted_bytes += int(evicted[2])
        elif _STUCK.search(line):
            self.eviction_stuck += 1

    def evictions(self) -> dict[str, int]:
        """The evictions object of /status: since the store's start."""
        return {
            "rounds": self.eviction_rounds,
            "keys": self.evicted_keys,
            "bytes": self.evicted_bytes,
            "stuck": self.eviction_stuck,
        }

    def to_handover(self) -> dict[str, Any]:
        """For the agent that replaces this one."""
        return dataclasses.asdict(self)

    @classmethod
    def from_handover(cls, document: Mapping[str, Any]) -> "StoreLog":
        """What an earlier agent noticed; fields that it did not know keep their defaults."""
        known = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})
