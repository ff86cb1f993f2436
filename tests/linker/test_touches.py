"""Touches are leaf first, split over the ranks, bounded in CPU time and number, and answered in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest

from umbra_linker.metrics import LinkerMetrics
from umbra_linker.touches import MOST_OUTSTANDING, Pool, Touches


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    """A registry of our own, so that tests do not meet."""
    return prometheus_client.CollectorRegistry()


def _touches(registry: prometheus_client.CollectorRegistry, touch: Any) -> Touches:
    def pool(name: str, objects: int, mine: Any) -> Pool:
        return Pool(lambda pages: [f"{p}/{name}{o}" for p in pages for o in range(objects)], [0] * objects, mine)

    def every(pages: Sequence[str]) -> range:
        return range(len(pages))

    pools = {
        "kv": pool("kv", 1, lambda pages: range(0, len(pages), 2)),
        "draft": pool("draft", 2, every),
        "mamba": pool("mamba", 1, every),
    }
    return Touches(SimpleNamespace(touch=touch), LinkerMetrics(0, registry=registry), pools, 0)  # type: ignore[arg-type]


def _answer(touches: Touches) -> list[bool]:
    end = time.monotonic() + 5
    while not touches.answered():
        assert time.monotonic() < end
        time.sleep(0.001)
    return touches.take()


def test_a_prefix_is_touched_checkpoint_first_and_leaf_first(registry: prometheus_client.CollectorRegistry) -> None:
    asked: list[str] = []
    missing = {"b/draft1", "c/kv0", "c/mamba0"}

    def touch(keys: Sequence[str], pointers: Any, size: int) -> list[bool]:
        assert size == 64
        assert len(pointers) == len(keys)
        asked.extend(keys)
        return [key not in missing for key in keys]

    touches = _touches(registry, touch)
    assert touches.hint(["a", "b", "c"], checkpoint=True)
    assert _answer(touches) == [True, False, False, False]
    draft = [f"{page}/draft{part}" for page in "cba" for part in range(2)]
    assert asked == ["c/mamba0", "c/kv0", "a/kv0", *draft]
    assert touches.hint(["a", "b"], checkpoint=False)
    assert _answer(touches) == [True, False, True]
    assert not any("mamba" in key for key in asked[9:])
    labels = {"rank": "0", "pool": "draft", "result": "missing"}
    assert registry.get_sample_value("umbra_linker_touched_pages_total", labels) == 2


def test_a_store_that_does_not_answer_costs_hints_and_never_the_caller(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    thaw = threading.Event()

    def touch(keys: Sequence[str], *unused: Any) -> list[bool]:
        thaw.wait(5)
        return [True] * len(keys)

    touches = _touches(registry, touch)
    taken = [touches.hint(["a"], checkpoint=True) for _ in range(MOST_OUTSTANDING + 3)]
    assert taken == [True] * MOST_OUTSTANDING + [False] * 3
    assert touches.answered() == 0
    with pytest.raises(ValueError, match="no answer"):
        touches.take()
    touches.forget()
    thaw.set()
    assert touches.hint(["a"], checkpoint=True)
    assert _answer(touches) == [True, True]
    labels = {"rank": "0", "result": "outstanding"}
    assert registry.get_sample_value("umbra_linker_touch_hints_total", labels) == 3


def test_an_error_says_nothing_about_what_is_there_and_is_told_once_until_the_store_is_back(
    registry: prometheus_client.CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    gone = [True, True, True, False, True]

    def touch(keys: Sequence[str], *unused: Any) -> list[bool]:
        if gone[0]:
            raise OSError("gone")
        return [True] * len(keys)

    touches = _touches(registry, touch)
    told = []
    while gone:
        touches.hint(["a"], checkpoint=True)
        assert _answer(touches) == [True, True]
        told.append(len(caplog.records))
        gone.pop(0)
    assert told == [1, 1, 1, 1, 2]
    labels = {"rank": "0", "result": "error"}
    assert registry.get_sample_value("umbra_linker_touch_hints_total", labels) == 4


def test_the_thread_ends_when_it_is_told_with_what_waits_unasked(
    registry: prometheus_client.CollectorRegistry,
) -> None:
    asked, begun, thaw = [], threading.Event(), threading.Event()

    def touch(keys: Sequence[str], *unused: Any) -> list[bool]:
        asked.extend(keys)
        begun.set()
        thaw.wait(5)
        return [True] * len(keys)

    touches = _touches(registry, touch)
    for page in ("a", "b", "c"):
        touches.hint([page], checkpoint=True)
    begun.wait(5)
    assert not touches.stop(0.01), "it is in a call"
    thaw.set()
    assert touches.stop(5)
    assert {key[0] for key in asked} == {"a"}


def test_what_the_thread_takes_between_two_touches_is_counted(registry: prometheus_client.CollectorRegistry) -> None:
    """Told by the CPU time itself: all that the thread took is in the counter once it has waited for the next hint."""
    took: list[float] = []

    def touch(keys: Sequence[str], *unused: Any) -> list[bool]:
        took.append(time.thread_time())
        return [True] * len(keys)

    touches = _touches(registry, touch)
    for _ in range(50):
        touches.hint(["a"], checkpoint=False)
        _answer(touches)
    counted = registry.get_sample_value("umbra_linker_touch_cpu_seconds_total", {"rank": "0"})
    assert counted is not None
    assert counted >= took[-1] - took[0]
