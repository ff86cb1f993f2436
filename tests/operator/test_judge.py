"""Every rule on a time series: it is told, it stays quiet, it is taken back. The reference stack's own figures first.

Each test is named after the reason that it is about; docs/explanation/health.md has a row for each.
"""

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from builders import DEPLOYMENT_SPEC, NOW, World, edited
from series import BUSY, COUNTERS, GIB, KEY, Series
from umbra_operator.advice import cache_status
from umbra_operator.api.v1alpha1 import K3DeploymentSpec
from umbra_operator.conditions import Reason, Type
from umbra_operator.events import UNWELL_PAUSE_SECONDS, of_status
from umbra_operator.judge import Assessment, Judge
from umbra_operator.readings import engine_reading
from umbra_operator.rules import RULES
from umbra_operator.status import status

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60.0


@pytest.fixture
def series() -> Series:
    """A healthy pod after half an hour of traffic."""
    found = Series()
    found.run(30 * MINUTE)
    assert found.reasons() == []
    return found


def test_a_healthy_engine_is_quiet_for_six_hours_and_told_seldom(series: Series) -> None:
    before = series.told
    for hour in range(6):
        # Its figures move as figures do.
        series.run(60 * MINUTE, hitTokens=4835 - 40 * (hour % 2), storedBytes=(18 + hour % 3) << 20)
        assert series.reasons() == []
    assert series.told - before <= 6, "a number that moves a little is no news"
    assert series.assessment().cache.hit_percent == 95
    assert cache_status(K3DeploymentSpec.model_validate(DEPLOYMENT_SPEC), series.assessment())["advice"] == []


# ---- ranks ----


def test_tree_cores_differ(series: Series) -> None:
    series.ranks["treeCore"] = {"rust": "0-2,4-7", "python": "3"}  # seven and one, as on the reference stack
    series.step()
    assert series.reasons() == [Reason.TREE_CORES_DIFFER]
    assert "rank 3 has python; ranks 0-2,4-7 have rust" in series.sentence()
    series.ranks["treeCore"] = {"python": "0-7"}
    series.step()
    assert series.reasons() == []


def test_page_names_differ(series: Series) -> None:
    series.ranks["keys"] = {"0.1.0 Auto t1": "0-6", "0.1.1 Auto t1": "7"}
    series.step()
    assert series.reasons() == [Reason.PAGE_NAMES_DIFFER]
    assert "rank 7 has 0.1.1 Auto t1" in series.sentence()
    series.ranks["keys"] = {"0.1.1 Auto t1": "0-7"}
    series.step()
    assert series.reasons() == []


def test_rank_missing(series: Series) -> None:
    series.ranks["reporting"] = "0-6"
    series.run(50)
    assert series.reasons() == []
    assert series.until(Reason.RANK_MISSING, 20) <= 20
    assert "of 8 ranks only 0-6 report" in series.sentence()
    series.ranks["reporting"] = "0-7"
    series.step()
    assert series.reasons() == []


def test_stores_differ(series: Series) -> None:
    series.ranks["store"] = {"1760000000.250": "5", "1760009999.000": "0-4,6-7"}
    series.run(50)
    assert series.reasons() == [], "ranks connect anew one after the other"
    series.until(Reason.STORES_DIFFER, 30)
    assert "rank 5 has 1760000000.250" in series.sentence()
    series.ranks["store"] = {"1760009999.000": "0-7"}
    series.step()
    assert series.reasons() == []


@pytest.mark.parametrize("what", ["hitPages", "evictedTokens"])
def test_ranks_diverge(series: Series, what: str) -> None:
    series.run(30 * MINUTE, **{f"{what}2": BUSY[what] * 0.97})
    assert series.reasons() == [], "three of a hundred"
    series.until(Reason.RANKS_DIVERGE, 20 * MINUTE, **{f"{what}2": BUSY[what] * 0.8})
    assert "rank 2" in series.sentence()
    series.until(None, 30 * MINUTE)


# ---- bytes ----


