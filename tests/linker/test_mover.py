"""Work is cut into bounded calls in parallel, and answers come back as if it had been one."""

from __future__ import annotations

from collections.abc import Sequence

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.batch import ObjectBatch
from umbra_linker.metrics import LinkerMetrics
from umbra_linker.mover import Mover
from umbra_linker.settings import Settings
from umbra_linker.store import StoreError


class _Store:
    """Has some objects, and fails a call that holds a poisoned one."""

    def __init__(self, present: set[str], poisoned: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.present, self.poisoned = present, poisoned
        self.calls: list[list[str]] = []

    def exists(self, keys: Sequence[str]) -> list[bool]:
        self.calls.append(list(keys))
        if self.poisoned & set(keys):
            raise StoreError("no answer")
        return [key in self.present for key in keys]

    def read(self, keys: Sequence[str], *ranges: object) -> list[bool]:
        return self.exists(keys)

    def write(self, keys: Sequence[str], sizes: Sequence[int], *ranges: object) -> list[bool]:
        return self.exists(keys)


def mover_of(store: _Store, *, pages: int = 4, calls: int = 3) -> tuple[Mover, prometheus_client.CollectorRegistry]:
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
    assert mover.exists(names, keys_of) == [page in present for page in range(30)]
    assert sorted(key for call in store.calls for key in call) == sorted(keys_of(names))
    assert max(map(len, store.calls)) <= 2 * pages


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
