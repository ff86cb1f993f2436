"""Reads what the store server prints: passes it through unchanged and notices the lines that the agent needs."""

import collections
import re
import sys
import threading
from typing import IO

from umbra_agent.report import bounded

# Longer than any line the server writes; a longer one is passed through in pieces.
LINE_LIMIT_BYTES = 64 * 1024
_REGISTERED = re.compile(rb"registered for GPU access")
_NOT_REGISTERED = re.compile(rb"hipHostRegister of \d+ MiB failed")
_EVICTED = re.compile(rb"local eviction freed (\d+) key\(s\) \((\d+) bytes\)")
_STUCK = re.compile(rb"local eviction found no reclaimable key")


class StoreLog(threading.Thread):
    """Copies `source` to stdout line by line until it ends. Counters may be read from any thread."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._source = source
        self._last: collections.deque[str] = collections.deque(maxlen=5)
        self.registered = threading.Event()
        self.registration_failed = False
        self.eviction_rounds = 0
        self.evicted_keys = 0
        self.evicted_bytes = 0
        self.eviction_stuck = 0

    def run(self) -> None:
        output = sys.stdout.buffer
        while line := self._source.readline(LINE_LIMIT_BYTES):
            self.notice(line)
            try:
                output.write(line)
                output.flush()
            except OSError:
                continue  # nobody reads our stdout: the server must still not block on its own

    def notice(self, line: bytes) -> None:
        """Update the counters from one line."""
        if _REGISTERED.search(line):
            self.registered.set()
        elif _NOT_REGISTERED.search(line):
            self.registration_failed = True
        elif evicted := _EVICTED.search(line):
            self.eviction_rounds += 1
            self.evicted_keys += int(evicted[1])
            self.evicted_bytes += int(evicted[2])
        elif _STUCK.search(line):
            self.eviction_stuck += 1
        self._last.append(bounded(line.decode("utf-8", errors="replace"), 200))

    def last_lines(self) -> list[str]:
        """The last lines, shortened, for the termination message."""
        return list(self._last)
