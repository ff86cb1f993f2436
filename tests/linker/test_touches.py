"""Touches are leaf first, split over the ranks, bounded in CPU time and number, and answered in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.metrics import LinkerMetrics
from umbra_linker.touches import MOST_OUTSTANDING, CpuBudget, Pool, Touches


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


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.05)), max_size=200))
def test_the_thread_uses_at_most_its_part_of_a_core_in_any_ten_seconds(hints: list[tuple[float, float]]) -> None:
    budget, now, used = CpuBudget(0.01, 10), 0.0, list[tuple[float, float]]()
    for pause, cost in hints:
        now += pause
        if budget.allows(now):
            budget.spend(now, cost)
            used.append((now, cost))
    for end, last in used:
        window = sum(cost for at, cost in used if end - 10 < at <= end)
        assert window <= 0.1 + last + 1e-9, "one that is dearer than all before it may overdraw"


@given(st.lists(st.floats(0, 5), max_size=200), st.floats(0.001, 0.04))
def test_hints_that_cost_the_same_overdraw_nothing(pauses: list[float], cost: float) -> None:
    budget, now, used = CpuBudget(0.01, 10), 0.0, list[float]()
    for pause in pauses:
        now += pause
        if budget.allows(now):
            budget.spend(now, cost)
            used.append(now)
    assert all(sum(end - 10 < at <= end for at in used) * cost <= 0.1 + 1e-9 for end in used)


def test_what_was_used_ten_seconds_ago_counts_no_more() -> None:
    budget = CpuBudget(0.01, 10)
    budget.spend(0.0, 0.06)
    assert not budget.allows(9.9)
    assert budget.allows(10.0)
