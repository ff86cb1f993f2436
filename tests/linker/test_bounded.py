"""A bounded mapping forgets what was set longest ago, and nothing else."""

import itertools
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.bounded import Bounded
from umbra_linker.paths import Paths
from umbra_linker.recent import RecentPages


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 10))
def test_the_entries_set_last_are_remembered(keys: list[int], most: int) -> None:
    bounded: Bounded[int, int] = Bounded(most)
    for turn, key in enumerate(keys):
        bounded[key] = turn
    last = {key: turn for turn, key in enumerate(keys)}
    assert bounded == dict(sorted(last.items(), key=lambda entry: entry[1])[-most:])
    assert list(bounded) == sorted(bounded, key=lambda key: last[key]), "the oldest comes first"


def _bounded(most: int) -> Callable[[int], None]:
    bounded: Bounded[int, None] = Bounded(most)
    return lambda number: bounded.__setitem__(number, None)


def _recent(most: int) -> Callable[[int], None]:
    recent = RecentPages(most)
    return lambda number: recent.add([str(number)])


def _paths(most: int) -> Callable[[int], None]:
    paths = Paths(most)
    return lambda number: paths.put(number, ["page"])


@pytest.mark.parametrize("memory", [_bounded, _recent, _paths])
def test_forgetting_takes_as_long_in_a_large_memory_as_in_a_small_one(
    memory: Callable[[int], Callable[[int], None]],
) -> None:
    """The scheduler and the threads beside it do this while they hold the interpreter."""
    seconds = {64: list[float](), 1 << 16: list[float]()}
    for most, taken in seconds.items():
        put, numbers = memory(most), itertools.count()
        # Full, and as much forgotten since.
        for number in itertools.islice(numbers, 2 * most):
            put(number)
        for _ in range(5):
            begin = time.thread_time()
            for number in itertools.islice(numbers, 2000):
                put(number)
            taken.append(time.thread_time() - begin)
    assert min(seconds[1 << 16]) < 10 * min(seconds[64])
