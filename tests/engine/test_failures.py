"""What a user and an operator see when the store fails: misses and counters, never a wrong answer."""

from __future__ import annotations

import signal
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cpuengine.launcher import Engine, ForkLauncher, Launch
from cpuengine.processes import wait_for
from cpuengine.store import Store
from engine_fixtures import linker_arguments
from traffic import PAGE, prompt, total, wait_until_stored

pytestmark = pytest.mark.engine

LINKERS = Path(__file__).parent / "linkers"


def test_a_dead_store_costs_hits_and_nothing_else(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    engine = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "dead-store")
    store.stop()
    answer = engine.client.generate(prompt(200, seed=3))
    client = engine.client
    wait_for(lambda: total(client, "umbra_linker_failed_offloads_total") > 0, 20.0, "no failed offload was counted")
    stored = total(client, "umbra_linker_stored_objects_total")
    hits = total(client, "umbra_linker_hit_pages_total")
    engine.stop()

    assert len(answer.logprobs) == 4
    assert (stored, hits) == (0, 0)


def test_an_object_lost_before_its_load_ends_that_request_only(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    arguments = linker_arguments(store.address, linker="LosingLinker", module="losing_linker")
    engine = fork_launcher.launch(Launch(arguments, path=[LINKERS, *kit_path]), "losing")
    text = prompt(200, seed=4)
    engine.client.generate(text)
    wait_until_stored(engine.client, kv_objects=200 // PAGE)
    engine.client.flush()
    with pytest.raises(urllib.error.HTTPError) as refused:
        engine.client.generate([*text, 9])
    other = engine.client.generate(prompt(80, seed=5))
    failed = total(engine.client, "umbra_linker_failed_loads_total")
    loaded = total(engine.client, "umbra_linker_loads_total")
    engine.stop()

    assert refused.value.code == 503
    assert "External KV cache load failed" in refused.value.read().decode()
    assert len(other.logprobs) == 4
    assert (failed, loaded) == (1, 0)


def test_a_frozen_store_blocks_neither_flush_nor_metrics(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    engine = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "frozen-store")
    client = engine.client
    short = prompt(40, seed=6)  # less than a page: the scheduler asks the store nothing about it
    client.generate(short)
    text = prompt(80, seed=7)
    _freeze_before_offload(engine, store, text)
    try:
        wait_for(lambda: total(client, "umbra_linker_oldest_call_seconds") > 1, 20.0, "no age of a call was seen")
        begin = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as refused:
            client.flush()
        waited = time.monotonic() - begin
        pending = total(client, "umbra_linker_offload_queue_depth")
        age = total(client, "umbra_linker_offload_oldest_seconds")
    finally:
        store.thaw()
    wait_until_stored(client, kv_objects=80 // PAGE)
    client.flush()
    restored = client.generate([*text, 9])
    engine.stop()

    assert refused.value.code == 400
    assert waited < 5
    assert pending == 1
    assert age > 1
    assert restored.host == 80 // PAGE * PAGE


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_frozen_store_costs_hits_but_no_request_and_hits_resume_after_the_thaw(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, ranks: int
) -> None:
    arguments = [*linker_arguments(store.address, {"lookupDeadlineMilliseconds": 200}), "--tp-size", str(ranks)]
    engine = fork_launcher.launch(Launch(arguments, path=kit_path), f"thaw-{ranks}")
    client = engine.client
    first, second = prompt(200, seed=8), prompt(200, seed=9)
    for text in (first, second):
        client.generate(text)
    on_device = [client.generate([*text, 9]) for text in (first, second)]
    wait_until_stored(client, kv_objects=2 * (200 // PAGE))
    client.flush()
    store.freeze()
    try:
        waited = total(client, "umbra_linker_lookup_seconds_sum")
        frozen = [client.generate([*text, 9]) for text in (first, second)]
        waited = total(client, "umbra_linker_lookup_seconds_sum") - waited
        late, unasked = (
            total(client, "umbra_linker_missed_pages_total", reason=reason) for reason in ("deadline", "breaker")
        )
        open_breakers = total(client, "umbra_linker_breaker_open")
    finally:
        store.thaw()
    wait_for(lambda: total(client, "umbra_linker_breaker_open") == 0, 20.0, "the breaker stays open")
    wait_for(lambda: total(client, "umbra_linker_offload_queue_depth") == 0, 20.0, "nodes wait for ever")
    client.flush()
    thawed = [client.generate([*text, 9]) for text in (first, second)]
    engine.stop()

    assert [answer.host for answer in frozen] == [0, 0]
    assert (late, unasked) == (ranks * (200 // PAGE), ranks * (200 // PAGE)), "the second request does not wait again"
    assert 0.2 * ranks <= waited < 0.2 * ranks + 2, "each rank waited for one deadline"
    assert open_breakers == ranks
    assert [answer.host for answer in thawed] == [200 // PAGE * PAGE] * 2
    assert [answer.logprobs for answer in thawed] == [answer.logprobs for answer in on_device]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_store_that_was_replaced_is_stored_to_and_restored_from_without_an_engine_restart(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, ranks: int
) -> None:
    arguments = [*linker_arguments(store.address), "--tp-size", str(ranks)]
    engine = fork_launcher.launch(Launch(arguments, path=kit_path), f"replaced-{ranks}")
    client = engine.client
    restored = []
    for life in range(3):
        if life:
            store.replace()
            wait_for(
                lambda wanted=ranks * life: total(client, "umbra_linker_reconnects_total") == wanted,  # type: ignore[misc]
                20.0,
                "a rank did not connect to the new store",
            )
        before = total(client, "umbra_linker_stored_objects_total", pool="kv")
        text = prompt(200, seed=20 + life)
        client.generate(text)
        on_device = client.generate([*text, 9])
        wait_until_stored(client, kv_objects=int(before) + 200 // PAGE)
        client.flush()
        answer = client.generate([*text, 9])
        restored.append((answer.host, answer.logprobs == on_device.logprobs))
    engine.stop()

    assert restored == [(200 // PAGE * PAGE, True)] * 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_load_that_the_store_never_answers_ends_the_store_and_its_requests_only(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, ranks: int
) -> None:
    settings = {"loadDeadlineSeconds": 2}
    arguments = linker_arguments(store.address, settings, linker="FreezingLinker", module="freezing_linker")
    launch = Launch([*arguments, "--tp-size", str(ranks)], path=[LINKERS, LINKERS.parent, *kit_path])
    engine = fork_launcher.launch(launch, f"fenced-{ranks}")
    client = engine.client
    text = prompt(200, seed=30)
    client.generate(text)
    wait_until_stored(client, kv_objects=200 // PAGE)
    client.flush()
    begin = time.monotonic()
    with pytest.raises(urllib.error.HTTPError) as refused:
        client.generate([*text, 9])
    waited = time.monotonic() - begin
    killed = store.process.wait(5)
    fenced = total(client, "umbra_linker_fenced_stores_total")
    store.replace()
    wait_for(lambda: total(client, "umbra_linker_reconnects_total") == ranks, 20.0, "no new connection")
    stored = total(client, "umbra_linker_stored_objects_total", pool="kv")
    other = client.generate(prompt(200, seed=31))
    wait_until_stored(client, kv_objects=int(stored) + 200 // PAGE)
    engine.stop()

    assert refused.value.code == 503
    assert "External KV cache load failed" in refused.value.read().decode()
    assert 2 <= waited < 20
    assert killed == -signal.SIGKILL
    assert 1 <= fenced <= ranks
    assert len(other.logprobs) == 4


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_frozen_store_holds_no_more_of_the_device_than_it_may(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, ranks: int
) -> None:
    settings = {"offloadBackpressurePercent": 5, "lookupDeadlineMilliseconds": 50}
    launch = Launch([*linker_arguments(store.address, settings), "--tp-size", str(ranks)], path=kit_path)
    engine = fork_launcher.launch(launch, f"backpressure-{ranks}")
    client = engine.client
    client.generate(prompt(80, seed=40))
    wait_until_stored(client, kv_objects=80 // PAGE)
    store.freeze()
    try:
        asked = 0
        while total(client, "umbra_linker_skipped_offloads_total") == 0 and asked < 60:
            client.generate(prompt(80, seed=41 + asked))
            asked += 1
        held = total(client, "umbra_linker_offload_queue_depth")
        for number in range(4):
            client.generate(prompt(80, seed=141 + number))
        held_later = total(client, "umbra_linker_offload_queue_depth")
        skipped = total(client, "umbra_linker_skipped_offloads_total")
    finally:
        store.thaw()
    wait_for(lambda: total(client, "umbra_linker_offload_queue_depth") == 0, 20.0, "nodes wait for ever")
    failed = total(client, "umbra_linker_failed_offloads_total")
    engine.stop()

    assert 1 < asked < 60
    assert held == held_later == ranks * (asked - 1)
    assert skipped == ranks * 5
    assert failed == 0


def _freeze_before_offload(engine: Engine, store: Store, text: list[int]) -> None:
    """Stop the store while the engine computes ``text``: after its lookup, before its page is stored."""
    before = total(engine.client, "umbra_linker_lookups_total")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(engine.client.generate, text, 48)
        wait_for(lambda: total(engine.client, "umbra_linker_lookups_total") > before, 20.0, "no lookup", every=0.01)
        store.freeze()
        answer.result()
