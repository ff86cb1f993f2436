"""Decode context parallelism: ranks share the tokens of a page, and every byte comes back to the rank that owns it.

Real tree, linker, store and gloo; which token is whose is asked of SGLang's own code. No model computes anything
but in the last test, where the real engine serves, with an attention for the CPU (see sharedkv).
"""

from __future__ import annotations

import signal
import urllib.error
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.launcher import Engine, ForkLauncher, Launch
from cpuengine.processes import wait_for
from cpuengine.store import Store, running_store
from engine_fixtures import linker_arguments, write_metadata
from ranklab import RankLab
from traffic import PAGE, prompt, total, wait_until_stored

pytestmark = pytest.mark.engine

PAGES = [3, 5, 2]
NIGHTLY_2, NIGHTLY_4, NIGHTLY_8 = (pytest.param(ways, marks=pytest.mark.nightly) for ways in (2, 4, 8))
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
    "packed draft": "a draft model",
    "model without KDA": "this model: only KDA with plain MLA layers was tested",
    "page": "a tree page of 64 tokens: 2 pages of 64, one a rank, are not that",
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


def test_pages_of_any_width_lie_where_every_rank_has_its_tokens_and_nothing_else_is_a_page(rank_lab: RankLab) -> None:
    assert rank_lab.run("sharing.rows_of_pages", seed=7) == [[]]


def test_an_engine_with_other_ways_beside_a_warm_store_reads_its_own_pages_only(
    rank_lab: RankLab, store: Store
) -> None:
    found = [rank_lab.run("sharing.found_with", ranks=2, address=store.address, ways=ways) for ways in (2, 1, 2)]
    assert found == [[0, 0], [0, 0], [4 * PAGE, 4 * PAGE]]


@pytest.mark.parametrize("ways", [2, 8])
def test_a_prompt_is_cut_where_pages_of_the_tree_end(rank_lab: RankLab, store: Store, ways: int) -> None:
    page = PAGE * ways
    chunk, prompt = 3 * page - PAGE, 10 * page + 7
    (ends,) = rank_lab.run("sharing.chunk_ends", address=store.address, ways=ways, chunks=[chunk], prompt=prompt)
    assert ends["ours"] == [2 * page, 4 * page, 6 * page, 8 * page, prompt]
    assert [end for end in ends["SGLang's"][:-1] if end % page], "SGLang cuts inside of pages"


def test_a_pass_with_room_for_less_than_a_page_costs_no_later_checkpoint(rank_lab: RankLab, store: Store) -> None:
    """Running requests may leave little of a chunk; SGLang takes no checkpoint behind a cut off its grid."""
    page = PAGE * 8
    chunks = [page, page - 5, page, 2 * page - 5]
    (ends,) = rank_lab.run("sharing.chunk_ends", address=store.address, ways=8, chunks=chunks, prompt=8 * page)
    assert ends["ours"] == [page, 2 * page - PAGE, 2 * page, 3 * page, 4 * page, 5 * page, 6 * page, 7 * page, 8 * page]


def test_without_it_a_prompt_is_cut_as_ever(rank_lab: RankLab, store: Store) -> None:
    (ends,) = rank_lab.run("sharing.chunk_ends", address=store.address, ways=1, chunks=[200], prompt=500)
    assert ends["ours"] == ends["SGLang's"]


@pytest.mark.parametrize(
    ("ways", "checkpoints", "store_bytes", "put", "found"),
    [
        (2, "All", 0, 6, {"2": 2, "4": 4, "6": 6, "8": 8, "9": 9, "11": 11}),
        (4, "Adaptive", 0, 5, {"2": 2, "4": 4, "6": 6, "8": 8, "9": 9, "11": 9}),
        (2, "PromptEnd", 0, 1, {"2": 0, "4": 0, "6": 0, "8": 0, "9": 9, "11": 9}),
    ],
)
def test_each_policy_counts_in_pages_of_the_tree(
    rank_lab: RankLab, store: Store, ways: int, checkpoints: str, store_bytes: int, put: int, found: dict[str, int]
) -> None:
    results = rank_lab.run(
        "policies.stored", ranks=ways, address=store.address, checkpoints=checkpoints, store_bytes=store_bytes,
        ways=ways,
    )  # fmt: skip
    assert results == [{"kv": 11, "checkpoints": put, "found": found}] * ways


