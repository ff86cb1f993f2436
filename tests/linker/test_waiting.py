"""What found no room is offered again in order, and only those of its kind wait behind it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.waiting import Waiting

MOST = 4


def _of(nodes: dict[int, bool]) -> Waiting:
    """Give nodes, and whether each carries a checkpoint."""
    waiting = Waiting(MOST)
    for node, carries in nodes.items():
        waiting.put(node, carries=carries, kept=True)
    return waiting


def test_a_checkpoint_that_finds_no_room_holds_back_checkpoints_only() -> None:
    waiting = _of({1: True, 2: False, 3: True, 4: False})
    offered = []
    for node in waiting.offered(MOST):
        offered.append(node)
        if node != 1:
            waiting.drop(node)
    assert offered == [1, 2, 4]
    assert len(waiting) == 2


def test_pages_that_find_no_room_hold_back_pages() -> None:
    assert list(_of({1: False, 2: False, 3: True}).offered(MOST)) == [3, 1]


def test_a_node_keeps_its_place_and_its_decision_and_changes_the_line_when_its_checkpoint_is_gone() -> None:
    waiting = _of({1: True, 2: True, 3: False})
    waiting.put(1, carries=True, kept=False)
    assert next(waiting.offered(MOST)) == 1
    assert waiting.decided(1) is True
    waiting.put(1, carries=False, kept=True)
    assert list(waiting.offered(MOST)) == [2, 3]
    assert len(waiting) == 3


def test_nobody_is_remembered_who_was_dropped_or_after_a_reset() -> None:
    waiting = _of({1: True, 2: False})
    waiting.drop(1)
    waiting.drop(1)
    assert (waiting.decided(1), waiting.decided(2)) == (None, True)
    waiting.clear()
    assert not waiting


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())))
def test_no_line_grows_without_end_and_nobody_stands_in_both(puts: list[tuple[int, bool]]) -> None:
    waiting = Waiting(MOST)
    for node, carries in puts:
        waiting.put(node, carries=carries, kept=True)
    everybody = []
    for node in waiting.offered(MOST):
        everybody.append(node)
        waiting.drop(node)
    assert len(everybody) == len(set(everybody)) <= 2 * MOST
    assert not waiting
