"""Many replays: every policy at every size with every seed, spread over the cores."""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from umbra_sim.errors import InputError
from umbra_sim.policies import Policy
from umbra_sim.replay import BUCKETS, COLD_REQUESTS, length
from umbra_sim.simulate import Setup, simulate
from umbra_sim.trace import Trace

MOST_LANES = 1000
"""More than run on one engine, and few enough for the memory of this machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one size: the mean over the seeds."""

    policy: str
    dram_bytes: int
    seeds: int
    hit_ratio: float
    hit_ratio_spread: float
    """Largest minus smallest of the seeds."""
    hit_ratio_last_half: float
    bytes_per_prompt_token: float
    """Written to the store."""
    seconds_to_full: float | None
    """When the store first evicted, in the seed where that was earliest; None when it never did."""
    checkpoint_share: float
    """Of the bytes written, the checkpoints'."""
    evicted_then_asked: float
    """Of the evicted pages of KV, those that were asked for later."""

    def public(self) -> dict[str, Any]:
        """The row as JSON and CSV show it, rounded."""
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Curves:
    """The course of one policy at one size, for each part of the time: mean of the seeds."""

    hit_ratio: tuple[float | None, ...]
    """None where nothing was asked."""
    used_bytes: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cell:
    """A row and its curves."""

    row: Row
    curves: Curves


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that was replayed, and of what."""

    cells: tuple[Cell, ...]
    policies: tuple[Policy, ...]
    setup: Setup
    requests: int
    """In the trace."""
    closed: bool
    seconds: float
    """Length of one replay."""

    @property
    def rows(self) -> list[Row]:
        """Without the curves."""
        return [cell.row for cell in self.cells]


_Job = tuple[Policy, int, Setup, int]
_Figures = tuple[float, float, float, float | None, float, float, list[int], list[int], list[int]]
_trace: Trace | None = None


def sweep(
    trace: Trace,
    policies: Sequence[Policy],
    sizes: Sequence[int],
    setup: Setup,
    seeds: int,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Replay every combination; an open loop has no chance in it and is replayed once each.

    Raises:
        InputError: when nothing can be replayed with these values.
    """
    check(trace, sizes, setup)
    trace = trace.in_pages_of(setup.shape.page_tokens)
    count = seeds if trace.closed else 1
    # A store that never evicts has no size: its figures stand in the first column.
    cells = [(p, size) for p in policies for size in (sizes[:1] if p.infinite else sizes)]
    jobs: list[_Job] = [(p, size, setup, seed) for p, size in cells for seed in range(count)]
    results: list[_Figures] = []
    # Forked, so that the trace is not copied.
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), _keep, (trace,)) as pool:
        for figures in pool.imap(_run, jobs):
            results.append(figures)
            if progress:
                progress(len(results), len(jobs))
    if not any(sum(prompts) for *_, prompts, _ in results):
        raise InputError(
            f"no lane came to its request number {COLD_REQUESTS + 1} within the replayed time, and those before do not "
            "count: try fewer --lanes, or a higher --decode-rate"
        )
    made = (_cell(*cells[at], results[at * count : (at + 1) * count]) for at in range(len(cells)))
    return Sweep(tuple(made), tuple(policies), setup, trace.requests, trace.closed, length(trace, setup.load))


def check(trace: Trace, sizes: Sequence[int], setup: Setup) -> None:
    """Refuse what gives no figures."""
    longest = max((len(session.requests) for session in trace.sessions), default=0)
    if trace.closed and longest < setup.load.min_requests:
        raise InputError(
            f"no session has {setup.load.min_requests} requests: the longest has {longest}; lower --min-requests"
        )
    if trace.closed and setup.load.lanes > MOST_LANES:
        raise InputError(f"--lanes {setup.load.lanes}: one engine has at most {MOST_LANES} requests at a time here")
    smallest = min(sizes)
    if smallest * setup.low_percent // 100 < setup.shape.checkpoint_bytes:
        raise InputError(
            f"a store of {smallest} bytes holds not one checkpoint of {setup.shape.checkpoint_bytes} bytes below its "
            f"low watermark of {setup.low_percent} %; give a larger --dram"
        )


def _keep(trace: Trace) -> None:
    global _trace  # noqa: PLW0603 - how a forked process gets it without a copy
    _trace = trace


def _run(job: _Job) -> _Figures:
    policy, size, setup, seed = job
    if _trace is None:
        raise RuntimeError("this process was given no trace")
    outcome = simulate(_trace, policy, size, setup, seed)
    counts, tier = outcome.counts, outcome.tier
    return (
        counts.hit_ratio,
        counts.hit_ratio_last_half,
        tier.bytes_written / max(1, counts.prompt_tokens),
        tier.filled_at,
        tier.checkpoints.written * tier.checkpoints.size / max(1, tier.bytes_written),
        tier.kv.missed / max(1, tier.kv.evicted),
        counts.hits,
        counts.prompts,
        counts.used,
    )


def _cell(policy: Policy, size: int, figures: Sequence[_Figures]) -> Cell:
    ratios, halves, written, full, checkpoints, asked, hits, prompts, used = zip(*figures, strict=True)
    filled = [seconds for seconds in full if seconds is not None]
    row = Row(
        policy=policy.name,
        dram_bytes=size,
        seeds=len(figures),
        hit_ratio=statistics.fmean(ratios),
        hit_ratio_spread=max(ratios) - min(ratios),
        hit_ratio_last_half=statistics.fmean(halves),
        bytes_per_prompt_token=statistics.fmean(written),
        seconds_to_full=min(filled) if filled else None,
        checkpoint_share=statistics.fmean(checkpoints),
        evicted_then_asked=statistics.fmean(asked),
    )
    course = []
    for bucket in range(BUCKETS):
        total = sum(seed[bucket] for seed in prompts)
        course.append(sum(seed[bucket] for seed in hits) / total if total else None)
    level = tuple(statistics.fmean(seed[bucket] for seed in used) for bucket in range(BUCKETS))
    return Cell(row, Curves(tuple(course), level))
