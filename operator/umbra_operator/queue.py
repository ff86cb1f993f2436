"""The work queue: keys, deduplicated, serial per key, retried with a growing delay."""

import asyncio
import heapq
import time
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 30.0


class WorkQueue(Generic[K]):
    """Keys waiting for a worker.

    A key that is added while a worker has it runs again afterwards, once, however often it was added.
    Not for use from other threads.
    """

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._active: set[K] = set()
        self._again: set[K] = set()
        self._delayed: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._order = 0
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker now; delayed ones do not count."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Run ``key`` as soon as a worker is free."""
        if key in self._active:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wake.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Run ``key`` in ``seconds``, or earlier if it is already due earlier."""
        due = time.monotonic() + seconds
        if self._due.get(key, float("inf")) <= due:
            return
        self._due[key] = due
        self._order += 1
        heapq.heappush(self._delayed, (due, self._order, key))
        self._wake.set()

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Run ``key`` again after a failure; returns the delay in seconds, which doubles from 0.1 to 30."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(min(FIRST_RETRY_SECONDS * 2 ** (failures - 1), LAST_RETRY_SECONDS), at_least)
        self.add_after(key, delay)
        return float(delay)

    def forget(self, key: K) -> None:
        """Forget the failures of ``key``: its last run went well."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; the caller must call ``done`` with it."""
        while True:
            delay = self._promote()
            if self._ready:
                key = self._ready.popleft()
                self._waiting.discard(key)
                self._active.add(key)
                return key
            self._wake.clear()
            # Not wait_for: on Python 3.11 that loses a cancellation that comes together with what it waits for.
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._wake.wait()

    def done(self, key: K) -> None:
        """A worker has finished ``key``."""
        self._active.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _promote(self) -> float | None:
        """Moves due keys to the ready ones; returns seconds until the next is due, None when there is none."""
        now = time.monotonic()
        while self._delayed:
            due, _, key = self._delayed[0]
            if self._due.get(key) != due:
                heapq.heappop(self._delayed)
            elif due <= now:
                heapq.heappop(self._delayed)
                del self._due[key]
                self.add(key)
            else:
                return due - now
        return None