def test_stored_bytes_differ(series: Series) -> None:
    series.ranks["differentObjects"] = {"kv": {"3": 2}, "mamba": {"3": 1, "5": 4}}
    series.step()
    assert series.reasons() == [Reason.STORED_BYTES_DIFFER]
    assert "4 of pool mamba on rank 5, 2 of pool kv on rank 3, 1 of pool mamba on rank 3; " in series.sentence()
    series.run(70 * MINUTE)
    assert series.reasons() == [Reason.STORED_BYTES_DIFFER], "a sample that is well says little about the others"
    series.until(None, 10 * MINUTE)


def test_stored_bytes_differ_stays_told_while_only_the_engine_restarts(series: Series) -> None:
    series.ranks["differentObjects"] = {"kv": {"3": 2}}
    series.step()
    series.started_at += 5000
    series.ranks["differentObjects"] = {}
    series.digest["comparedObjects"] = 0
    series.run(10 * MINUTE, comparedObjects=0)
    assert series.reasons() == [Reason.STORED_BYTES_DIFFER]
    series.store["epoch"] = "e2"
    series.step()
    assert series.reasons() == [], "another store began empty"


def test_stored_bytes_differ_is_told_by_an_operator_that_came_later(series: Series) -> None:
    series.judge = Judge()
    series.ranks["differentObjects"] = {"kv": {str(rank): rank + 1 for rank in range(6)}}
    series.step()
    assert series.reasons() == [Reason.STORED_BYTES_DIFFER]
    assert series.sentence().count("of pool kv on rank") == 4
    assert "3 of pool kv on rank 2 and on 2 more; answers" in series.sentence()


def test_an_older_kit_compares_nothing_and_is_not_judged_by_it() -> None:
    series = Series()
    del series.ranks["differentObjects"]
    series.run(5 * MINUTE, comparedObjects=0)
    said = conditions(settled(), series.assessment())
    assert (said[Type.CANARY_PASSED]["status"], said[Type.CANARY_PASSED]["reason"]) == ("Unknown", Reason.NOT_MEASURED)
    assert said[Type.READY]["status"] == "True"
    del series.digest["comparedObjects"]
    assert engine_reading(series.engine()) is not None


# ---- caches ----


def test_store_frozen(series: Series) -> None:
    began = series.now
    told = 0.0
    while series.now - began < 27 * MINUTE:  # as long as the reference stack's store stood still
        series.digest["oldestCallSeconds"] = series.now - began
        series.step(hitTokens=0, calls=0, fastCalls=0, storedBytes=0, loads=0, offloads=0)
        if not told and series.reasons() == [Reason.STORE_FROZEN]:
            told = series.now - began
    assert 0 < told <= 60
    assert series.reasons() == [Reason.STORE_FROZEN]
    assert re.search(r"has not answered a call for \d{3,4} s", series.sentence())
    series.digest["oldestCallSeconds"] = 0.0
    series.run(30)
    assert series.reasons() == [Reason.STORE_FROZEN], "one answer is not a recovery"
    series.until(None, 60)


def test_store_frozen_is_quiet_for_a_slow_call_and_told_when_ranks_stop_asking(series: Series) -> None:
    for age in (14.0, 3.0, 14.0):
        series.digest["oldestCallSeconds"] = age
        series.step()
    assert series.reasons() == []
    series.ranks["breakerOpen"] = "3"
    series.run(30)
    assert series.reasons() == [Reason.STORE_FROZEN]
    assert "rank 3 do" in series.sentence() or "rank 3 does" in series.sentence()


def test_store_slow(series: Series) -> None:
    series.until(Reason.STORE_SLOW, 10 * MINUTE, fastCalls=BUSY["calls"] * 0.9)
    assert "of the store's answers take longer than 0.1 s" in series.sentence()
    series.until(None, 20 * MINUTE)
    series.run(20 * MINUTE, calls=0.1, fastCalls=0.1)
    series.run(20 * MINUTE, calls=0.1, fastCalls=0.0)
    assert series.reasons() == [], "a few calls say nothing"


def test_eviction_stuck(series: Series) -> None:
    series.store["stuck"] += 2
    series.step()
    assert series.reasons() == [Reason.EVICTION_STUCK]
    assert "2 times in 10 minutes" in series.sentence()
    series.until(None, 15 * MINUTE)