@pytest.mark.parametrize(
    ("touch", "rewrite", "while_filling"),
    [("Auto", "Disabled", True), ("Auto", "Enabled", False)],
    ids=["touched", "written again"],
)
@pytest.mark.parametrize("ways", [2, NIGHTLY_4, NIGHTLY_8])
def test_what_the_device_serves_stays_on_every_rank(
    rank_lab: RankLab, engine_env: Environment, touch: str, rewrite: str, while_filling: bool, ways: int
) -> None:
    with running_store(engine_env, capacity_bytes=ways * (3 << 20)) as store:
        results = rank_lab.run(
            "policies.in_use", ranks=ways, address=store.address, touch=touch, rewrite=rewrite,
            while_filling=while_filling, ways=ways,
        )  # fmt: skip
    assert results == [{"used": 4, "unused": 0}] * ways


@pytest.mark.nightly
@pytest.mark.parametrize("ways", [2, 4, 8])
def test_what_found_no_room_is_offered_again_on_every_rank(rank_lab: RankLab, store: Store, ways: int) -> None:
    results = rank_lab.run(
        "policies.held_back", ranks=ways, address=store.address, pid=store.process.pid, evicted=False, ways=ways
    )
    assert results == [{"waiting": 4, "found": [2] * 9, "order": list(range(9)), "leaked": {}}] * ways


@pytest.mark.parametrize(
    ("ways", "call", "found"),
    [(2, "batch_put_ranges_from_ptr", 0), (8, "batch_get_ranges_into_ptr", 4)],
    ids=["write", "read"],
)
def test_tokens_that_one_rank_lost_are_lost_to_all(
    rank_lab: RankLab, store: Store, ways: int, call: str, found: int
) -> None:
    """A page without the tokens of one rank is no page, and its prompt is computed and stored again."""
    page = PAGE * ways
    results = rank_lab.run("regressions.one_rank_fails", ranks=ways, address=store.address, call=call, ways=ways)
    assert results == [{"found": found * page, "landed": not found, "repaired": [4 * page, True, []]}] * ways


@pytest.mark.parametrize("ways", [NIGHTLY_2, 4, NIGHTLY_8])
def test_what_the_store_evicts_of_one_ranks_tokens_ends_that_request_only(
    rank_lab: RankLab, engine_env: Environment, ways: int
) -> None:
    page = PAGE * ways
    with running_store(engine_env, capacity_bytes=ways * (4 << 20)) as store:
        results = rank_lab.run("regressions.evicted_between", ranks=ways, address=store.address, ways=ways)
    ended = {"found": [6 * page] * 2, "landed": [False, True], "wrong": [], "in the tree": 0, "leaked": {}}
    assert results == [ended] * ways


HERE = Path(__file__).parent
SHARING = ["--tp-size", "2", "--dcp-size", "2", "--chunked-prefill-size", "320"]


@pytest.fixture
def shared_kv(tmp_path: Path) -> list[Path]:
    """Import paths of the plugin that computes attention over shared KV on the CPU."""
    metadata = tmp_path / "sharedkv-1.0.dist-info"
    metadata.mkdir()
    write_metadata(metadata, "sharedkv", "1.0")
    (metadata / "entry_points.txt").write_text("[sglang.srt.plugins]\nsharedkv = sharedkv:register\n")
    return [tmp_path, HERE / "sharedkv", HERE / "linkers", HERE]


