"""The canary finds bytes that changed in the real store's memory, names pool and rank, and finds nothing else."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cpuengine.client import EngineClient
from cpuengine.launcher import ForkLauncher, Launch
from cpuengine.processes import wait_for
from cpuengine.store import Store
from engine_fixtures import linker_arguments
from ranklab import RankLab
from traffic import prompt, total
from umbra_agent.digest import digest
from umbra_operator.conditions import Reason, Type
from umbra_operator.readings import engine_reading
from umbra_operator.rules import RULES, Reading, Signal, Window

pytestmark = pytest.mark.engine

PAGES = [3, 5, 2, 4]
POOLS = {"kv", "draft", "mamba"}
HERE = Path(__file__).parent


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_what_was_stored_is_equal_on_every_rank_and_in_every_pool(rank_lab: RankLab, store: Store, ranks: int) -> None:
    results = rank_lab.run("canary.watched", ranks=ranks, address=store.address, pages=PAGES)
    everything = {pool for found in results for pool in found}
    assert everything == POOLS
    assert {result for found in results for pool in found.values() for result in pool} == {"equal"}


def test_ranks_that_share_the_tokens_of_a_page_each_compare_their_own(rank_lab: RankLab, store: Store) -> None:
    poison = {"rank": 1, "pool": "kv"}
    results = rank_lab.run("canary.watched", ranks=2, address=store.address, pages=PAGES, poison=poison, ways=2)
    assert [set(found["kv"]) for found in results] == [{"equal"}, {"different"}]
    assert {result for found in results for result in found["mamba"]} == {"equal"}


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


def judged(client: EngineClient) -> Signal | None:
    """What the operator's rule says of what the engine says, on the way that both take."""
    found = digest(client.request("/metrics"), time.time())
    reading = engine_reading({"startedAt": 1.0, "digest": found.to_status()})
    assert reading is not None
    (rule,) = [rule for rule in RULES if rule.condition is Type.CANARY_PASSED]
    assert rule.reason is Reason.STORED_BYTES_DIFFER
    return rule.look(Window((Reading(0.0, reading, None, None),), 1, None))


def compared(client: EngineClient, result: str) -> float:
    return total(client, "umbra_linker_canary_objects_total", result=result)


def test_a_real_engine_beside_a_store_that_is_well_is_well(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    engine = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "canary")
    client = engine.client
    for seed in range(12):
        client.generate(prompt(300, seed=seed))
    wait_for(lambda: compared(client, "equal") > 0, 20.0, "nothing was compared")
    for seed in range(12):
        client.flush()
        client.generate([*prompt(300, seed=seed), 9])
    said = judged(client)
    cpu = total(client, "umbra_linker_canary_cpu_seconds_total")
    engine.stop()

    assert said is not None
    assert not said.bad, said.sentence
    assert cpu > 0


def test_a_real_engine_beside_a_store_that_changes_bytes_is_told_with_rank_and_pool(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    arguments = linker_arguments(store.address, linker="PoisoningLinker", module="poisoning_linker")
    engine = fork_launcher.launch(Launch(arguments, path=[HERE, HERE / "linkers", *kit_path]), "poisoned")
    client = engine.client
    for seed in range(4):
        client.generate(prompt(300, seed=seed))
    wait_for(lambda: compared(client, "different") > 0, 20.0, "what changed was not found")
    said = judged(client)
    engine.stop()

    assert said is not None
    assert said.bad
    assert " of pool mamba on rank 0; answers may be wrong: delete the pod" in said.sentence
