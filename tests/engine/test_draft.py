"""A DSPARK draft's KV is stored, touched, restored and written again with its target's, each rank its own.

Real tree, linker, store and gloo; the bytes of the draft are the test's, for nothing is computed by a model.
"""

from __future__ import annotations

import pytest

from cpuengine.store import Store
from ranklab import RankLab

pytestmark = pytest.mark.engine

PROMPT, ANSWER = 5, 2
"""Pages, as the scenario serves them."""


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_draft_page_goes_wherever_its_targets_page_goes(rank_lab: RankLab, store: Store, ranks: int) -> None:
    """The write policy leaves out checkpoints, never pages of either model."""
    results = rank_lab.run("drafts.life", ranks=ranks, address=store.address)
    for rank, result in enumerate(results):
        assert result["put"]["draft"] == PROMPT + ANSWER, rank
        assert result["put"]["temporal"] == 1, "of all chunk ends only the prompt's end is kept"
        assert (result["touched"]["draft"], result["touched"]["temporal"]) == (PROMPT, 1), rank
        assert result["restored"] == [PROMPT, True, []], rank
    for what, pages in (("put", PROMPT + ANSWER), ("touched", PROMPT)):
        assert sum(result[what].get("kv", 0) for result in results) == pages, "the target's are divided"


def test_other_bytes_in_the_draft_of_one_rank_are_noticed_there_alone(rank_lab: RankLab, store: Store) -> None:
    """Negative control: a draft page is its own object, and restored as it was stored."""
    first, second = rank_lab.run("drafts.poisoned", ranks=2, address=store.address)
    assert first == []
    assert second == ["draft page 0", "draft page 1", "draft page 2"]


@pytest.mark.parametrize(("rewrite", "found"), [("Disabled", 0), ("Enabled", 3)])
def test_a_prefix_without_its_draft_is_no_hit_until_it_is_written_again(
    rank_lab: RankLab, store: Store, rewrite: str, found: int
) -> None:
    results = rank_lab.run("drafts.lost", ranks=2, address=store.address, rewrite=rewrite)
    assert results == [{"found": found, "wrong": []}] * 2


def test_a_draft_model_reads_its_own_pages_only(rank_lab: RankLab, store: Store) -> None:
    """An engine without one finds what an engine with one has stored of their common target."""
    drafts = ["first", "another", None, "first", "another"]
    found = [rank_lab.run("drafts.found_with", address=store.address, draft=draft)[0] for draft in drafts]
    nothing = [{"found": 0, "missed": {"never_stored": 3}}, {"found": 0, "missed": {"no_draft": 3}}]
    assert found == [*nothing, *[{"found": 3, "missed": {}}] * 3]
