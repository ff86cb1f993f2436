"""What the linker asks of the store, and the mori client that answers.

A call names whole objects: an object's ranges are never spread over two calls, because the store checks that a write
covers its object exactly. Answers come back in the order of the keys.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, Protocol

Ranges = Sequence[Sequence[int]]
"""Per object, one number for each of its ranges: addresses, lengths in bytes, or offsets inside the object."""


class StoreError(RuntimeError):
    """The store answered something that cannot be an answer; nothing may be concluded from it."""


class Operation(StrEnum):
    """A kind of call to the store; the label ``op`` of the metrics."""

    EXISTS = "exists"
    READ = "read"
    WRITE = "write"
    TOUCH = "touch"
    CHECK = "check"


class Store(Protocol):
    """A store of named objects. Every method may be called from several threads, and blocks without a bound."""

    def exists(self, keys: Sequence[str], operation: Operation = Operation.EXISTS) -> list[bool]:
        """Return for each key whether the store has the object now; ``operation`` says for whom it is asked."""

    def read(self, keys: Sequence[str], pointers: Ranges, lengths: Ranges, offsets: Ranges) -> list[bool]:
        """Copy ranges of each object to memory; False where the object is gone or could not be read.

        Memory behind a False may hold anything.
        """

    def write(
        self, keys: Sequence[str], sizes: Sequence[int], pointers: Ranges, lengths: Ranges, offsets: Ranges
    ) -> list[bool]:
        """Store each object of ``sizes`` bytes from memory; True where the store has it afterwards."""

    def check(self, keys: Sequence[str], pointers: Ranges, lengths: Ranges, offsets: Ranges) -> list[bool]:
        """Do what ``read`` does where no request waits for it."""

    def touch(self, keys: Sequence[str], pointers: Ranges, size: int) -> list[bool]:
        """Count each object as used now; True where the store has it. May write ``size`` bytes at its pointer."""


class CallClock:
    """Which calls are under way. Read it from another thread: a call that never returns stays visible."""

    def __init__(
        self, observe: Callable[[Operation, float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``observe`` gets the seconds of each call that ended."""
        self._observe = observe
        self._clock = clock
        self._tickets = itertools.count()
        self._running: dict[int, tuple[Operation, float]] = {}

    @contextmanager
    def running(self, operation: Operation) -> Iterator[None]:
        """Count the block as one call."""
        ticket, begin = next(self._tickets), self._clock()
        self._running[ticket] = (operation, begin)
        try:
            yield
        finally:
            del self._running[ticket]
            self._observe(operation, self._clock() - begin)

    def oldest_seconds(self, only: Operation | None = None) -> float:
        """Return for how long the oldest call, or the oldest of one kind, has been under way; 0 without any."""
        begun = [begin for operation, begin in list(self._running.values()) if only in (None, operation)]
        return max(0.0, self._clock() - min(begun)) if begun else 0.0


class MoriStore:
    """The store behind a mori client with ranged I/O. The client releases the GIL during each call."""

    def __init__(self, client: Any, calls: CallClock) -> None:
        """``client`` is connected and has every buffer registered; it may be exchanged between calls."""
        self.client = client
        self._calls = calls

    def exists(self, keys: Sequence[str], operation: Operation = Operation.EXISTS) -> list[bool]:
        """See ``Store.exists``."""
        with self._calls.running(operation):
            answers = self.client.batch_exists(list(keys))
        return _one_each(answers, keys, operation)

    def read(self, keys: Sequence[str], pointers: Ranges, lengths: Ranges, offsets: Ranges) -> list[bool]:
        """See ``Store.read``."""
        with self._calls.running(Operation.READ):
            answers = self.client.batch_get_ranges_into_ptr(keys, pointers, lengths, offsets)
        return _one_each(answers, keys, Operation.READ)

    def write(
        self, keys: Sequence[str], sizes: Sequence[int], pointers: Ranges, lengths: Ranges, offsets: Ranges
    ) -> list[bool]:
        """See ``Store.write``."""
        with self._calls.running(Operation.WRITE):
            answers = self.client.batch_put_ranges_from_ptr(keys, sizes, pointers, lengths, offsets)
        return _one_each(answers, keys, Operation.WRITE)

    def check(self, keys: Sequence[str], pointers: Ranges, lengths: Ranges, offsets: Ranges) -> list[bool]:
        """See ``Store.check``."""
        with self._calls.running(Operation.CHECK):
            answers = self.client.batch_get_ranges_into_ptr(keys, pointers, lengths, offsets)
        return _one_each(answers, keys, Operation.CHECK)

    def touch(self, keys: Sequence[str], pointers: Ranges, size: int) -> list[bool]:
        """See ``Store.touch``. The store's client has no such call: a short read counts as a use."""
        with self._calls.running(Operation.TOUCH):
            answers = self.client.batch_get_ranges_into_ptr(
                list(keys), list(pointers), [[size]] * len(keys), [[0]] * len(keys)
            )
        return _one_each(answers, keys, Operation.TOUCH)


def _one_each(answers: Any, keys: Sequence[str], operation: Operation) -> list[bool]:
    checked = [bool(answer) for answer in answers]
    if len(checked) != len(keys):
        raise StoreError(f"the store gave {len(checked)} answers to {operation} of {len(keys)} objects")
    return checked
