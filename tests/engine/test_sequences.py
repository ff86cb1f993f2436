"""Any order of inserts, splits, evictions, loads, aborts and flushes leaves the tree whole and gives no wrong byte.

Real tree, linker and store. After each step the tree checks itself, every slot is accounted for, and restored bytes
are compared with what the prompt's tokens say. The small store evicts by itself, also between a lookup and its load.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cpuengine import Environment
from cpuengine.store import running_store
from ranklab import RankLab

pytestmark = pytest.mark.engine

PYTHON = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
PAGES, STATES = 24, 10
"""What the device holds; four requests at once must leave room."""
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
SMALL = 6 << 20
"""Bytes of a store that holds about 40 pages, fewer than a sequence computes."""
WHICH = st.integers(0, 3)
RECALL = st.tuples(st.just("recall"), st.integers(0, 50), st.lists(st.integers(0, 2), max_size=1), st.booleans())
SERVE = st.tuples(st.just("serve"), st.integers(0, 50), st.lists(st.integers(0, 2), max_size=1))
QUEUE = st.tuples(st.just("queue"), WHICH)
EVICT = st.tuples(st.just("evict"), st.integers(0, PAGES), st.integers(0, STATES))
FORWARD = st.tuples(st.just("forward"), st.lists(st.booleans(), min_size=1, max_size=4))
STEP = st.one_of(
    st.tuples(st.just("insert"), PATHS),
    st.tuples(st.just("match"), PATHS),
    *(RECALL, QUEUE, EVICT, FORWARD, SERVE),
    st.sampled_from([("step",), ("settle",), ("flush",)]),
    st.tuples(st.just("abort"), WHICH),
)
SEQUENCES = st.lists(STEP, min_size=120, max_size=240)


@pytest.mark.parametrize(
    ("ranks", "env", "store_bytes", "examples", "ways"),
    [
        pytest.param(1, {}, 256 << 20, 3, 1, id="roomy store"),
        pytest.param(1, {}, SMALL, 4, 1, id="small store"),
        pytest.param(1, PYTHON, SMALL, 2, 1, id="small store, Python core"),
        pytest.param(2, {}, SMALL, 2, 1, id="small store, 2 ranks"),
        pytest.param(2, {}, SMALL, 3, 2, id="small store, 2 ranks share the tokens", marks=pytest.mark.nightly),
        pytest.param(4, {}, 2 * SMALL, 2, 4, id="small store, 4 ranks share the tokens", marks=pytest.mark.nightly),
    ],
)
def test_no_order_of_steps_breaks_the_tree_or_gives_a_wrong_byte(
    rank_lab: RankLab,
    engine_env: Environment,
    ranks: int,
    env: dict[str, str],
    store_bytes: int,
    examples: int,
    ways: int,
) -> None:
    reached: dict[str, int] = {}
    salts = itertools.count()

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize="CI" in os.environ,
        database=None,
        # An example takes a second: shrinking one would take minutes. The message names the step that failed.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SEQUENCES)
    def play(steps: list[tuple[Any, ...]]) -> None:
        results = rank_lab.run(
            "sequences.played",
            ranks=ranks,
            env=[env] * ranks,
            address=store.address,
            steps=steps,
            pages=PAGES,
            states=STATES,
            salt=next(salts),
            ways=ways,
        )
        assert results == [results[0]] * ranks
        for name, count in results[0].items():
            reached[name] = reached.get(name, 0) + count

    with running_store(engine_env, capacity_bytes=store_bytes) as store:
        play()
    assert min(reached[name] for name in ("computed", "loaded", "kept")) > 0, reached
