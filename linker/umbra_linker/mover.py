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

    def exists(self, pages: Sequence[str], keys_of: Callable[[Sequence[str]], list[str]]) -> list[bool]:
        """Return for each page whether all of its objects exist.

        Args:
            pages: hashes.
            keys_of: gives the object keys of some pages, equally many for each, page by page.
        """

        def some_exist(span: slice) -> list[bool]:
            keys = keys_of(pages[span])
            found = self.store.exists(keys)
            per_page = len(keys) // len(pages[span])
            return [all(found[i : i + per_page]) for i in range(0, len(found), per_page)]

        return _flat(self._exists_calls.map(some_exist, spans(len(pages), self._pages)))

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


def _flat(chunks: list[list[bool]]) -> list[bool]:
    return [answer for chunk in chunks for answer in chunk]
