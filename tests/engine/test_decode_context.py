"""Decode context parallelism: ranks share the tokens of a page, and every byte comes back to the rank that owns it.

Real tree, linker, store and gloo; which token is whose is asked of SGLang's own code. Nothing is computed by a model.
"""

from __future__ import annotations

import pytest

from cpuengine.store import Store
from ranklab import RankLab
from traffic import PAGE

pytestmark = pytest.mark.engine

PAGES = [3, 5, 2]
RANK_KV_BYTES = PAGE * (256 + 32) * 2 * 2
"""What a rank has of a page of the tree: a page of its pool, of two MLA layers in bfloat16."""


@pytest.mark.parametrize(("ranks", "ways"), [(2, 2), (4, 4), (8, 8), (4, 2)])
def test_every_rank_gets_its_own_tokens_back(rank_lab: RankLab, store: Store, ranks: int, ways: int) -> None:
    results = rank_lab.run("roundtrip.stored_and_restored", ranks=ranks, address=store.address, pages=PAGES, ways=ways)
    for rank, result in enumerate(results):
        assert [one["loaded"] for one in result["restored"]] == [count * PAGE * ways for count in PAGES], rank
        assert all(one["landed"] and not one["wrong"] for one in result["restored"]), (rank, result["restored"])
        assert not result["leaked"], rank
        kv = {key: size for key, size in result["wrote"].items() if key.endswith("_kv")}
        assert list(kv.values()) == [RANK_KV_BYTES] * sum(PAGES)
        assert all(f"_tp{rank}_cp0_pp0_" in key for key in result["wrote"])
        assert len([key for key in result["wrote"] if key.endswith("_temporal")]) == len(PAGES)


def test_a_linker_that_cannot_share_pages_says_why_in_one_sentence(rank_lab: RankLab, store: Store) -> None:
    (said,) = rank_lab.run("sharing.refusals", address=store.address)
    start = "LinkerRefusedError: the Umbra linker refuses to start: --dcp-size 2 with "
    assert said.keys() == WHY.keys()
    for reason, words in WHY.items():
        assert said[reason].startswith(start + words), said[reason]


WHY = {
    "sparse": "sparse attention (DSA or NSA)",
    "windows": "sliding-window layers",
    "draft": "a draft model",
    "chunk": "--chunked-prefill-size 64: a page of the tree has 128 tokens",
}


def test_locations_that_are_no_whole_page_are_refused(rank_lab: RankLab, store: Store) -> None:
    (asked,) = rank_lab.run("sharing.pages_asked_for", address=store.address)
    assert asked["page 1 and 3"] == [PAGE, 3 * PAGE]
    assert asked["bytes"] == [RANK_KV_BYTES // 2] * 2
    assert "64 locations are no whole pages of 128" in asked["half a page"]
    for what in ("straddling", "every second"):
        assert "not one after the other from its beginning on" in asked[what]
    assert "rows 576 to 576 are not in its 576" in asked["behind the end"]
