"""The canary: whether the store gives back the bytes that were written, on a sample of what this rank stores.

A sample is looked at twice: right after it was written, against the device, whose rows are still locked then; and once
more some minutes later, against a digest. Nothing is decided by what is found: it is counted and told.

The store keeps the first bytes of a name, and a prompt that is computed again has other bytes in the last digits. So
only an object that the store did not have can be compared, and a name that is written again is forgotten.
"""

from __future__ import annotations

import hashlib
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from .batch import ObjectBatch
from .budget import CpuBudget
from .metrics import LinkerMetrics
from .planning import CanaryResult
from .store import Operation, Store

logger = logging.getLogger(__name__)

Found = TypeVar("Found")

SAMPLE_BYTES = 1 << 20
"""Compared of an object at a time; of a larger one the next part the next time."""
MOST_REMEMBERED = 64
"""Samples that wait for their second look, each of which the store keeps a little longer for it."""
LEASE_SECONDS = 0.5
"""So long the store keeps what was read from eviction (UMBP_DRAM_READ_LEASE_MS of mori 1.2.4)."""
MOST_LEASED = 1
"""Objects that a rank keeps so at once: a small store that can evict nothing else gives up what is written next."""
AGAIN_SECONDS = (60, 120, 240, 480, 960)
"""Until the second look; which of them, the object's name says."""


class Memory(Protocol):
    """What may be compared: the device's memory, and some that the store may write to."""

    @property
    def scratch(self) -> int | None:
        """Address of ``SAMPLE_BYTES`` bytes that the store may write to; None while there are none."""

    def written(self, size: int) -> bytes:
        """Return the first bytes of the scratch."""

    def device(self, pointers: list[int], lengths: list[int]) -> bytes:
        """Return ranges of the device's pools, one after the other."""


@dataclass(frozen=True, slots=True)
class Part:
    """Ranges of one object, ``SAMPLE_BYTES`` together at most."""

    pool: str
    key: str
    index: int
    """Of the object in its batch."""
    pointers: list[int]
    lengths: list[int]
    offsets: list[int]


@dataclass(frozen=True, slots=True)
class _Remembered:
    part: Part
    digest: bytes
    due: float


class Canary:
    """One rank's canary. For the thread that writes."""

    def __init__(
        self, store: Store, metrics: LinkerMetrics, memory: Memory, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``clock`` gives monotonic seconds."""
        self._store = store
        self._metrics = metrics
        self._memory = memory
        self._clock = clock
        self._budget = CpuBudget()
        self._chosen = 0
        self._remembered: dict[str, _Remembered] = {}
        """By key."""
        self._read: deque[float] = deque(maxlen=MOST_LEASED)
        """When the last objects were read."""
        self._failing = False

    def watch(self, batch: ObjectBatch, write: Callable[[ObjectBatch], list[bool]]) -> list[bool]:
        """Write a batch and return what ``write`` does; look at one of its objects, and at an earlier one."""
        for key in batch.keys:
            self._remembered.pop(key, None)
        part = self._bounded(partial(self._choose, batch))
        answers = write(batch)
        if part is not None and answers[part.index]:
            self._bounded(partial(self._compare, part))
        self._bounded(self._look_again)
        return answers

    def _bounded(self, look: Callable[[], Found]) -> Found | None:
        """Do it where the budget allows; what fails here must fail no offload."""
        found = None
        if self._memory.scratch is None or not self._leases_left() or not self._budget.allows(self._clock(), 1):
            return None
        begin = time.thread_time()
        try:
            found = look()
        except Exception:
            # Told once: a store that is gone fails every look until it is back.
            if not self._failing:
                logger.exception("the canary could not look at what was stored")
            self._failing = True
        used = time.thread_time() - begin
        self._budget.spend(self._clock(), 1, used)
        self._metrics.canary_used(used)
        return found

    def _leases_left(self) -> bool:
        return len(self._read) < MOST_LEASED or self._clock() - self._read[0] >= LEASE_SECONDS

    def _choose(self, batch: ObjectBatch) -> Part | None:
        self._chosen += 1
        # By a digest: what counts on evenly would for ever miss every second object of a page.
        part = part_of(batch, zlib.crc32(b"%d" % self._chosen))
        if self._store.exists([part.key], Operation.CHECK)[0]:
            self._metrics.canary(part.pool, CanaryResult.UNMEASURED)
            return None
        return part

    def _compare(self, part: Part) -> None:
        stored = self._read_back(part)
        if stored is None:
            return
        device = self._memory.device(part.pointers, part.lengths)
        self._tell(part, equal=stored == device)
        if len(self._remembered) < MOST_REMEMBERED and stored == device:
            wait = AGAIN_SECONDS[zlib.crc32(part.key.encode()) % len(AGAIN_SECONDS)]
            self._remembered[part.key] = _Remembered(part, _digest(stored), self._clock() + wait)

    def _look_again(self) -> None:
        now = self._clock()
        due = next((each for each in self._remembered.values() if each.due <= now), None)
        if due is None:
            return
        del self._remembered[due.part.key]
        stored = self._read_back(due.part)
        if stored is not None:
            self._tell(due.part, equal=_digest(stored) == due.digest)

    def _read_back(self, part: Part) -> bytes | None:
        """Return what the store has; None when it has evicted it already."""
        at = self._memory.scratch
        if at is None:
            return None
        into, size = [], 0
        for length in part.lengths:
            into.append(at + size)
            size += length
        self._read.append(self._clock())
        if not self._store.check([part.key], [into], [part.lengths], [part.offsets])[0]:
            self._metrics.canary(part.pool, CanaryResult.UNMEASURED)
            return None
        return self._memory.written(size)

    def _tell(self, part: Part, *, equal: bool) -> None:
        self._failing = False
        self._metrics.canary(part.pool, CanaryResult.EQUAL if equal else CanaryResult.DIFFERENT)
        if not equal:
            logger.error(
                "the store gives back other bytes than were written: pool %s, object %s, %d bytes from byte %d on",
                part.pool, part.key, sum(part.lengths), part.offsets[0],
            )  # fmt: skip


def part_of(batch: ObjectBatch, number: int) -> Part:
    """Return the part of an object of a batch that has this ``number``; any will do."""
    number, index = divmod(number, len(batch.keys))
    parts = -(-batch.sizes[index] // SAMPLE_BYTES)
    begin = number % parts * SAMPLE_BYTES
    pointers, lengths, offsets = [], [], []
    for pointer, length, offset in zip(batch.pointers[index], batch.lengths[index], batch.offsets[index], strict=True):
        first, last = max(offset, begin), min(offset + length, begin + SAMPLE_BYTES)
        if first < last:
            pointers.append(pointer + first - offset)
            lengths.append(last - first)
            offsets.append(first)
    return Part(batch.pool, batch.keys[index], index, pointers, lengths, offsets)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