def test_hot_pages_evicted(series: Series) -> None:
    series.run(30 * MINUTE, evictionRounds=1, hot=BUSY["lookupPages"] * 0.08)
    assert series.reasons() == [], "evictions of what nobody asks again are a store's business"
    # 46 % of what the reference stack's store evicted was asked again.
    series.until(Reason.HOT_PAGES_EVICTED, 30 * MINUTE, evictionRounds=1, hot=BUSY["lookupPages"] * 0.46)
    assert re.search(r"[2-4]\d% of the pages", series.sentence())
    series.until(None, 45 * MINUTE)


def test_hit_ratio_fell(series: Series) -> None:
    # 96.7 % while the store of 1160 GiB fills, 82.4 % once it is full and evicts.
    took = series.until(Reason.HIT_RATIO_FELL, 40 * MINUTE, hitTokens=5000 * 0.824, evictionRounds=1)
    assert took >= 10 * MINUTE
    assert "of the prompts' tokens are hits, after 96.7% before" in series.sentence()
    series.run(20 * MINUTE, hitTokens=5000 * 0.824, evictionRounds=1)
    assert "82.4% of" in series.sentence()
    series.until(None, 60 * MINUTE, hitTokens=5000 * 0.964, evictionRounds=1)


def test_hit_ratio_fell_is_quiet_while_the_store_evicts_nothing_and_with_few_prompts(series: Series) -> None:
    series.run(60 * MINUTE, hitTokens=5000 * 0.5)
    assert series.reasons() == [], "new conversations are nobody's fault"
    series.run(60 * MINUTE, promptTokens=100, hitTokens=10, evictionRounds=1)
    assert series.reasons() == []


def test_offloads_held_back(series: Series) -> None:
    series.until(Reason.OFFLOADS_HELD_BACK, 20 * MINUTE, heldBackOffloads=BUSY["offloads"])
    assert "of what should be stored is not" in series.sentence()
    series.until(None, 40 * MINUTE)


# ---- engines ----


def test_engine_stalled(series: Series) -> None:
    took = series.until(Reason.ENGINE_STALLED, 3 * MINUTE, **dict.fromkeys(BUSY, 0.0))
    assert 100 <= took <= 150, "before SGLang's watchdog, which waits for 300 s"
    assert "20 requests run and no token was computed" in series.sentence()
    series.step()
    assert series.reasons() == []
    series.digest["runningRequests"] = 0
    series.run(30 * MINUTE, **dict.fromkeys(BUSY, 0.0))
    assert series.reasons() == [], "an idle engine is not stalled"


def test_engine_silent(series: Series) -> None:
    series.problem = "/metrics on port 30000 did not end within 10 s"
    series.run(110)
    assert series.reasons() == []
    series.until(Reason.ENGINE_SILENT, 30)
    assert series.problem in series.sentence()
    series.problem = None
    series.step()
    assert series.reasons() == []


def test_checkpoints_locked(series: Series) -> None:
    series.digest["lockedCheckpoints"] = 60
    series.run(10 * MINUTE)
    assert series.reasons() == [], "half of them wait in a burst"
    series.digest["lockedCheckpoints"] = 117  # of 120, before the reference stack's engine ended
    series.until(Reason.CHECKPOINTS_LOCKED, 80)
    assert "117 of 120 checkpoint slots" in series.sentence()
    series.digest["lockedCheckpoints"] = 80
    series.run(10 * MINUTE)
    assert series.reasons() == [Reason.CHECKPOINTS_LOCKED], "between the thresholds nothing changes"
    series.digest["lockedCheckpoints"] = 20
    series.until(None, 80)


def test_loads_fail(series: Series) -> None:
    series.until(Reason.LOADS_FAIL, 15 * MINUTE, failedLoads=0.1)
    assert re.search(r"\d+ of \d+ loads failed in 10 minutes", series.sentence())
    series.until(None, 40 * MINUTE)


# ---- what is remembered ----


def test_another_engine_is_not_blamed_for_the_one_before(series: Series) -> None:
    series.until(Reason.ENGINE_STALLED, 3 * MINUTE, **dict.fromkeys(BUSY, 0.0))
    series.started_at += 9000
    series.digest.update(dict.fromkeys(COUNTERS, 0))
    series.step()
    assert series.reasons() == []


def test_a_store_that_began_empty_is_not_measured_by_the_full_one(series: Series) -> None:
    series.store.update(epoch="e2", rounds=0)
    series.run(60 * MINUTE, hitTokens=5000 * 0.5, evictionRounds=1)
    assert series.reasons() == []


