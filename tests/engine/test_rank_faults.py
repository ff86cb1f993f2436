"""Ranks decide alike although their clocks differ, each has failures of its own, and the store freezes or is replaced.

On the real tree and store, without an engine.
"""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.store import Store, running_store, started_again
from ranklab import RankLab

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("seed", "ways"), [(1, 1), (1, 2)])
def test_ranks_with_other_clocks_and_other_luck_decide_alike(
    rank_lab: RankLab, store: Store, seed: int, ways: int
) -> None:
    """Which nodes are offered with what, which were stored, what a request finds, and how often the ranks agree."""
    first, second = rank_lab.run(
        "faults.decided", ranks=2, address=store.address, pid=store.process.pid, seed=seed, skew_ms=37_000, ways=ways
    )
    assert first["decisions"] == second["decisions"]
    assert first["hits"] == second["hits"]
    assert first["reductions"] == second["reductions"]

    offered = Counter(entry[2] for entry in first["decisions"] if entry[0] == "offered")
    stored = Counter(one for entry in first["decisions"] if entry[0] == "stored" for one in entry[1])
    landed = Counter(hit[2] for hit in first["hits"] if len(hit) == 3 and hit[1])
    assert min(offered[True], offered[False]) > 0, "nodes were held back"
    assert min(stored[True], stored[False]) > 0, "nodes were lost"
    assert min(landed[True], landed[False]) > 0, "loads were lost"


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_the_tree_believes_stored_is_stored_again_in_a_new_store(
    rank_lab: RankLab, store: Store, ranks: int
) -> None:
    """SGLang never offers a node twice: without its beginning, all that follows it is worth nothing after a flush."""
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(
            rank_lab.run, "faults.replaced", ranks=ranks, address=store.address, pid=store.process.pid
        )  # fmt: skip
        store.process.wait(30)
        store.replace()
        results = run.result()
    assert results == [{"used": 6, "unused": 0}] * ranks


def test_a_store_that_was_away_is_connected_to_at_once(
    rank_lab: RankLab, engine_env: Environment, tmp_path: Path
) -> None:
    """gRPC lets a process wait that it has refused before, longer each time; the engine would stand still meanwhile."""
    hold = tmp_path / "hold"
    hold.touch()
    with running_store(engine_env) as store, started_again(store, hold):
        results = rank_lab.run(
            "faults.away", address=store.address, pid=store.process.pid, gone_seconds=6.0, hold=str(hold)
        )  # fmt: skip
    assert results == [{"trials": 1, "restored": [4, []]}]
