"""Bytes that leave the tree for the store come back equal, on every rank and in every pool; KV is stored once.

Real tree, linker, store and gloo; device pools are CPU tensors and nothing is computed by a model.
"""

from __future__ import annotations

import pytest

from cpuengine.store import Store
from ranklab import RankLab
from traffic import PAGE
from umbra_linker.planning import stripe_owner

pytestmark = pytest.mark.engine

PYTHON = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
PAGES = [3, 5, 2]
KV_BYTES = PAGE * (256 + 32) * 2 * 2
"""A page of two MLA layers in bfloat16."""
POOLS = {"kv": sum(PAGES), "draft": sum(PAGES), "temporal": len(PAGES)}
"""Objects of each pool that one rank needs; a state is stored at the end of a prompt."""


def restored_equal(results: list[dict]) -> None:
    for rank, result in enumerate(results):
        assert [one["loaded"] for one in result["restored"]] == [count * PAGE for count in PAGES], rank
        assert all(one["landed"] and not one["wrong"] for one in result["restored"]), (rank, result["restored"])
        assert not result["leaked"], rank


def written(results: list[dict], pool: str) -> list[dict[str, int]]:
    return [{key: size for key, size in one["wrote"].items() if key.endswith(f"_{pool}")} for one in results]


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_every_pool_comes_back_equal_and_kv_is_stored_once(rank_lab: RankLab, store: Store, ranks: int) -> None:
    results = rank_lab.run("roundtrip.stored_and_restored", ranks=ranks, address=store.address, pages=PAGES)
    restored_equal(results)
    kv = written(results, "kv")
    assert sum(len(keys) for keys in kv) == len(set().union(*kv)) == POOLS["kv"]
    assert sum(sum(keys.values()) for keys in kv) == sum(PAGES) * KV_BYTES
    for rank, keys in enumerate(kv):
        assert {stripe_owner(key, ranks) for key in keys} <= {rank}
    for pool in ("draft", "temporal"):
        own = written(results, pool)
        assert [len(keys) for keys in own] == [POOLS[pool]] * ranks
        assert len(set().union(*own)) == POOLS[pool] * ranks
    assert {result["core"] for result in results} == {"RustUnifiedTreeCore"}


def test_a_layout_per_rank_stores_kv_on_each_rank(rank_lab: RankLab, store: Store) -> None:
    results = rank_lab.run(
        "roundtrip.stored_and_restored",
        ranks=2,
        address=store.address,
        pages=PAGES,
        settings={"keyLayout": "PerRank"},
    )
    restored_equal(results)
    assert sum(sum(keys.values()) for keys in written(results, "kv")) == 2 * sum(PAGES) * KV_BYTES


def test_seven_python_cores_and_one_rust_core_restore_as_eight_python_cores(rank_lab: RankLab, store: Store) -> None:
    env = [PYTHON] * 7 + [{}]
    results = rank_lab.run("roundtrip.stored_and_restored", ranks=8, env=env, address=store.address, pages=PAGES)
    restored_equal(results)
    assert {result["core"] for result in results} == {"UnifiedTreeCore"}


def test_calls_of_one_page_and_many_at_once_keep_every_byte_in_its_place(rank_lab: RankLab, store: Store) -> None:
    settings = {"chunkPages": 1, "rpcParallelism": 8}
    results = rank_lab.run(
        "roundtrip.stored_and_restored", ranks=2, address=store.address, pages=PAGES, settings=settings
    )
    restored_equal(results)


@pytest.mark.parametrize(("most", "asked"), [(15, [15]), (10, [5, 10]), (3, [3, 2] * 3)])
def test_a_lookup_asks_for_all_pools_at_once_where_a_call_carries_them(
    rank_lab: RankLab, store: Store, most: int, asked: list[int]
) -> None:
    """KV, states and draft of five pages: in one call, KV before the others, or each pool in two calls."""
    (result,) = rank_lab.run(
        "roundtrip.stored_and_restored",
        address=store.address,
        pages=[5],
        settings={"chunkPages": most, "rpcParallelism": 1},
    )
    assert result["restored"] == [{"loaded": 5 * PAGE, "landed": True, "wrong": []}]
    assert result["asked"] == asked


def test_17536_restored_tokens_are_equal(rank_lab: RankLab, store: Store) -> None:
    pages = 17_536 // PAGE
    (result,) = rank_lab.run("roundtrip.stored_and_restored", address=store.address, pages=[pages])
    assert result["restored"] == [{"loaded": 17_536, "landed": True, "wrong": []}]


def test_one_changed_byte_of_any_pool_is_noticed(rank_lab: RankLab, store: Store) -> None:
    (said,) = rank_lab.run("roundtrip.oracle_notices", address=store.address)
    assert said == [[], ["kv page 1"], ["draft page 1"], ["mamba at token 128"], ["mamba at token 128"]]
