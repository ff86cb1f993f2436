"""Lookups: asked on a thread of their own, waited for no longer than a deadline, and not asked of a late store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .breaker import Breaker
from .metrics import LinkerMetrics
from .planning import MissReason, miss_reason
from .recent import RecentPages
from .transfers import DeadlineCalls, LateError

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """What a rank has found of the pages that it asked for."""

    lengths: list[int]
    """The restorable prefix lengths in pages, ascending."""
    kv_present: list[bool]
    """For a first part of the pages, whether the KV page exists."""
    without_draft: int
    """The longest of these lengths if the pages of a draft model did not count."""


class Lookups:
    """One rank's lookups. Ranks need no agreement about time here: SGLang takes the shortest of their answers."""

    def __init__(self, metrics: LinkerMetrics, recent: RecentPages, rank: int) -> None:
        """``recent`` tells a page that was evicted from one that was never stored."""
        self._metrics = metrics
        self._recent = recent
        self._calls: DeadlineCalls[Found] = DeadlineCalls(f"umbra-lookup-{rank}")
        self._breaker = Breaker()
        metrics.breaker(False)

    def ask(
        self, rid: str, pages: Sequence[str], look_up: Callable[[], Found], seconds: float
    ) -> tuple[list[int], MissReason | None]:
        """Return the restorable lengths, and why they end before the last page; None when they do not.

        A store that gives no usable answer within ``seconds`` is a miss. ``look_up`` runs on the lookup's thread.
        """
        if self._breaker.open:
            return [], MissReason.BREAKER
        try:
            found = self._calls.call(look_up, seconds)
        except LateError as error:
            self._breaker.late()
            self._metrics.breaker(True)
            logger.warning("lookup: %s; lookups are misses until the store answers again", error)
            return [], MissReason.DEADLINE
        except Exception:
            logger.exception("lookup of %d pages failed and counts as a miss: request %s", len(pages), rid)
            return [], MissReason.ERROR
        self._breaker.answered()
        hit = found.lengths[-1] if found.lengths else 0
        if hit == len(pages):
            return found.lengths, None
        return found.lengths, miss_reason(pages, found.kv_present, hit, self._recent, without_draft=found.without_draft)

    def mend(self, store_speaks: Callable[[], bool]) -> None:
        """Let lookups ask again if it is time, no call is stuck in the store, and the store speaks.

        For one other thread, which ``store_speaks`` may hold up.
        """
        if not self._breaker.due() or self._calls.busy or not store_speaks():
            return
        self._breaker.mend()
        self._metrics.breaker(False)
        logger.warning("the store answers again; lookups ask it")
