"""What went wrong elsewhere and must not here: each test is named after what it guards, with the public report.

Real tree, linker, store and gloo. Some of it is SGLang's own code that the linker relies on.
"""

from __future__ import annotations

from typing import Any

import pytest

from cpuengine import Environment
from cpuengine.store import Store, running_store
from ranklab import RankFailed, RankLab
from traffic import PAGE

pytestmark = pytest.mark.engine


@pytest.fixture
def scene(rank_lab: RankLab, store: Store) -> Any:
    """Play a scene on one rank and return what it says."""
    return lambda name, **options: rank_lab.run(f"regressions.{name}", address=store.address, **options)[0]


def test_what_is_written_is_looked_up_and_read_under_the_same_name(scene: Any) -> None:
    """sglang#12092: data was stored and never found again."""
    names = scene("names")
    written, read = names["batch_put_ranges_from_ptr"], names["batch_get_ranges_into_ptr"]
    assert len(set(written)) == 3 + 3 + 1
    assert sorted(written) == sorted(set(read))
    assert set(names["batch_exists"]) >= set(written)


def test_a_prefix_that_the_device_evicted_is_found_in_the_store(scene: Any) -> None:
    """sglang#33713: states were pruned with the device's node, and nothing was ever restored."""
    assert scene("evicted_from_device") == {"device": 0, "loaded": 5 * PAGE, "wrong": []}


def test_a_prefix_without_a_state_at_its_end_is_no_hit(scene: Any) -> None:
    """sglang#30862, #31833: KV was reused with the state of another token."""
    assert scene("shorter") == [0, 5 * PAGE, 5 * PAGE]


def test_a_load_writes_to_slots_that_nobody_else_sees(scene: Any) -> None:
    """sglang#40896, #41343: KV and state are the request's own until its forward is over."""
    found = scene("private")
    assert found == {"before": {"device": 0, "tree": 0}, "after": 4 * PAGE, "wrong": []}


def test_what_the_store_evicts_between_lookup_and_load_ends_one_request(
    rank_lab: RankLab, engine_env: Environment
) -> None:
    """sglang#37381, #38639: a lost object ended the engine, or all requests of its batch."""
    with running_store(engine_env, capacity_bytes=8 << 20) as store:
        (found,) = rank_lab.run("regressions.evicted_between", address=store.address)
    assert found == {
        "found": [6 * PAGE, 6 * PAGE],
        "landed": [False, True],
        "wrong": [],
        "in the tree": 0,
        "leaked": {},
    }


@pytest.mark.parametrize(
    ("call", "found"),
    [("batch_put_ranges_from_ptr", 0), ("batch_get_ranges_into_ptr", 4 * PAGE)],
    ids=["write", "read"],
)
def test_one_ranks_failure_is_every_ranks_failure(rank_lab: RankLab, store: Store, call: str, found: int) -> None:
    """sglang#26921, #28429, #33289: a rank that alone failed left its peers waiting, or with another tree."""
    results = rank_lab.run("regressions.one_rank_fails", ranks=2, address=store.address, call=call)
    failed = {"found": found, "landed": not found, "repaired": [4 * PAGE, True, []]}
    assert results == [failed, failed]


def test_the_prefix_of_a_waiting_request_stays_and_the_store_is_not_asked(scene: Any) -> None:
    """sglang#41593, #43479: waiting requests lost their prefix to younger ones."""
    assert scene("waiting") == {"left": [4 * PAGE, 0], "looked up": 0}


def test_a_checkpoint_that_was_overwritten_in_place_is_not_stored(scene: Any) -> None:
    """sglang#43567: a state was stored under the tokens of the one before it."""
    assert scene("overwritten") == {"before": PAGE, "after": 0}


def test_a_store_that_does_not_take_the_buffers_ends_the_start_with_a_sentence(scene: Any, store: Store) -> None:
    """sglang#28873: a refused registration ended in a bare -1."""
    # Buffers are handed over there; without it the store serves, and every registration is refused.
    (store.socket_path.parent / "umbp.fd.sock").unlink()
    with pytest.raises(RankFailed, match=r"the store does not take this rank's device memory \(.+\): .+ its log"):
        scene("names")
