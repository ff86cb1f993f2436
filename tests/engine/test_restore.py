"""A prefix restored from the store gives the same answer as one that never left the device.

Real SGLang, real radix tree, real UMBP store and client; a tiny KDA and MLA model on the CPU. A cold run is never
compared: its chunks differ, so its rounding does too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.launcher import Engine, ForkLauncher, Launch, launch_normally
from cpuengine.store import Store
from engine_fixtures import linker_arguments
from traffic import PAGE, prompt, total, wait_until_stored

pytestmark = pytest.mark.engine

LINKERS = Path(__file__).parent / "linkers"
PROMPT = prompt(200)
LONGER = [*PROMPT, 11, 12, 13]
RESTORABLE = len(PROMPT) // PAGE * PAGE


def _store_prompt(engine: Engine, *, copies: int = 1) -> None:
    engine.client.generate(PROMPT)
    wait_until_stored(engine.client, kv_objects=RESTORABLE // PAGE * copies)


def test_a_restored_prefix_equals_a_device_hit(fork_launcher: ForkLauncher, kit_path: list[Path], store: Store) -> None:
    engine = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "restore")
    _store_prompt(engine)
    on_device = engine.client.generate(LONGER)
    engine.client.flush()
    restored = engine.client.generate(LONGER)
    engine.stop()

    assert (on_device.device, on_device.host) == (RESTORABLE, 0)
    assert (restored.device, restored.host) == (0, RESTORABLE)
    assert restored.logprobs == on_device.logprobs


def test_more_than_a_thousand_restored_tokens(fork_launcher: ForkLauncher, kit_path: list[Path], store: Store) -> None:
    text = prompt(1100, seed=1)
    engine = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "long")
    engine.client.generate(text)
    wait_until_stored(engine.client, kv_objects=1088 // PAGE)
    on_device = engine.client.generate([*text, 9])
    engine.client.flush()
    restored = engine.client.generate([*text, 9])
    read = total(engine.client, "umbra_linker_read_objects_total", pool="kv")
    engine.stop()

    assert restored.host == on_device.device >= 1024
    assert restored.logprobs == on_device.logprobs
    assert read == restored.host // PAGE


def test_zeroed_bytes_change_the_answer(fork_launcher: ForkLauncher, kit_path: list[Path], store: Store) -> None:
    arguments = linker_arguments(store.address, linker="ZeroingLinker", module="zeroing_linker")
    engine = fork_launcher.launch(Launch(arguments, path=[LINKERS, *kit_path]), "zeroed")
    _store_prompt(engine)
    on_device = engine.client.generate(LONGER)
    engine.client.flush()
    restored = engine.client.generate(LONGER)
    engine.stop()

    assert restored.host == RESTORABLE
    assert restored.logprobs != on_device.logprobs


def test_a_second_engine_restores_what_the_first_stored(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    first = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "first")
    _store_prompt(first)
    expected = first.client.generate(LONGER)
    first.stop()
    second = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "second")
    restored = second.client.generate(LONGER)
    second.stop()

    assert restored.host == RESTORABLE
    assert restored.logprobs == expected.logprobs


def test_another_key_layout_misses_instead_of_misreading(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    first = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "auto")
    _store_prompt(first)
    first.stop()
    arguments = linker_arguments(store.address, {"keyLayout": "PerRank"})
    second = fork_launcher.launch(Launch(arguments, path=kit_path), "per-rank")
    answer = second.client.generate(LONGER)
    second.stop()

    assert answer.cached == 0


@pytest.mark.parametrize(("layout", "copies"), [("Auto", 1), ("PerRank", 2)])
def test_two_ranks_store_each_page_as_often_as_the_layout_says(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store, layout: str, copies: int
) -> None:
    arguments = [*linker_arguments(store.address, {"keyLayout": layout}), "--tp-size", "2"]
    bound = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    engine = fork_launcher.launch(Launch(arguments, bound, kit_path), f"tp2-{layout}")
    text = prompt(520, seed=2)
    pages = 520 // PAGE
    engine.client.generate(text)
    wait_until_stored(engine.client, kv_objects=pages * copies)
    by_rank = [
        {
            pool: total(engine.client, "umbra_linker_stored_objects_total", rank=rank, pool=pool)
            for pool in ("kv", "mamba")
        }
        for rank in ("0", "1")
    ]
    on_device = engine.client.generate([*text, 9])
    engine.client.flush()
    restored = engine.client.generate([*text, 9])
    engine.stop()

    assert by_rank[0]["kv"] + by_rank[1]["kv"] == pages * copies
    assert min(rank["kv"] for rank in by_rank) > 0
    assert by_rank[0]["mamba"] == by_rank[1]["mamba"] > 0
    assert restored.host == on_device.device == pages * PAGE
    assert restored.logprobs == on_device.logprobs


def test_the_ordinary_launcher_serves_and_restores(
    engine_env: Environment, kit_path: list[Path], store: Store, tmp_path: Path
) -> None:
    launch = Launch(linker_arguments(store.address), path=kit_path)
    engine = launch_normally(engine_env, launch, tmp_path, "ordinary")
    try:
        _store_prompt(engine)
        on_device = engine.client.generate(LONGER)
        engine.client.flush()
        restored = engine.client.generate(LONGER)
    finally:
        engine.stop()

    assert restored.host == RESTORABLE
    assert restored.logprobs == on_device.logprobs
