"""The store: objects of two kinds, bytes, and one order of recency, as UMBP 1.2.4 keeps them in host memory.

It evicts what was used longest ago once more than the high watermark is used, down to the low one. A put of what is
there, and a question whether it is there, change no order; a read does, or not, as the replay says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from umbra_sim.trace import Pages

ABSENT, EVICTED, MISSED = 0, -1, -2
"""Stamps of what was never stored, of what was evicted, and of what was asked for after that."""


class Pool:
    """Objects of one kind. Each is named by the page that it, or the prefix before it, ends with."""

    def __init__(self, size: int) -> None:
        """Take the bytes of one object, all its copies together."""
        self.size = size
        self.stamps: npt.NDArray[np.int64] = np.zeros(1024, dtype=np.int64)
        """When each was used last, as a count of uses; positive for what is present."""
        self.present = self.written = self.evicted = self.missed = 0
        """Objects that are there; that were put; that were evicted; that were evicted and then asked for."""

    def reserve(self, pages: int) -> None:
        """Make room for page numbers below ``pages``."""
        if pages > len(self.stamps):
            larger = np.zeros(max(pages, 2 * len(self.stamps)), dtype=np.int64)
            larger[: len(self.stamps)] = self.stamps
            self.stamps = larger

    def has(self, pages: Pages) -> npt.NDArray[np.bool_]:
        """Return which are there."""
        return self.stamps[pages] > 0

    def ask(self, pages: Pages) -> npt.NDArray[np.bool_]:
        """Return which are there, and count those that were there once."""
        stamps = self.stamps[pages]
        lost = pages[stamps == EVICTED]
        self.stamps[lost] = MISSED
        self.missed += len(lost)
        return stamps > 0


Objects = Sequence[tuple[Pool, Pages]]
"""Objects in the order in which they are put or touched."""


class Tier:
    """A store."""

    def __init__(self, kv_bytes: int, checkpoint_bytes: int, capacity: int | None, high: int, low: int) -> None:
        """Make an empty store.

        Args:
            kv_bytes: of a page, all copies.
            checkpoint_bytes: of a checkpoint, all ranks.
            capacity: bytes; None never evicts.
            high: percent of the capacity above which it evicts.
            low: percent down to which it does.
        """
        self.kv = Pool(kv_bytes)
        self.checkpoints = Pool(checkpoint_bytes)
        self.used = 0
        self.bytes_written = 0
        self.filled_at: float | None = None
        """Seconds after the beginning when it first evicted."""
        self._capacity = capacity
        self._high = 0 if capacity is None else capacity * high // 100
        self._low = 0 if capacity is None else capacity * low // 100
        self._uses = 0
        # Uses in their order. One that was used again later, or evicted, no longer has the stamp given here.
        self._log: deque[tuple[Pool, Pages, int]] = deque()

    def reserve(self, pages: int) -> None:
        """Make room for page numbers below ``pages``."""
        self.kv.reserve(pages)
        self.checkpoints.reserve(pages)

    def put(self, objects: Objects, now: float) -> None:
        """Store what is not there, then evict."""
        for pool, pages in objects:
            missing = pages[~pool.has(pages)]
            if len(missing):
                self._use(pool, missing)
                pool.present += len(missing)
                pool.written += len(missing)
                self.used += len(missing) * pool.size
                self.bytes_written += len(missing) * pool.size
        if self._capacity is not None and self.used > self._high:
            if self.filled_at is None:
                self.filled_at = now
            self._evict()

    def touch(self, objects: Objects) -> None:
        """Make what is there the latest used."""
        for pool, pages in objects:
            self._use(pool, pages[pool.has(pages)])

    def _use(self, pool: Pool, pages: Pages) -> None:
        if self._capacity is None:
            pool.stamps[pages] = 1
            return
        first = self._uses + 1
        self._uses += len(pages)
        pool.stamps[pages] = np.arange(first, self._uses + 1)
        self._log.append((pool, pages, first))

    def _evict(self) -> None:
        while self.used > self._low:
            pool, pages, first = self._log.popleft()
            live = np.flatnonzero(pool.stamps[pages] == np.arange(first, first + len(pages)))
            most = -(-(self.used - self._low) // pool.size)
            if len(live) > most:
                rest = int(live[most])
                self._log.appendleft((pool, pages[rest:], first + rest))
                live = live[:most]
            self._drop(pool, pages[live])

    def _drop(self, pool: Pool, pages: Pages) -> None:
        pool.stamps[pages] = EVICTED
        pool.present -= len(pages)
        pool.evicted += len(pages)
        self.used -= len(pages) * pool.size
