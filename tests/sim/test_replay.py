"""Replays: deterministic, the same requests whatever the policy, and ideal without eviction."""

import json
from pathlib import Path

import pytest

from simtraces import growing, write_lines, write_tar
from umbra_linker.shape import Shape
from umbra_sim.cache import Cache
from umbra_sim.device import Device
from umbra_sim.policies import POLICIES, Recency
from umbra_sim.readers import read
from umbra_sim.replay import Load, Script, repeat, replay
from umbra_sim.simulate import Setup, simulate
from umbra_sim.tier import Tier
from umbra_sim.trace import Trace

GIB = 1 << 30
LOAD = Load(lanes=3, min_requests=10, seconds=900.0)


@pytest.fixture
def agents(tmp_path: Path) -> Trace:
    sessions = [growing(str(n), 20 + n, first=200 + 40 * n, step=9 + n % 4) for n in range(6)]
    return read(write_tar(tmp_path / "agents.tar.xz", sessions))


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_same_seed_gives_the_same_and_pages_add_up(agents: Trace, policy: str) -> None:
    def figures(seed: int) -> tuple[object, ...]:
        outcome = simulate(agents, POLICIES[policy], 20 * GIB, Setup(load=LOAD, device_checkpoints=8), seed)
        counts, tier = outcome.counts, outcome.tier
        assert counts.device_pages + counts.store_pages + counts.missed_pages == counts.looked_up_pages
        assert 0 <= counts.hit_ratio <= 1
        return counts.hits, counts.prompts, counts.used, tier.bytes_written, tier.filled_at

    assert figures(1) == figures(1)
    assert figures(1) != figures(2)


def test_a_store_that_never_evicts_is_ideal(agents: Trace) -> None:
    setup = Setup(load=LOAD, device_checkpoints=8)
    outcome = simulate(agents, POLICIES["infinite"], GIB, setup, 0)
    assert outcome.tier.kv.evicted == outcome.tier.checkpoints.evicted == 0
    large = simulate(agents, POLICIES["kv-once"], 10_000 * GIB, setup, 0)
    assert outcome.counts.hits == large.counts.hits
    small = simulate(agents, POLICIES["kv-once"], 4 * GIB, setup, 0)
    assert small.counts.hit_ratio < outcome.counts.hit_ratio


def test_infinite_equals_the_ideal_of_an_open_loop_within_a_tenth_of_a_point(tmp_path: Path) -> None:
    """Each prompt is one of the prefixes that grow, so the ideal is all but what is new in each."""
    lines = [
        {"timestamp": n, "input_length": 512 * (n + 1), "output_length": 1, "hash_ids": list(range(n + 1))}
        for n in range(200)
    ]
    trace = read(write_lines(tmp_path / "m.jsonl", [json.dumps(line) + "\n" for line in lines]))
    counts = simulate(trace, POLICIES["infinite"], GIB, Setup(), 0).counts
    ideal = sum(512 * n for n in range(200)) / sum(512 * (n + 1) for n in range(200))
    assert counts.hit_ratio == pytest.approx(ideal, abs=0.001)


def test_repeating_what_came_gives_the_same_counts(agents: Trace) -> None:
    setup = Setup(load=LOAD, device_checkpoints=4)

    def cache() -> Cache:
        tier = Tier(setup.shape.page_bytes(once=True), setup.shape.checkpoint_bytes, 12 * GIB, 90, 70)
        return Cache(POLICIES["adaptive"], Recency.READS, Device(17_000, 4), tier, 12 * GIB)

    script, again = Script(), cache()
    first = replay(agents, LOAD, cache(), 3, script)
    again.new_pages(1_000_000)
    assert repeat(script, again) == first


def test_foresight_needs_a_smaller_store(agents: Trace) -> None:
    setup = Setup(load=LOAD, device_checkpoints=2)
    ratios = {name: simulate(agents, POLICIES[name], 6 * GIB, setup, 0).counts.hit_ratio for name in POLICIES}
    assert ratios["clairvoyant"] > max(ratios[name] for name in ("stock", "kv-once", "kv-once+touch"))
    assert ratios["clairvoyant"] <= ratios["infinite"] + 0.002


def test_reads_refresh_only_in_the_model_where_they_do(agents: Trace) -> None:
    setups = [Setup(load=LOAD, device_checkpoints=2, recency=recency) for recency in Recency]
    reads, writes = (simulate(agents, POLICIES["kv-once"], 12 * GIB, setup, 0).counts for setup in setups)
    assert reads.hit_ratio > writes.hit_ratio


def test_requests_of_an_open_loop_come_at_their_times_and_fill_the_curve(tmp_path: Path) -> None:
    line = {"timestamp": 5000, "input_length": 5120, "output_length": 1, "hash_ids": list(range(10))}
    trace = read(write_lines(tmp_path / "m.jsonl", [line, {**line, "timestamp": 65_000, "input_length": 5130}]))
    counts = simulate(trace, POLICIES["kv-once"], 100 * GIB, Setup(), 0).counts
    assert (counts.prompts[0], counts.prompts[-1]) == (5120, 5130)
    assert (counts.hits[0], counts.hits[-1]) == (0, 5120)
    assert len(set(counts.used)) == 1


@pytest.mark.parametrize(("ways", "found"), [(1, 1088), (2, 1024), (8, 1024), (16, 1024), (32, 0)])
def test_ranks_that_share_each_context_find_prefixes_of_their_longer_pages_only(
    tmp_path: Path, ways: int, found: int
) -> None:
    """Two prompts begin with the same 1088 tokens; a third one repeats the second."""
    first, second = list(range(40)), [*range(17), *range(100, 123)]
    lines = [
        {"timestamp": n, "input_length": 40 * 64 + 1, "output_length": 1, "hash_ids": blocks}
        for n, blocks in enumerate((first, second, second))
    ]
    header = {"umbra_trace": 1, "block_tokens": 64}
    trace = read(write_lines(tmp_path / "n.jsonl", [header, *lines]))
    setup = Setup(shape=Shape(tensor=32, decode_context=ways), chunk_tokens=found or 2048)
    outcome = simulate(trace, POLICIES["kv-once"], 100 * GIB, setup, 0)
    whole = 2560 // (64 * ways) * 64 * ways
    assert sum(outcome.counts.hits) == found + whole
    assert outcome.tier.kv.present * 64 * ways == 2 * whole - found
    wide = trace.in_pages_of(64 * ways)
    assert wide.in_pages_of(64 * ways) is wide
    again = simulate(wide, POLICIES["kv-once"], 100 * GIB, setup, 0)
    assert again.counts == outcome.counts


def test_bytes_of_the_published_shape() -> None:
    shape = Shape()
    assert (shape.token_bytes, shape.rank_checkpoint_bytes) == (13_824, 56_171_520), "as SGLang's log says"
    assert shape.page_bytes(once=True) == 884_736
    assert shape.page_bytes(once=False) == 8 * 884_736
    assert Shape(state_bytes=2).checkpoint_bytes == 232_316_928
    shared = Shape(decode_context=8)
    assert shared.page_tokens == 512
    assert shared.page_bytes(once=True) == shared.page_bytes(once=False) == 8 * 884_736
    assert Shape(draft=True).page_bytes(once=True) == 884_736 + 64 * 8 * 1400
