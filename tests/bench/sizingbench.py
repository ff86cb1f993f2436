"""``make bench-sizing``: how fast ``umbra size`` replays, and beside libCacheSim on what both can do: plain LRU.

The trace is made here: conversations with the lengths of recorded agent sessions, about 1,150 requests and 187 million
prompt tokens an hour at eight lanes, and as many in an open loop for LRU.
"""

import argparse
import random
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from figures import Figure, report
from umbra_linker.shape import PAGE_TOKENS
from umbra_sim.policies import POLICIES
from umbra_sim.simulate import Setup, simulate
from umbra_sim.sweep import sweep
from umbra_sim.tier import Tier
from umbra_sim.trace import PageNumbers, Request, Session, Trace

GIB = 1 << 30
SIZES = [gib * GIB for gib in (24, 36, 54, 72, 108, 145, 217, 290, 435, 580)]
SWEPT = ("stock", "kv-once+touch", "adaptive", "adaptive+rewrite")
SEEDS = 4
HOUR_LIMIT, SWEEP_LIMIT, MEMORY_LIMIT = 0.5, 60.0, 2048.0
"""Targets: seconds for one hour, policy and size on one core; for the whole sweep on two; MiB of all its processes."""
REPEATS = 5
LRU_SHARE = 4
"""The LRU cache holds one page in so many."""


def agents(sessions: int = 24, turns: int = 220) -> Trace:
    """Conversations that grow to 210,000 tokens; one turn in twenty goes back and changes what was said."""
    rng = random.Random(0)
    made = []
    for number in range(sessions):
        numbers = PageNumbers(1)
        blocks = list(range(rng.randrange(500, 2200)))
        fresh = 1 << 20
        requests = []
        for _ in range(turns):
            if rng.random() < 0.05:
                del blocks[-rng.randrange(1, 40) :]
            added = min(rng.randrange(2, 30), max(1, 3300 - len(blocks)))
            blocks += range(fresh, fresh + added)
            fresh += added
            prompt = len(blocks) * PAGE_TOKENS + rng.randrange(PAGE_TOKENS)
            think = min(60.0, rng.expovariate(1 / 14))
            requests.append(Request(0.0, think, prompt, rng.randrange(50, 900), numbers.pages(blocks)))
        made.append(Session(str(number), tuple(requests), numbers.count))
    return Trace(tuple(made), closed=True)


def hours(trace: Trace) -> list[Figure]:
    """One replayed hour for each policy, on one core."""
    figures = []
    for name in SWEPT:
        seconds = []
        for seed in range(REPEATS):
            begin = time.perf_counter()
            outcome = simulate(trace, POLICIES[name], 72 * GIB, Setup(), seed)
            seconds.append(time.perf_counter() - begin)
        figures.append(Figure(f"hour_{name}", round(statistics.median(seconds), 3), "s"))
    counts = outcome.counts
    figures.append(Figure("hour_requests", counts.requests, "requests"))
    figures.append(Figure("hour_prompt_tokens", round(counts.prompt_tokens / 1e6), "million"))
    return figures


def whole_sweep(trace: Trace) -> list[Figure]:
    """Ten sizes, four policies, four seeds, on all cores."""
    begin = time.perf_counter()
    swept = sweep(trace, [POLICIES[name] for name in SWEPT], SIZES, Setup(), SEEDS)
    seconds = time.perf_counter() - begin
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return [
        Figure("sweep_replays", len(swept.cells) * SEEDS, "replays"),
        Figure("sweep", round(seconds, 1), "s"),
        Figure("sweep_memory_of_largest_process", round(max(own, children) / 1024), "MiB"),
    ]


def plain_lru(trace: Trace) -> list[Figure]:
    """The same accesses through an LRU cache of pages.

    Ours takes a prompt at a time, so a prompt's first pages evict none of its later ones; libCacheSim takes page by
    page. The hit ratios are near each other for that reason, and not equal.
    """
    first, rows = 0, []
    for session in trace.sessions:
        rows += [request.pages + first for request in session.requests]
        first += session.page_numbers
    random.Random(1).shuffle(rows)
    accesses, capacity = sum(map(len, rows)), first // LRU_SHARE
    tier = Tier(1, 1, capacity, 100, 100)
    tier.reserve(first)
    begin, hits = time.perf_counter(), 0
    for pages in rows:
        present = tier.kv.has(pages)
        hits += int(np.count_nonzero(present))
        tier.touch(((tier.kv, pages),))
        tier.put(((tier.kv, pages),), 0.0)
    ours = time.perf_counter() - begin
    theirs, missed = _libcachesim(rows, capacity)
    peer = "libCacheSim"
    return [
        Figure("lru_accesses", accesses, "pages", peer, accesses),
        Figure("lru_hit_ratio", round(hits / accesses, 4), "", peer, round(1 - missed, 4)),
        Figure("lru_million_pages_per_second", round(accesses / ours / 1e6, 1), "million/s", peer,
               round(accesses / theirs / 1e6, 1)),
    ]  # fmt: skip


def _libcachesim(rows: list[np.ndarray], capacity: int) -> tuple[float, float]:
    """Seconds and the share of misses; the file is written before the clock runs."""
    import libcachesim  # make bench-sizing puts it beside the environment

    fields = [("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")]
    records = np.zeros(sum(map(len, rows)), dtype=fields)
    records["object"], records["size"], records["next"] = np.concatenate(rows), 1, -1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "accesses.oracleGeneral"
        records.tofile(path)
        reader = libcachesim.TraceReader(trace=str(path), trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        begin = time.perf_counter()
        missed, _ = libcachesim.LRU(cache_size=capacity).process_trace(reader)
        return time.perf_counter() - begin, float(missed)


def main() -> int:
    """Measures and reports; status 1 when a target is missed."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    trace = agents()
    figures = [*hours(trace), *whole_sweep(trace), *plain_lru(trace)]
    report("sizing", figures)
    values = {figure.name: figure.value for figure in figures}
    limits = {f"hour_{name}": HOUR_LIMIT for name in SWEPT}
    limits |= {"sweep": SWEEP_LIMIT, "sweep_memory_of_largest_process": MEMORY_LIMIT}
    missed = [name for name, limit in limits.items() if values[name] > limit]
    for name in missed:
        print(f"missed: {name} is {values[name]:g}, at most {limits[name]:g} was the target", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
