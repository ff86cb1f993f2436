"""The write policy sees what a node adds to the store, by all ranks together."""

from __future__ import annotations

import prometheus_client
import pytest

from umbra_linker.metrics import LinkerMetrics
from umbra_linker.settings import Checkpoints, Settings
from umbra_linker.writing import Node, Writing

PAGE, CHUNK = 64, 8192
KV, STATE = 1 << 20, 1 << 30


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    """A registry of our own, so that tests do not meet."""
    return prometheus_client.CollectorRegistry()


def _writing(registry: prometheus_client.CollectorRegistry, store_bytes: int) -> Writing:
    settings = Settings(checkpoints=Checkpoints.ADAPTIVE, store_bytes=store_bytes)
    sizes = {"kv": KV, "mamba": STATE}
    return Writing(settings, LinkerMetrics(0, registry=registry), sizes, page=PAGE, chunk=CHUNK, grid=PAGE)


def _chunk_ends(writing: Writing, restored: int) -> list[bool]:
    nodes = (Node(CHUNK * n, CHUNK * (n + 1), prompt=1 << 20, restored=restored) for n in range(8))
    return [writing.keeps_checkpoint(node) for node in nodes]


def test_what_was_restored_adds_nothing_to_the_store(registry: prometheus_client.CollectorRegistry) -> None:
    """A long restored prompt must not look like a fast writer: its objects are in the store already."""
    store = 60 * 30 * CHUNK // PAGE * KV
    assert not all(_chunk_ends(_writing(registry, store), restored=0))
    other = prometheus_client.CollectorRegistry()
    assert all(_chunk_ends(_writing(other, store), restored=8 * CHUNK))


def test_dropped_checkpoints_are_counted_by_where_they_stand(registry: prometheus_client.CollectorRegistry) -> None:
    writing = _writing(registry, 1)
    writing.agree(5)
    assert writing.now_ms == 5
    assert writing.keeps_checkpoint(Node(0, CHUNK, prompt=CHUNK))
    assert not writing.keeps_checkpoint(Node(0, CHUNK, prompt=10 * CHUNK))
    assert not writing.keeps_checkpoint(Node(CHUNK, 2 * CHUNK, prompt=CHUNK))
    assert writing.keeps_checkpoint(Node(0, CHUNK, prompt=None)), "nobody knows what it is: better stored than lost"

    def dropped(boundary: str) -> float | None:
        labels = {"rank": "0", "boundary": boundary}
        return registry.get_sample_value("umbra_linker_dropped_checkpoints_total", labels)

    assert (dropped("chunk_end"), dropped("decode_end")) == (1, 1)
