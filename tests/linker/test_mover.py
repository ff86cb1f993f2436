"""Work is cut into bounded calls in parallel, and answers come back as if it had been one."""

from __future__ import annotations

import types
from collections.abc import Sequence

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.batch import ObjectBatch
from umbra_linker.metrics import LinkerMetrics
from umbra_linker.mover import MOST_NAME_BYTES, Mover
from umbra_linker.settings import Settings
from umbra_linker.store import CallClock, MoriStore, Operation, Store, StoreError


class _Store:
    """Has some objects, and fails a call that holds a poisoned one."""

    def __init__(self, present: set[str], poisoned: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.present, self.poisoned = present, poisoned
        self.calls: list[list[str]] = []

    def exists(self, keys: Sequence[str], operation: Operation = Operation.EXISTS) -> list[bool]:
        self.calls.append(list(keys))
        if self.poisoned & set(keys):
            raise StoreError("no answer")
        return [key in self.present for key in keys]

    def read(self, keys: Sequence[str], *ranges: object) -> list[bool]:
        return self.exists(keys)

    def write(self, keys: Sequence[str], sizes: Sequence[int], *ranges: object) -> list[bool]:
        return self.exists(keys)


def mover_of(store: Store, *, pages: int = 4, calls: int = 3) -> tuple[Mover, prometheus_client.CollectorRegistry]:
    """A mover with calls of ``pages`` pages, and the registry that it counts in."""
    registry = prometheus_client.CollectorRegistry()
    settings = Settings(rpc_parallelism=calls, chunk_pages=pages)
    return Mover(store, settings, LinkerMetrics(0, registry=registry), most_ranges=100, rank=0), registry


def keys_of(pages: Sequence[str]) -> list[str]:
    """Two objects a page."""
    return [f"{page}{part}" for page in pages for part in "kv"]


@given(st.sets(st.integers(0, 29)), st.integers(1, 40), st.integers(1, 4))
def test_a_page_exists_when_all_of_its_objects_do(present: set[int], pages: int, calls: int) -> None:
    names = [f"{page}_" for page in range(30)]
    store = _Store({key for page in present for key in keys_of([f"{page}_"])} | {"7_k"})
    mover, _ = mover_of(store, pages=pages, calls=calls)
    assert mover.exists(names, [keys_of]) == [[page in present for page in range(30)]]
    assert sorted(key for call in store.calls for key in call) == sorted(keys_of(names))
    assert max(map(len, store.calls)) <= 2 * pages


def states_of(pages: Sequence[str]) -> list[str]:
    """One object a page."""
    return [f"{page}state" for page in pages]


def drafts_of(pages: Sequence[str]) -> list[str]:
    """One object a page."""
    return [f"{page}draft" for page in pages]


POOLS = (keys_of, states_of, drafts_of)


@given(st.sets(st.sampled_from([key for pool in POOLS for key in pool("abcd")])))
def test_the_pools_that_one_call_carries_are_asked_in_one_and_each_has_its_own_answer(present: set[str]) -> None:
    store = _Store(present)
    mover, _ = mover_of(store, pages=12)
    kv = [{f"{page}k", f"{page}v"} <= present for page in "abcd"]
    assert mover.exists("abcd", POOLS) == [
        kv,
        [f"{page}state" in present for page in "abcd"],
        [f"{page}draft" in present for page in "abcd"],
    ]
    assert store.calls == [[key for pool in POOLS for key in pool("abcd")]]


@pytest.mark.parametrize("most", [1, 2, 3, 11])
def test_pools_that_one_call_does_not_carry_are_asked_one_after_the_other(most: int) -> None:
    """Whoever asks may learn from the first that the others need not be asked."""
    store = _Store(set(keys_of("acd")) | set(states_of("b")))
    mover, _ = mover_of(store, pages=most)
    assert mover.exists("abcd", POOLS) == [[True, False, True, True]]
    assert sorted(key for call in store.calls for key in call) == sorted(keys_of("abcd"))
    assert max(map(len, store.calls)) <= 2 * most


@pytest.mark.parametrize("length", [10, MOST_NAME_BYTES // 30, MOST_NAME_BYTES // 3])
def test_one_call_carries_no_more_names_than_the_store_takes(length: int) -> None:
    pages = [f"{page}" * length for page in range(6)]
    store = _Store(set(pages[1:]))
    mover, _ = mover_of(store, pages=100)
    found = mover.exists(pages, [list, list])
    assert found[0] == [False, *[True] * 5]
    assert found == [found[0]] * (2 if 12 * length <= MOST_NAME_BYTES else 1)
    assert all(sum(map(len, call)) <= MOST_NAME_BYTES for call in store.calls)


def test_too_few_answers_for_all_pools_together_are_not_divided_among_them() -> None:
    client = types.SimpleNamespace(batch_exists=lambda keys: [True] * (len(keys) - 1))
    mover, _ = mover_of(MoriStore(client, CallClock(lambda *call: None)), pages=12)
    with pytest.raises(StoreError):
        mover.exists("abcd", POOLS)


def batch_of(objects: int) -> ObjectBatch:
    """One object of 10 bytes for each of ``objects`` tasks."""
    batch = ObjectBatch("kv", per_page=1)
    for owner in range(objects):
        batch.add(owner, [str(owner)], [10], ([[0]], [[10]], [[0]]))
    return batch


def test_a_write_that_ends_in_an_error_fails_the_tasks_of_that_call() -> None:
    store = _Store({str(n) for n in range(12)} - {"1"}, poisoned={"5"})
    mover, registry = mover_of(store)
    batch = batch_of(12)
    assert batch.failed_owners(mover.write(batch)) == {1, 4, 5, 6, 7}
    labels = {"rank": "0", "pool": "kv"}
    assert registry.get_sample_value("umbra_linker_stored_objects_total", labels) == 7
    assert registry.get_sample_value("umbra_linker_stored_bytes_total", labels) == 70


def test_a_read_that_ends_in_an_error_is_not_taken_for_an_answer() -> None:
    mover, _ = mover_of(_Store({str(n) for n in range(12)}, poisoned={"5"}))
    with pytest.raises(StoreError):
        mover.read(batch_of(12))
