"""How far the engine is with loading its weights, from the progress bars that it prints."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# "Loading safetensors checkpoint shards:  42% Completed | 41/96 [03:10<04:15,  4.64s/it]", as tqdm writes it.
_BAR = re.compile(
    rb"(?P<what>(?:Multi-thread loading|Loading|Capturing)[^:|%]{0,60}?) ?(?:\([^)]*\))?:\s*\d{1,3}%"
    rb"[^\r\n]{0,200}?\|\s*(?P<done>\d{1,9})/(?P<total>\d{1,9})\s*\[(?P<elapsed>[\d:]{4,12})<(?P<left>[\d:?]{1,12})"
)


@dataclass(frozen=True)
class Progress:
    """`done` of `total` units of `what` are loaded; `eta_seconds` is the engine's own estimate of the rest."""

    what: str
    done: int
    total: int
    eta_seconds: int | None
    at: float
    """Unix time of the line: the estimate counts down from here."""

    def to_status(self, now: float) -> dict[str, Any]:
        """The object of /status."""
        left = None if self.eta_seconds is None else max(0, round(self.eta_seconds - (now - self.at)))
        return {"what": self.what, "done": self.done, "total": self.total, "etaSeconds": left}


def parse(line: bytes, at: float) -> Progress | None:
    """The progress that one line tells, or None when it is no progress line."""
    found = _BAR.search(line)
    if found is None or int(found["total"]) == 0:
        return None
    what = found["what"].decode("ascii", "replace").strip()
    return Progress(what, int(found["done"]), int(found["total"]), seconds(found["left"].decode()), at)


def seconds(clock: str) -> int | None:
    """tqdm's "MM:SS" or "H:MM:SS" in seconds; None for "?"."""
    total = 0
    for part in clock.split(":"):
        if not part.isdecimal():
            return None
        total = total * 60 + int(part)
    return total


class ProgressLog:
    """Keeps the last progress line. `notice` is called by the output's thread, `latest` may be read from any."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._latest: Progress | None = None
        self._over = False

    def notice(self, line: bytes) -> None:
        """Update from one line, until the engine is ready."""
        found = parse(line, self._clock())
        with self._lock:
            if found is not None and not self._over:
                self._latest = found

    @property
    def latest(self) -> Progress | None:
        """The last progress, or None before the first line and once the engine is ready."""
        return self._latest

    def clear(self) -> None:
        """The engine is ready: what it prints from now on is no progress of a start."""
        with self._lock:
            self._over = True
            self._latest = None
