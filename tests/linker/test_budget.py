"""Work that may be left out takes no more of a core than its part, and nearly all of that."""

from __future__ import annotations

import random
from collections import deque

import pytest

from umbra_linker.budget import CpuBudget


@pytest.mark.parametrize("pages", [(200, 500), (1, 3000), (2000, 3000)], ids=["short", "mixed", "long"])
@pytest.mark.parametrize("seed", range(20))
def test_the_thread_uses_at_most_its_part_of_a_core_in_any_ten_seconds(seed: int, pages: tuple[int, int]) -> None:
    """Prefixes of all lengths, each up to half as dear again as it need be; one that is dropped takes time as well."""
    rng = random.Random(seed)
    budget, now, used, sums = CpuBudget(0.01, 10), 0.0, deque[tuple[float, float]](), [0.0]
    a_page = rng.uniform(2e-6, 8e-6)
    for _ in range(900):
        now += rng.expovariate(30)
        asked = rng.randint(*pages)
        touched = budget.allows(now, asked)
        cost = a_page * (asked + 50) * rng.uniform(1, 1.5) if touched else 15e-6
        budget.spend(now, asked if touched else 0, cost)
        used.append((now, cost))
        while used[0][0] <= now - 10:
            used.popleft()
        sums.append(sum(cost for _, cost in used))
    assert 0.07 < max(sums) <= 0.1


def test_nearly_all_of_the_budget_is_used_where_hints_cost_the_same() -> None:
    budget, touched = CpuBudget(0.01, 10), 0
    for hint in range(200):
        if budget.allows(hint / 100, 2000):
            budget.spend(hint / 100, 2000, 0.004)
            touched += 1
    assert touched * 0.004 >= 0.09


def test_room_is_kept_for_one_that_is_half_as_dear_again() -> None:
    budget = CpuBudget(0.01, 10)
    for hint in range(10):
        assert budget.allows(hint / 10, 2000)
        budget.spend(hint / 10, 2000, 0.0085)
    assert not budget.allows(1.0, 2000)
    assert budget.allows(1.0, 500)


def test_a_short_prefix_does_not_make_a_long_one_look_dear() -> None:
    budget = CpuBudget(0.01, 10)
    budget.spend(0.0, 1, 0.0001)
    assert budget.allows(0.1, 3000)


def test_one_prefix_that_would_take_more_than_was_kept_for_it_is_touched_when_nothing_else_was() -> None:
    budget = CpuBudget(0.01, 10)
    assert budget.allows(0.0, 1_000_000)
    budget.spend(0.0, 10, 0.001)
    assert not budget.allows(9.9, 1_000_000)
    assert budget.allows(10.0, 1_000_000)


def test_what_was_used_ten_seconds_ago_counts_no_more() -> None:
    budget = CpuBudget(0.01, 10)
    budget.spend(0.0, 100, 0.06)
    assert not budget.allows(9.9, 100)
    assert budget.allows(10.0, 100)
