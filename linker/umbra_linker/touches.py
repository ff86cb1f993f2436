"""Touches: short reads of what the device serves from its own memory, so that the store does not evict it as unused.

The scheduler hands over a hint and goes on; a thread asks. It may use little of a core: what is beyond is dropped. Each
rank asks for its own objects and its stripe of the shared pages, so all of a hint is touched by all ranks together.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from .batch import spans
from .budget import CpuBudget
from .keys import MAMBA_POOL
from .metrics import LinkerMetrics
from .planning import HintResult
from .policy import leaf_first
from .store import Store

logger = logging.getLogger(__name__)

TOUCH_BYTES = 64
"""Read of each object: measured to move it in the store's order as a whole read does."""
MOST_OUTSTANDING = 64
"""Hints that may wait for their answer; the next is dropped, on every rank alike."""
OBJECTS_PER_CALL = 2048
"""A call of so many takes 3 ms, and holds up no other for longer."""


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool whose objects are touched."""

    keys_of: Callable[[Sequence[str]], list[str]]
    """Gives the object keys of some pages, equally many for each, page by page."""
    scratch: Sequence[int]
    """Addresses of registered memory that nobody reads, one for each object of a page."""
    mine: Callable[[Sequence[str]], Sequence[int]]
    """Gives the indices of the pages that this rank touches."""


@dataclass(slots=True)
class _Hint:
    pages: Sequence[str]
    checkpoint: bool
    present: list[bool] | None = None
    """One entry a page and one for the checkpoint; False only where this rank asked and the store has it not."""


class Touches:
    """One rank's touches. The scheduler's thread calls every public method, in one order on all ranks."""

    def __init__(
        self,
        store: Store,
        metrics: LinkerMetrics,
        pools: Mapping[str, Pool],
        rank: int,
    ) -> None:
        """Start the thread; ``pools`` by their names."""
        self._store = store
        self._metrics = metrics
        self._pools = pools
        self._hints: deque[_Hint] = deque()
        self._work: queue.SimpleQueue[_Hint | None] = queue.SimpleQueue()
        """None ends the thread."""
        self._budget = CpuBudget()
        self._failing = False
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"umbra-touch-{rank}")
        self._thread.start()

    def hint(self, pages: Sequence[str], checkpoint: bool) -> bool:
        """Hand over a prefix that the device serves; False where too many wait already.

        Args:
            pages: hashes from the root on.
            checkpoint: whether the one at the end is stored, too.
        """
        if len(self._hints) >= MOST_OUTSTANDING:
            self._metrics.hinted(HintResult.OUTSTANDING)
            return False
        hint = _Hint(pages, checkpoint)
        self._hints.append(hint)
        self._work.put(hint)
        return True

    def answered(self) -> int:
        """Return how many of the oldest hints have their answer."""
        for count, hint in enumerate(self._hints):
            if hint.present is None:
                return count
        return len(self._hints)

    def take(self) -> list[bool]:
        """Return what the oldest hint found: one entry a page, and one for the checkpoint.

        Raises:
            ValueError: when it has no answer.
        """
        hint = self._hints.popleft()
        if hint.present is None:
            raise ValueError("the oldest hint has no answer yet")
        return hint.present

    def forget(self) -> None:
        """Forget all hints; what the store was asked goes on."""
        self._hints.clear()

    def stop(self, seconds: float) -> bool:
        """End the thread, with what waits unasked; False when it still runs after ``seconds``."""
        while not self._work.empty():
            self._work.get()
        self._work.put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        counted = time.thread_time()
        while hint := self._work.get():
            present = [True] * (len(hint.pages) + 1)
            result, pages = HintResult.BUDGET, 0
            if self._budget.allows(time.monotonic(), len(hint.pages)):
                pages = len(hint.pages)
                try:
                    self._touch(hint, present)
                    result = HintResult.TOUCHED
                    self._failing = False
                except Exception:
                    # Told once: a store that is gone fails every hint until it is back. The counter has the rest.
                    if not self._failing:
                        logger.exception("a prefix of %d pages could not be touched", len(hint.pages))
                    self._failing = True
                    present = [True] * (len(hint.pages) + 1)
                    result = HintResult.ERROR
            # All that the thread took since the last hint, so that waking up and counting are in it.
            used = time.thread_time() - counted
            counted += used
            self._budget.spend(time.monotonic(), pages, used)
            self._metrics.hinted(result, cpu_seconds=used)
            hint.present = present

    def _touch(self, hint: _Hint, present: list[bool]) -> None:
        end = len(hint.pages)
        for name, pool in sorted(self._pools.items(), key=lambda item: item[0] != MAMBA_POOL):
            if name == MAMBA_POOL:
                # Its place in the answer is behind the pages; its name is that of the last page.
                places, pages = ([end], hint.pages[-1:]) if hint.checkpoint else ([], [])
            else:
                places = leaf_first(pool.mine(hint.pages))
                pages = [hint.pages[page] for page in places]
            found = self._ask(pool, pages)
            for place, there in zip(places, found, strict=True):
                present[place] &= there
            self._metrics.touched(name, present=sum(found), missing=len(found) - sum(found))

    def _ask(self, pool: Pool, pages: Sequence[str]) -> list[bool]:
        """Touch all objects of these pages; return for each page whether they were all there."""
        found: list[bool] = []
        per_page = len(pool.scratch)
        for span in spans(len(pages), max(1, OBJECTS_PER_CALL // per_page)):
            count = len(pages[span])
            answers = self._store.touch(pool.keys_of(pages[span]), [[at] for at in pool.scratch] * count, TOUCH_BYTES)
            found += [all(answers[i : i + per_page]) for i in range(0, len(answers), per_page)]
        return found
