"""What the store's answers may look like, and which calls are under way."""

from __future__ import annotations

import pytest

from umbra_linker.store import CallClock, MoriStore, Operation, StoreError


class _Client:
    """Answers every call with ``answers``."""

    def __init__(self, answers: list[int]) -> None:
        self.batch_exists = self.batch_get_ranges_into_ptr = self.batch_put_ranges_from_ptr = lambda *a: answers


def call(store: MoriStore, operation: Operation) -> list[bool]:
    """Call about two objects."""
    ranges = [[1], [1]]
    if operation is Operation.EXISTS:
        return store.exists(["a", "b"])
    if operation is Operation.READ:
        return store.read(["a", "b"], ranges, ranges, ranges)
    if operation is Operation.CHECK:
        return store.check(["a", "b"], ranges, ranges, ranges)
    if operation is Operation.TOUCH:
        return store.touch(["a", "b"], ranges, 1)
    return store.write(["a", "b"], [1, 1], ranges, ranges, ranges)


@pytest.mark.parametrize("operation", Operation)
def test_each_call_is_timed_and_answered_in_order(operation: Operation) -> None:
    seen: list[tuple[Operation, float]] = []
    now = iter([1.0, 3.5])
    calls = CallClock(lambda op, seconds: seen.append((op, seconds)), clock=lambda: next(now))
    assert call(MoriStore(_Client([1, 0]), calls), operation) == [True, False]
    assert seen == [(operation, 2.5)]


@pytest.mark.parametrize("operation", Operation)
def test_a_missing_answer_is_an_error_not_a_guess(operation: Operation) -> None:
    store = MoriStore(_Client([1]), CallClock(lambda op, seconds: None))
    with pytest.raises(StoreError, match=r"1 answers to (exists|read|write|touch|check) of 2 objects"):
        call(store, operation)


def test_the_oldest_call_is_seen_while_it_runs() -> None:
    now = [10.0]
    calls = CallClock(lambda op, seconds: None, clock=lambda: now[0])
    with calls.running(Operation.READ):
        now[0] = 12.0
        with calls.running(Operation.EXISTS):
            now[0] = 15.0
            assert calls.oldest_seconds() == calls.oldest_seconds(Operation.READ) == 5.0
            assert calls.oldest_seconds(Operation.EXISTS) == 3.0
            assert calls.oldest_seconds(Operation.WRITE) == 0.0
    assert calls.oldest_seconds() == 0.0
