"""What a user and an operator see when the store fails: misses and counters, never a wrong answer."""

from __future__ import annotations

import urllib.error
from pathlib import Path

import pytest

from cpuengine.launcher import ForkLauncher, Launch
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