def test_what_was_seen_is_over_when_nothing_can_be_told_for_half_an_hour(series: Series) -> None:
    series.until(Reason.HOT_PAGES_EVICTED, 40 * MINUTE, evictionRounds=1, hot=BUSY["lookupPages"] * 0.9)
    series.digest["runningRequests"] = 0
    took = series.until(None, 60 * MINUTE, **dict.fromkeys(BUSY, 0.0))
    assert took > 20 * MINUTE


def test_a_gone_pod_is_forgotten(series: Series) -> None:
    series.judge.forget(set())
    assert series.judge.assessment(KEY) is None
    assert not series.judge._pods
    assert not series.judge._ranks


def test_several_pods_are_one_deployment() -> None:
    judge = Judge()
    first, second = Series(judge, "k3-0-0"), Series(judge, "k3-1-0")
    for _ in range(120):
        first.step()
        second.step(hitTokens=5000 * 0.7)
    second.ranks["treeCore"] = {"rust": "0-6", "python": "7"}
    second.step()
    (finding,) = first.assessment().findings
    assert (finding.pod, finding.reason) == ("k3-1-0", Reason.TREE_CORES_DIFFER)
    assert first.assessment().cache.hit_percent == 85


@pytest.mark.parametrize(
    "change",
    [
        {"ranks": None},
        {"promptTokens": -1},
        {"promptTokens": 10**400},
        {"oldestCallSeconds": "x"},
        {"ranks": {"reporting": "all"}},
        {"ranks": {"differentObjects": {"kv": 3}}},
        {"comparedObjects": -1},
        {"missedPages": [1]},
    ],
)
def test_numbers_that_are_none_are_refused_where_they_are_read(change: dict[str, Any]) -> None:
    series = Series()
    digest = {**series.digest, "at": 1.0, "ranks": series.ranks}
    digest["ranks"] = {**series.ranks, **change.pop("ranks")} if change.get("ranks") else digest["ranks"]
    digest.update(change)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        engine_reading({"startedAt": 1.0, "digest": digest})


# ---- what users see ----


def conditions(world: World, assessment: Assessment | None) -> dict[Type, dict[str, Any]]:
    found = status(world.observe(), world.plan(), world.agents, NOW, assessment)
    return {condition["type"]: condition for condition in found["conditions"]}


def settled() -> World:
    world = World()
    world.run()
    return world


def test_a_rank_that_differs_lowers_ready_and_a_cold_cache_does_not(series: Series) -> None:
    world = settled()
    well = conditions(world, series.assessment())
    assert {well[kind]["status"] for kind in (Type.RANKS_CONSISTENT, Type.CACHE_EFFECTIVE, Type.READY)} == {"True"}
    assert well[Type.DEGRADED]["status"] == "False"
    series.digest["oldestCallSeconds"] = 99.0
    series.run(30)
    cold = conditions(world, series.assessment())
    assert (cold[Type.CACHE_EFFECTIVE]["status"], cold[Type.READY]["status"]) == ("False", "True")
    assert cold[Type.CACHE_EFFECTIVE]["message"].startswith("k3-0-0: the store has not answered")
    series.ranks["treeCore"] = {"rust": "0-6", "python": "7"}
    series.step()
    odd = conditions(world, series.assessment())
    assert (odd[Type.READY]["status"], odd[Type.READY]["reason"]) == ("False", Reason.TREE_CORES_DIFFER)
    assert odd[Type.STALLED]["reason"] == Reason.TREE_CORES_DIFFER
    assert odd[Type.AVAILABLE]["status"] == "True"


def test_bytes_that_differ_lower_ready_with_rank_and_pool_in_the_message(series: Series) -> None:
    world = settled()
    well = conditions(world, series.assessment())
    assert (well[Type.CANARY_PASSED]["status"], well[Type.CANARY_PASSED]["reason"]) == ("True", Reason.PASSED)
    series.ranks["differentObjects"] = {"mamba": {"5": 1}}
    series.step()
    wrong = conditions(world, series.assessment())
    assert (wrong[Type.CANARY_PASSED]["status"], wrong[Type.READY]["status"]) == ("False", "False")
    assert wrong[Type.READY]["reason"] == wrong[Type.STALLED]["reason"] == Reason.STORED_BYTES_DIFFER
    assert wrong[Type.CANARY_PASSED]["message"].startswith("k3-0-0: samples came back from the store with other bytes")
    assert "1 of pool mamba on rank 5" in wrong[Type.CANARY_PASSED]["message"]
    assert wrong[Type.AVAILABLE]["status"] == "True"


