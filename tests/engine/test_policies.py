"""What the write policy stores, on the real tree and store; and that ranks decide alike whatever their clocks say."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.store import Store, running_store
from ranklab import RankLab

pytestmark = pytest.mark.engine

CORE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
NOWHERE = {"2": 0, "4": 0, "6": 0, "8": 0}


@pytest.mark.parametrize(
    ("checkpoints", "store_bytes", "put", "found"),
    [
        ("All", 0, 6, {"2": 2, "4": 4, "6": 6, "8": 8, "9": 9, "11": 11}),
        ("Adaptive", 0, 5, {"2": 2, "4": 4, "6": 6, "8": 8, "9": 9, "11": 9}),
        ("Adaptive", 1, 1, NOWHERE | {"9": 9, "11": 9}),
        ("PromptEnd", 0, 1, NOWHERE | {"9": 9, "11": 9}),
    ],
    ids=["All", "Adaptive in a roomy store", "Adaptive in a tiny store", "PromptEnd"],
)
def test_each_policy_stores_all_kv_and_its_own_checkpoints(
    rank_lab: RankLab, store: Store, checkpoints: str, store_bytes: int, put: int, found: dict[str, int]
) -> None:
    """A prompt of nine pages in chunks of two, with an answer of two pages; a prefix is found where a checkpoint is."""
    (seen,) = rank_lab.run("policies.stored", address=store.address, checkpoints=checkpoints, store_bytes=store_bytes)
    assert seen["kv"] == 11
    assert seen["checkpoints"] == put
    assert seen["found"] == found


def test_a_node_is_put_leaf_first_and_its_checkpoint_before_it(rank_lab: RankLab, store: Store) -> None:
    assert rank_lab.run("policies.order_of_puts", address=store.address) == [True]


@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_whose_clocks_differ_store_the_same(rank_lab: RankLab, store: Store, seed: int) -> None:
    first, second = rank_lab.run("policies.agreement", ranks=2, address=store.address, seed=seed, skew_ms=37_000)
    assert first["times"] == second["times"]
    assert first["times"][-1] > first["times"][0]
    assert first["checkpoints"] == second["checkpoints"]
    assert 0 < len(first["checkpoints"]) < 40 * 4, "the policy had something to decide"


def test_live_settings_come_into_force_in_the_same_step_on_every_rank(
    rank_lab: RankLab, store: Store, tmp_path: Path
) -> None:
    """One rank reads the file a second before the other."""
    first, second = rank_lab.run("policies.switched", ranks=2, address=store.address, folder=str(tmp_path))
    assert first == second
    assert first["in force"][:25] == ["PromptEnd"] * 25
    assert first["in force"][-1] == "All"
    assert first["parallelism"] == 2
    assert (first["checkpoints before"], first["checkpoints after"]) == (1, 3)


def test_what_was_stored_stays_when_the_policy_changes_to_one_that_stores_less(
    rank_lab: RankLab, store: Store, tmp_path: Path
) -> None:
    (found,) = rank_lab.run("policies.switched_to_fewer", address=store.address, folder=str(tmp_path))
    assert found == [[2, 4, 6, 8, 9, 11], [0, 0, 0, 0, 9, 9]]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("touch", "rewrite", "while_filling", "found"),
    [
        ("Auto", "Disabled", True, {"used": 4, "unused": 0}),
        ("Off", "Disabled", True, {"used": 0, "unused": 0}),
        ("Auto", "Disabled", False, {"used": 0, "unused": 0}),
        ("Auto", "Enabled", False, {"used": 4, "unused": 0}),
    ],
    ids=["touched", "not touched", "touched too late", "written again"],
)
def test_what_the_device_serves_stays_in_a_store_that_others_fill(
    rank_lab: RankLab,
    engine_env: Environment,
    ranks: int,
    touch: str,
    rewrite: str,
    while_filling: bool,
    found: dict[str, int],
) -> None:
    with running_store(engine_env, capacity_bytes=6 << 20) as store:
        results = rank_lab.run(
            "policies.in_use", ranks=ranks, address=store.address, touch=touch, rewrite=rewrite,
            while_filling=while_filling,
        )  # fmt: skip
    assert results == [found] * ranks


@pytest.mark.parametrize(("ranks", "core"), [(1, "rust"), (1, "python"), (2, "rust")])
def test_what_found_no_room_is_offered_again(rank_lab: RankLab, store: Store, ranks: int, core: str) -> None:
    """Nobody asks for these prompts meanwhile: SGLang alone would offer them with a longer one only."""
    results = rank_lab.run(
        "policies.held_back", ranks=ranks, env={CORE: core}, address=store.address, pid=store.process.pid,
        evicted=False,
    )  # fmt: skip
    assert results == [{"waiting": 4, "found": [2] * 9, "order": list(range(9)), "leaked": {}}] * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_without_room_does_not_hold_back_kv_that_has_room(
    rank_lab: RankLab, store: Store, ranks: int
) -> None:
    results = rank_lab.run("policies.held_back_by_kind", ranks=ranks, address=store.address, pid=store.process.pid)
    assert results == [{"before": 3, "after": 2, "admitted": 1, "found": [4, 1, 2, 1, 3], "leaked": {}}] * ranks


@pytest.mark.parametrize("core", ["rust", "python"])
def test_what_found_no_room_and_was_evicted_is_forgotten(rank_lab: RankLab, store: Store, core: str) -> None:
    (seen,) = rank_lab.run(
        "policies.held_back", env={CORE: core}, address=store.address, pid=store.process.pid, evicted=True
    )
    assert seen == {"waiting": 4, "found": [2] * 3 + [0] * 6, "order": [0, 1, 2], "leaked": {}}


def test_without_a_free_state_a_request_is_computed(rank_lab: RankLab, store: Store) -> None:
    (seen,) = rank_lab.run("policies.without_a_state", address=store.address)
    assert seen == {"hit": 4, "without": 0, "with": 4, "leaked": {}}
