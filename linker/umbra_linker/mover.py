"""Moves objects through the store in bounded parallel calls, and counts what was moved. No SGLang, no tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from .batch import ObjectBatch, spans
from .metrics import LinkerMetrics
from .settings import Settings
from .store import Store
from .transfers import ParallelCalls

logger = logging.getLogger(__name__)

MOST_NAME_BYTES = 32 << 20
"""Bytes of object names that one existence check carries: the tested store calls all absent in one beyond 64 MiB."""

KeysOf = Callable[[Sequence[str]], list[str]]
"""Gives the object keys of some pages in one pool: equally many and equally long for each page, page by page."""


class Mover:
    """Cuts work into calls of at most ``chunk_pages`` pages, at most ``rpc_parallelism`` of them at once."""

    def __init__(
        self, store: Store, settings: Settings, metrics: LinkerMetrics, *, most_ranges: int, rank: int
    ) -> None:
        """``most_ranges`` bounds the ranges in a call, so that its message fits; ``rank`` names threads."""
        self.store = store
        self._pages = settings.chunk_pages
        self._most_ranges = most_ranges
        self._metrics = metrics
        # Calls of each kind have their own threads, so that a lookup never waits behind an offload.
        self._exists_calls, self._read_calls, self._write_calls = (
            ParallelCalls(settings.rpc_parallelism, f"umbra-{kind}-{rank}") for kind in ("exists", "read", "write")
        )

    def configure(self, settings: Settings) -> None:
        """Take other bounds from the next call on."""
        self._pages = settings.chunk_pages
        for calls in (self._exists_calls, self._read_calls, self._write_calls):
            calls.limit = settings.rpc_parallelism

    def exists(self, pages: Sequence[str], pools: Sequence[KeysOf]) -> list[list[bool]]:
        """Return for each page whether all of its objects in a pool exist: for each pool, or for the first one only.

        All pools are asked in one call where it can carry them; else the first one is, in as many calls as it takes,
        and the answer may spare the caller the rest.

        Args:
            pages: hashes, at least one.
            pools: at least one.
        """
        if self._pages_in_a_call(pages, pools) >= len(pages):
            keys = [keys_of(pages) for keys_of in pools]
            found = iter(self.store.exists([key for some in keys for key in some]))
            return [_whole_pages([next(found) for _ in some], len(pages)) for some in keys]

        def some_exist(span: slice) -> list[bool]:
            return _whole_pages(self.store.exists(pools[0](pages[span])), len(pages[span]))

        cut = spans(len(pages), max(1, self._pages_in_a_call(pages, pools[:1])))
        return [_flat(self._exists_calls.map(some_exist, cut))]

    def _pages_in_a_call(self, pages: Sequence[str], pools: Sequence[KeysOf]) -> int:
        size = sum(len(key.encode()) for keys_of in pools for key in keys_of(pages[:1]))
        return min(self._pages // len(pools), MOST_NAME_BYTES // size)

    def read(self, batch: ObjectBatch) -> list[bool]:
        """Read the ranges of every object; see ``Store.read``."""

        def read(span: slice) -> list[bool]:
            return self.store.read(batch.keys[span], batch.pointers[span], batch.lengths[span], batch.offsets[span])

        return _flat(self._read_calls.map(read, self._spans(batch)))

    def write(self, batch: ObjectBatch) -> list[bool]:
        """Write every object; see ``Store.write``. A call that ends in an error wrote none of its objects."""

        def write(span: slice) -> list[bool]:
            keys, sizes = batch.keys[span], batch.sizes[span]
            try:
                return self.store.write(keys, sizes, batch.pointers[span], batch.lengths[span], batch.offsets[span])
            except Exception:
                logger.exception("a write of %d objects failed", len(keys))
                return [False] * len(keys)

        answers = _flat(self._write_calls.map(write, self._spans(batch)))
        landed = sum(answers)
        if landed < len(answers):
            logger.warning("offload failed: pool %s, %d of %d objects", batch.pool, len(answers) - landed, len(answers))
        size = sum(size for size, answer in zip(batch.sizes, answers, strict=True) if answer)
        self._metrics.stored(batch.pool, objects=landed, size=size)
        return answers

    def _spans(self, batch: ObjectBatch) -> list[slice]:
        return batch.spans(most_objects=self._pages * batch.per_page, most_ranges=self._most_ranges)


def _whole_pages(found: list[bool], pages: int) -> list[bool]:
    per_page = len(found) // pages
    return [all(found[i : i + per_page]) for i in range(0, len(found), per_page)]


def _flat(chunks: list[list[bool]]) -> list[bool]:
    return [answer for chunk in chunks for answer in chunk]