def test_an_operator_that_has_measured_nothing_yet_says_what_was_said_before(series: Series) -> None:
    world = settled()
    assert conditions(world, None)[Type.CACHE_EFFECTIVE]["reason"] == Reason.NOT_MEASURED
    series.digest["lockedCheckpoints"] = 117
    series.run(90)
    before = status(world.observe(), world.plan(), world.agents, NOW, series.assessment())
    record = world.memory.deployments[KEY]
    world.memory.deployments[KEY] = dataclasses.replace(record, status=before)
    after = status(world.observe(), world.plan(), world.agents, "2026-12-02T09:00:00Z", None)
    assert after == before


def test_an_event_for_each_new_reason_and_none_soon_again(series: Series) -> None:
    world = settled()
    before = status(world.observe(), world.plan(), world.agents, NOW, series.assessment())["conditions"]
    series.digest["lockedCheckpoints"] = 117
    series.run(90)
    after = status(world.observe(), world.plan(), world.agents, NOW, series.assessment())["conditions"]
    (event,) = of_status(before, after)
    assert (event.warning, event.reason, event.pause_seconds) == (
        True,
        Reason.CHECKPOINTS_LOCKED,
        UNWELL_PAUSE_SECONDS,
    )
    assert "117 of 120" in event.note
    assert of_status(after, before) == []


def test_advice_is_a_patch_of_the_spec_that_the_api_takes(series: Series) -> None:
    series.until(
        Reason.HIT_RATIO_FELL, 60 * MINUTE, hitTokens=5000 * 0.824, evictionRounds=1, storedBytes=1160 * GIB / 1500
    )
    wasteful = {"touch": {"mode": "Off"}, "rewriteMissing": "Disabled", "checkpoints": "All", "keyLayout": "PerRank"}
    spec = K3DeploymentSpec.model_validate(
        edited(DEPLOYMENT_SPEC, {"cache.dram.size": "1160Gi", "cache.policy": wasteful})
    )
    series.run(15 * MINUTE, hitTokens=5000 * 0.824, evictionRounds=1, storedBytes=1160 * GIB / 1500)
    cache = cache_status(spec, series.assessment())
    assert (cache["hitPercent"] in (80, 85), cache["retentionSeconds"]) == (True, 1500)  # full after 25 minutes
    touch, checkpoints, share, grow = cache["advice"]
    assert touch["patch"] == '{"spec":{"cache":{"policy":{"touch":{"mode":"Auto"}}}}}'
    assert checkpoints["patch"] == '{"spec":{"cache":{"policy":{"checkpoints":"Adaptive"}}}}'
    assert share["patch"] == '{"spec":{"cache":{"policy":{"keyLayout":"Auto"}}}}'
    assert grow["patch"] == '{"spec":{"cache":{"dram":{"size":"1740Gi"}}}}'
    assert "written over in 25 minutes" in grow["message"]
    K3DeploymentSpec.model_validate(edited(DEPLOYMENT_SPEC, {"cache.dram.size": "1740Gi"}))
    plain = K3DeploymentSpec.model_validate(edited(DEPLOYMENT_SPEC, {"cache.dram.size": "1160Gi"}))
    assert [advice["name"] for advice in cache_status(plain, series.assessment())["advice"]] == ["GrowStore"]


def test_every_rule_has_its_row_and_its_test() -> None:
    page = (ROOT / "docs/explanation/health.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([A-Z]\w+) \|", page, re.MULTILINE)
    assert rows == [(rule.reason.value, rule.condition.value) for rule in RULES]
    tests = {name for name, _ in inspect.getmembers(sys.modules[__name__], inspect.isfunction)}
    snake = [re.sub(r"(?<!^)(?=[A-Z])", "_", row).lower() for row, _ in rows]
    assert [name for name in snake if f"test_{name}" not in tests] == []
