"""A store that knows what is asked for next: how much a better choice of victims could win.

It first replays against a store that never evicts and notes each request, then replays the same requests at the same
times. It keeps what is restored from the store soonest; then what is asked for soonest. What is
never asked for is not stored. This is greedy, and each object is weighed alone: a reference, and no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from umbra_sim.cache import Cache, Lookup
from umbra_sim.replay import Step
from umbra_sim.tier import Objects, Pool, Tier
from umbra_sim.trace import Pages

_NEVER = np.iinfo(np.int32).max
_SECOND = 1 << 30
"""Added to the time of a use that only the device needs; more than requests in any replay."""
_Times = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Future:
    """For each request and each page of its prompt, when the page and the checkpoint at its end are needed next."""

    kv: Sequence[_Times]
    checkpoints: Sequence[_Times]
    page_numbers: int


def future(steps: Sequence[Step], found: Sequence[Lookup], page_numbers: int) -> Future:
    """Look ahead, from the last request to the first.

    Args:
        steps: the requests, without answers.
        found: what each found in a store that never evicts.
        page_numbers: all pages have lower numbers.
    """
    kv, kv_any, checkpoint, checkpoint_any = (np.full(page_numbers, _NEVER, np.int32) for _ in range(4))
    kv_after: list[_Times] = []
    checkpoint_after: list[_Times] = []
    for number in range(len(steps) - 1, -1, -1):
        pages, lookup = steps[number].pages, found[number]
        kv_after.append(_next(kv[pages], kv_any[pages]))
        checkpoint_after.append(_next(checkpoint[pages], checkpoint_any[pages]))
        kv_any[pages[: lookup.asked]] = checkpoint_any[pages[: lookup.asked]] = number
        if lookup.hit > lookup.device:
            kv[pages[lookup.device : lookup.hit]] = number
            checkpoint[pages[lookup.hit - 1]] = number
    return Future(kv_after[::-1], checkpoint_after[::-1], page_numbers)


def _next(restored: _Times, asked: _Times) -> _Times:
    later = np.where(asked < _NEVER, asked + _SECOND * (asked < _NEVER), _NEVER)
    return np.where(restored < _NEVER, restored, later).astype(np.int32)


class ForesightTier(Tier):
    """The store."""

    def __init__(
        self, kv_bytes: int, checkpoint_bytes: int, capacity: int, marks: tuple[int, int], known: Future
    ) -> None:
        super().__init__(kv_bytes, checkpoint_bytes, capacity, *marks)
        self._known = known
        self._request = -1
        # What an answer adds is never asked for.
        self._needed = {pool: np.full(known.page_numbers, _NEVER, np.int32) for pool in (self.kv, self.checkpoints)}

    def begin(self, pages: Pages) -> None:
        """The next request begins, with these pages."""
        self._request += 1
        self._needed[self.kv][pages] = self._known.kv[self._request]
        self._needed[self.checkpoints][pages] = self._known.checkpoints[self._request]

    def put(self, objects: Objects, now: float) -> None:
        """Store only what is asked for again."""
        super().put([(pool, pages[self._needed[pool][pages] < _NEVER]) for pool, pages in objects], now)

    def _use(self, pool: Pool, pages: Pages) -> None:
        pool.stamps[pages] = 1

    def _evict(self) -> None:
        for_each = [(pool, np.flatnonzero(pool.stamps > 0)) for pool in (self.kv, self.checkpoints)]
        needed = np.concatenate([self._needed[pool][pages] for pool, pages in for_each])
        sizes = np.concatenate([np.full(len(pages), pool.size) for pool, pages in for_each])
        latest = np.argsort(-needed, kind="stable")
        count = int(np.searchsorted(np.cumsum(sizes[latest]), self.used - self._low)) + 1
        gone = latest[:count]
        first = 0
        for pool, pages in for_each:
            mine = gone[(gone >= first) & (gone < first + len(pages))] - first
            self._drop(pool, pages[mine])
            first += len(pages)


class ForesightCache(Cache):
    """An engine whose store is a ``ForesightTier``."""

    tier: ForesightTier

    def prefill(self, pages: Pages, prompt: int, now: float) -> Lookup:
        """Tell the store first."""
        self.tier.begin(pages)
        return super().prefill(pages, prompt, now)
