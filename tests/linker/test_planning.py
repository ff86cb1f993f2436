"""Every page is written by exactly one rank, by the same one whoever asks; and why a lookup ended where it did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.planning import MissReason, miss_reason, owned_pages, stripe_owner

PAGES = st.lists(st.text(min_size=1, max_size=20), max_size=40)


@given(pages=PAGES, per_page=st.integers(1, 3), ranks=st.integers(1, 16))
def test_each_page_has_exactly_one_writer(pages: list[str], per_page: int, ranks: int) -> None:
    keys = [f"{page}/{part}" for page in pages for part in range(per_page)]
    written = [page for rank in range(ranks) for page in owned_pages(keys, per_page=per_page, rank=rank, ranks=ranks)]
    assert sorted(written) == list(range(len(pages)))


@given(keys=PAGES, extra=PAGES, ranks=st.integers(1, 16), rank=st.integers(0, 15))
def test_the_owner_depends_on_the_key_alone(keys: list[str], extra: list[str], ranks: int, rank: int) -> None:
    rank %= ranks
    alone = owned_pages(keys, per_page=1, rank=rank, ranks=ranks)
    behind = owned_pages([*extra, *keys], per_page=1, rank=rank, ranks=ranks)
    assert [page - len(extra) for page in behind if page >= len(extra)] == alone


@given(st.text())
def test_one_rank_owns_everything(key: str) -> None:
    assert stripe_owner(key, 1) == 0


def test_eight_ranks_share_the_work_evenly() -> None:
    keys = [f"{i:064x}_cp0_pp0_kv" for i in range(8000)]
    shares = [len(owned_pages(keys, per_page=1, rank=rank, ranks=8)) for rank in range(8)]
    assert min(shares) > 900
    assert max(shares) < 1100


def test_part_of_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="3 object keys are not a whole number of pages of 2 objects"):
        owned_pages(["a", "b", "c"], per_page=2, rank=0, ranks=1)


@pytest.mark.parametrize(
    ("present", "hit", "reason"),
    [
        ([True, False], 1, MissReason.NEVER_STORED),
        ([True, True, False], 2, MissReason.EVICTED_RECENTLY),
        ([False], 0, MissReason.NEVER_STORED),
        ([True, True, True, False], 2, MissReason.NO_CHECKPOINT),
        ([True] * 4, 0, MissReason.NO_CHECKPOINT),
    ],
)
def test_why_a_prefix_is_not_longer(present: list[bool], hit: int, reason: MissReason) -> None:
    assert miss_reason(["a", "b", "c", "d"], present, hit, {"c"}, without_draft=hit) == reason


@pytest.mark.parametrize("hit", [0, 2])
def test_a_draft_ends_a_prefix_that_the_target_has(hit: int) -> None:
    """Whatever the target lacks further on: it was not what this prefix ended at."""
    for present in ([True] * 4, [True, True, True, False]):
        assert miss_reason(["a", "b", "c", "d"], present, hit, {"c"}, without_draft=3) == MissReason.NO_DRAFT