@pytest.mark.parametrize(
    ("linker", "module", "equal"),
    [
        pytest.param("UmbraLinker", "umbra_linker.linker", True, id="restored"),
        pytest.param("ZeroingLinker", "zeroing_linker", False, id="zeroed bytes", marks=pytest.mark.nightly),
    ],
)
def test_the_real_engine_answers_from_restored_tokens_as_from_its_own(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, shared_kv: list[Path], linker: str, module: str,
    equal: bool,
) -> None:  # fmt: skip
    arguments = [*linker_arguments(store.address, linker=linker, module=module), *SHARING]
    engine = fork_launcher.launch(Launch(arguments, path=[*shared_kv, *kit_path]), f"dcp-{equal}")
    text, page = prompt(700, seed=3), 2 * PAGE
    engine.client.generate(text)
    wait_until_stored(engine.client, kv_objects=2 * (700 // page))
    on_device = engine.client.generate([*text, 9])
    engine.client.flush()
    restored = engine.client.generate([*text, 9])
    at_a_chunks_end = engine.client.generate([*text[: 2 * 256], 8])
    engine.stop()

    assert (on_device.device, on_device.host) == (640, 0)
    assert (restored.device, restored.host) == (0, 640)
    assert (restored.logprobs == on_device.logprobs) is equal
    assert at_a_chunks_end.cached == 512


def _stored_and_restored(engine: Engine, seed: int) -> tuple[int, bool]:
    """Serve a prompt of two pages of the tree; return what is restored of it, and whether the answer is the same."""
    before = total(engine.client, "umbra_linker_stored_objects_total", pool="kv")
    text = prompt(300, seed=seed)
    engine.client.generate(text)
    on_device = engine.client.generate([*text, 9])
    wait_until_stored(engine.client, kv_objects=int(before) + 2 * 2)
    engine.client.flush()
    restored = engine.client.generate([*text, 9])
    return restored.host, restored.logprobs == on_device.logprobs


@pytest.mark.nightly
def test_a_frozen_and_a_replaced_store_cost_hits_and_no_request(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, shared_kv: list[Path]
) -> None:
    arguments = [*linker_arguments(store.address, {"lookupDeadlineMilliseconds": 200}), *SHARING]
    engine = fork_launcher.launch(Launch(arguments, path=[*shared_kv, *kit_path]), "dcp-faults")
    client = engine.client
    first = _stored_and_restored(engine, seed=50)
    client.flush()
    store.freeze()
    try:
        frozen = client.generate([*prompt(300, seed=50), 9])
    finally:
        store.thaw()
    wait_for(lambda: total(client, "umbra_linker_breaker_open") == 0, 20.0, "the breaker stays open")
    wait_for(lambda: total(client, "umbra_linker_offload_queue_depth") == 0, 20.0, "nodes wait for ever")
    client.flush()
    thawed = client.generate([*prompt(300, seed=50), 9])
    store.replace()
    wait_for(lambda: total(client, "umbra_linker_reconnects_total") == 2, 20.0, "a rank did not connect anew")
    replaced = _stored_and_restored(engine, seed=51)
    engine.stop()

    assert first == replaced == (256, True)
    assert (frozen.host, thawed.host) == (0, 256)


@pytest.mark.nightly
def test_a_load_that_is_never_answered_ends_its_request_on_all_ranks(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, shared_kv: list[Path]
) -> None:
    arguments = linker_arguments(
        store.address, {"loadDeadlineSeconds": 2}, linker="FreezingLinker", module="freezing_linker"
    )
    engine = fork_launcher.launch(Launch([*arguments, *SHARING], path=[*shared_kv, *kit_path]), "dcp-fenced")
    client = engine.client
    client.generate(prompt(300, seed=60))
    wait_until_stored(client, kv_objects=2 * 2)
    client.flush()
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.generate([*prompt(300, seed=60), 9])
    killed = store.process.wait(5)
    store.replace()
    wait_for(lambda: total(client, "umbra_linker_reconnects_total") == 2, 20.0, "a rank did not connect anew")
    other = client.generate(prompt(300, seed=61))
    engine.stop()

    assert refused.value.code == 503
    assert killed == -signal.SIGKILL
    assert len(other.logprobs) == 4
