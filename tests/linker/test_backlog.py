"""What waits for the store never holds more than its part of a pool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.backlog import Backlog

POOLS = {"kv": 100, "mamba": 8}


def test_a_full_pool_holds_back_the_nodes_that_need_it_and_no_others() -> None:
    backlog = Backlog(POOLS, 75)
    for _ in range(6):
        assert backlog.admits({"kv": 1, "mamba": 1})
        backlog.add({"kv": 1, "mamba": 1})
    assert not backlog.admits({"kv": 1, "mamba": 1})
    assert backlog.admits({"kv": 69})
    assert not backlog.admits({"kv": 70})
    assert backlog.admits({"kv": 69, "mamba": 0})
    assert backlog.held == {"kv": 6, "mamba": 6}
    backlog.finish_oldest()
    assert backlog.admits({"kv": 1, "mamba": 1})


def test_one_node_may_always_wait_however_large_it_is() -> None:
    backlog = Backlog(POOLS, 1)
    assert backlog.admits({"kv": 100, "mamba": 8})
    backlog.add({"kv": 100, "mamba": 8})
    assert not backlog.admits({"kv": 1})
    backlog.finish_oldest()
    assert backlog.admits({"kv": 100})
    backlog.add({"kv": 100})
    backlog.clear()
    assert backlog.admits({"kv": 100})


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 4)) | st.none(), max_size=60),
    st.integers(1, 100),
)
def test_the_bound_holds_whatever_comes_and_ends(events: list[tuple[int, int] | None], percent: int) -> None:
    backlog, waiting = Backlog(POOLS, percent), []
    for event in events:
        if event is None:
            if waiting:
                waiting.pop(0)
                backlog.finish_oldest()
            continue
        node = dict(zip(POOLS, event, strict=True))
        if backlog.admits(node):
            backlog.add(node)
            waiting.append(node)
        if len(waiting) > 1:
            for pool, pages in POOLS.items():
                first, rest = waiting[0][pool], sum(each[pool] for each in waiting[1:])
                assert first + rest <= max(first, pages * percent // 100, 1)
