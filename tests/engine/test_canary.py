"""The canary finds bytes that changed in the real store's memory, names pool and rank, and finds nothing else."""

from __future__ import annotations

import pytest

from cpuengine.store import Store
from ranklab import RankLab

pytestmark = pytest.mark.engine

PAGES = [3, 5, 2, 4]
POOLS = {"kv", "draft", "mamba"}


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_what_was_stored_is_equal_on_every_rank_and_in_every_pool(rank_lab: RankLab, store: Store, ranks: int) -> None:
    results = rank_lab.run("canary.watched", ranks=ranks, address=store.address, pages=PAGES)
    everything = {pool for found in results for pool in found}
    assert everything == POOLS
    assert {result for found in results for pool in found.values() for result in pool} == {"equal"}


@pytest.mark.parametrize("pool", ["kv", "draft", "mamba"])
def test_a_byte_that_changed_in_the_store_is_found_by_the_rank_that_wrote_it(
    rank_lab: RankLab, store: Store, pool: str
) -> None:
    poison = {"rank": 1, "pool": pool}
    well, ill = rank_lab.run("canary.watched", ranks=2, address=store.address, pages=PAGES, poison=poison)
    assert {result for found in well.values() for result in found} == {"equal"}
    assert ill[pool]["different"] > 0
    assert {result for other in POOLS - {pool} for result in ill.get(other, {})} <= {"equal"}


def test_a_byte_that_changed_later_is_found_by_the_second_look(rank_lab: RankLab, store: Store) -> None:
    (seen,) = rank_lab.run("canary.poisoned_later", address=store.address, pages=PAGES)
    assert seen["changed"] == sum(PAGES)
    assert seen["before"]["kv"] == {"equal": len(PAGES)}
    assert 0 < seen["after"]["kv"]["different"] <= len(PAGES)
    assert "different" not in seen["after"]["mamba"] and "different" not in seen["after"]["draft"]


def test_a_prompt_that_is_computed_again_with_other_bytes_is_no_difference(rank_lab: RankLab, store: Store) -> None:
    """As a GPU does it: in another batch its sums round otherwise. The store keeps what it had."""
    (seen,) = rank_lab.run("canary.computed_again", address=store.address)
    assert seen["put again"] > 0
    assert {result for found in seen["found"].values() for result in found} == {"unmeasured"}
