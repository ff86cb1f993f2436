"""Progress lines: what is being done, how long it took the last time, how long it takes now."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from . import cache

HEARTBEAT_SECONDS = 30.0


class Progress:
    """Plain lines with the seconds since the start in front; without `out` nothing is said, only remembered."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._start = time.monotonic()

    def note(self, text: str) -> None:
        """Say one line."""
        if self._out:
            print(f"{time.monotonic() - self._start:7.1f}s  {text}", file=self._out, flush=True)

    @contextmanager
    def step(self, name: str, text: str, *, remember: bool = True) -> Iterator[None]:
        """Say what begins and what ended, and give a sign of life every half a minute between.

        `name` keys the remembered duration; without `remember` nothing is written.
        """
        last = cache.last_duration(name)
        self.note(text + (f" (took {last:.0f} s last time)" if last and last >= 1 else ""))
        start, ended = time.monotonic(), threading.Event()

        def heartbeat() -> None:
            while not ended.wait(HEARTBEAT_SECONDS):
                self.note(f"{text}: {time.monotonic() - start:.0f} s so far")

        thread = threading.Thread(target=heartbeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        took = time.monotonic() - start
        if remember:
            cache.remember_duration(name, took)
        if took >= 1:
            self.note(f"{text}: done in {took:.1f} s")
