"""The canary looks at parts of objects, twice, within its budget, and fails no offload."""

from __future__ import annotations

import time
from typing import Any

import prometheus_client
import pytest

from umbra_linker.batch import ObjectBatch
from umbra_linker.canary import LEASE_SECONDS, MOST_LEASED, SAMPLE_BYTES, Canary, part_of
from umbra_linker.metrics import LinkerMetrics
from umbra_linker.store import Operation

RESULTS = ("equal", "different", "unmeasured")


class _Memory:
    """A store, a device and a scratch that are byte strings; addresses count from 0 in each."""

    scratch: int | None = 0

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.pools = b""
        self.read = b""
        self.now = 0.0

    def exists(self, keys: list[str], operation: Operation) -> list[bool]:
        assert operation is Operation.CHECK, "no lookup waits for it"
        return [key in self.objects for key in keys]

    def check(self, keys: list[str], pointers: Any, lengths: Any, offsets: Any) -> list[bool]:
        (key,), (length,), (offset,) = keys, lengths, offsets
        if key not in self.objects:
            return [False]
        self.read = _joined(self.objects[key], offset, length)
        return [True]

    def written(self, size: int) -> bytes:
        return self.read[:size]

    def device(self, pointers: list[int], lengths: list[int]) -> bytes:
        return _joined(self.pools, pointers, lengths)

    def put(self, batch: ObjectBatch) -> list[bool]:
        for key, pointers, lengths in zip(batch.keys, batch.pointers, batch.lengths, strict=True):
            self.objects.setdefault(key, _joined(self.pools, pointers, lengths))
        return [True] * len(batch.keys)


def _joined(content: bytes, begins: list[int], sizes: list[int]) -> bytes:
    return b"".join(content[at : at + size] for at, size in zip(begins, sizes, strict=True))


@pytest.fixture
def memory() -> _Memory:
    """Three objects of 8 bytes in two ranges each are on the device."""
    memory = _Memory()
    memory.pools = bytes(range(24))
    return memory


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    """A registry of our own, so that tests do not meet."""
    return prometheus_client.CollectorRegistry()


def _canary(memory: _Memory, registry: prometheus_client.CollectorRegistry) -> Canary:
    return Canary(memory, LinkerMetrics(0, registry=registry), memory, lambda: memory.now)  # type: ignore[arg-type]


def _batch(*keys: str) -> ObjectBatch:
    batch = ObjectBatch("kv", 1)
    for number, key in enumerate(keys):
        batch.add(0, [key], [8], ([[8 * number, 8 * number + 3]], [[3, 5]], [[0, 3]]))
    return batch


def _found(registry: prometheus_client.CollectorRegistry) -> dict[str, int]:
    name = "umbra_linker_canary_objects_total"
    values = {one: registry.get_sample_value(name, {"rank": "0", "pool": "kv", "result": one}) for one in RESULTS}
    return {one: int(value) for one, value in values.items() if value}


def test_parts_cover_an_object_whose_ranges_are_larger_than_a_sample() -> None:
    size, half = 5 * SAMPLE_BYTES // 2, SAMPLE_BYTES // 2
    batch = ObjectBatch("mamba", 1)
    batch.add(0, ["other"], [8], ([[0]], [[8]], [[0]]))
    batch.add(0, ["state"], [size], ([[1000, 0]], [[size - 10, 10]], [[0, size - 10]]))
    parts = [part_of(batch, 2 * number + 1) for number in range(3)]
    assert [part.offsets for part in parts] == [[0], [SAMPLE_BYTES], [2 * SAMPLE_BYTES, size - 10]]
    assert [part.pointers for part in parts] == [[1000], [1000 + SAMPLE_BYTES], [1000 + 2 * SAMPLE_BYTES, 0]]
    assert [part.lengths for part in parts] == [[SAMPLE_BYTES], [SAMPLE_BYTES], [half - 10, 10]]
    assert {part.key for part in parts} == {"state"}
    assert part_of(batch, 7) == parts[0]
    assert part_of(batch, 0).key == "other"


def test_a_sample_is_looked_at_once_more_and_then_never_again(
    memory: _Memory, registry: prometheus_client.CollectorRegistry
) -> None:
    canary = _canary(memory, registry)
    assert canary.watch(_batch("a"), memory.put) == [True]
    assert _found(registry) == {"equal": 1}
    canary.watch(_batch("b"), lambda batch: [False])
    assert _found(registry) == {"equal": 1}, "it was not due, and what was not written is not looked for"
    memory.now = 3600.0
    memory.objects["a"] = bytes(8)
    for _ in range(3):
        canary.watch(_batch("c"), lambda batch: [False])
    assert _found(registry) == {"equal": 1, "different": 1}


def test_an_object_that_was_evicted_and_written_anew_is_no_difference(
    memory: _Memory, registry: prometheus_client.CollectorRegistry
) -> None:
    canary = _canary(memory, registry)
    canary.watch(_batch("a"), memory.put)
    memory.objects.clear()
    memory.pools = bytes(reversed(memory.pools))
    memory.now = 3600.0
    canary.watch(_batch("a"), memory.put)
    assert _found(registry) == {"equal": 2}


def test_an_object_that_is_gone_is_not_measured(memory: _Memory, registry: prometheus_client.CollectorRegistry) -> None:
    canary = _canary(memory, registry)
    canary.watch(_batch("a"), lambda batch: [True])
    assert _found(registry) == {"unmeasured": 1}


@pytest.mark.parametrize("call", ["exists", "check", "device"])
def test_what_the_canary_cannot_do_fails_no_offload(
    memory: _Memory, registry: prometheus_client.CollectorRegistry, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*unused: Any) -> Any:
        raise RuntimeError("the store is gone")

    canary = _canary(memory, registry)
    setattr(memory, call, fail)
    for number in range(3):
        assert canary.watch(_batch(f"a{number}", f"b{number}"), memory.put) == [True, True]
    assert _found(registry) == {}
    assert len(caplog.records) == 1, "told once"


def test_without_memory_that_the_store_takes_nothing_is_looked_at(
    memory: _Memory, registry: prometheus_client.CollectorRegistry
) -> None:
    memory.scratch = None
    assert _canary(memory, registry).watch(_batch("a"), memory.put) == [True]
    assert _found(registry) == {}
    assert memory.read == b""


def test_no_more_objects_than_a_few_are_kept_from_eviction_at_once(
    memory: _Memory, registry: prometheus_client.CollectorRegistry
) -> None:
    canary = _canary(memory, registry)
    for number in range(3 * MOST_LEASED):
        canary.watch(_batch(f"object {number}"), memory.put)
    assert _found(registry) == {"equal": MOST_LEASED}
    memory.now = LEASE_SECONDS
    canary.watch(_batch("later"), memory.put)
    assert _found(registry) == {"equal": MOST_LEASED + 1}


def test_looking_takes_no_more_of_a_core_than_its_budget(
    memory: _Memory, registry: prometheus_client.CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = iter(range(10_000))
    # Each look takes 10 ms, and 200 batches a second are written.
    monkeypatch.setattr(time, "thread_time", lambda: next(used) / 100)
    canary = _canary(memory, registry)
    for number in range(4_000):
        memory.now = number / 200
        canary.watch(_batch(f"object {number}"), memory.put)
    spent = registry.get_sample_value("umbra_linker_canary_cpu_seconds_total", {"rank": "0"})
    assert spent is not None
    assert 0.1 <= spent <= 0.21, "1 % of a core in any 10 s, and one look beyond"
