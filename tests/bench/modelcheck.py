"""``make compare-model``: ``umbra size``'s model beside an independent prototype of it, and beside published figures.

The prototype is a program of another hand for the same rules; its tables are below as they were reported. The published
figures are those of the pull requests that added touching and one copy of KV to SGLang's UMBP linker, at 580 GiB.
Nothing in the model is fitted to either. The traces are public and are not in this repository: recorded agent sessions
(kv-cache-tester, 240 of them) and the synthetic trace of the Mooncake release.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures import REPOSITORY
from umbra_linker.settings import Checkpoints
from umbra_sim.policies import POLICIES, Policy, Recency
from umbra_sim.readers import read
from umbra_sim.simulate import Setup, simulate
from umbra_sim.trace import Trace

GIB = 1 << 30
NEAR = 0.5
"""Points within which a cell counts as equal."""
SIZES = (36, 72, 145, 290, 580)
STOCK_TOUCH = Policy("stock+touch", once=False, touch=True)
PROMPT_END = Policy("prompt-end", touch=True, checkpoints=Checkpoints.PROMPT_END, leaf_first=True)
COMPARED = {**POLICIES, STOCK_TOUCH.name: STOCK_TOUCH, PROMPT_END.name: PROMPT_END}
AGENTS: Mapping[Recency, Mapping[str, Sequence[float]]] = {
    Recency.READS: {
        "stock": (0.2, 1.0, 22.3, 91.5, 96.3),
        "kv-once": (2.9, 69.3, 92.1, 96.3, 96.9),
        "kv-once+touch": (2.9, 76.7, 96.7, 96.8, 96.9),
        "adaptive": (83.5, 96.6, 96.6, 96.7, 96.8),
        "adaptive+rewrite": (91.2, 96.6, 96.7, 96.8, 96.9),
    },
    Recency.WRITES: {
        "stock": (0.2, 0.5, 5.9, 44.0, 79.8),
        "stock+touch": (0.2, 0.5, 6.2, 93.3, 96.8),
        "kv-once": (0.5, 7.7, 39.9, 75.6, 87.1),
        "kv-once+touch": (0.5, 8.6, 95.8, 96.7, 96.8),
        "prompt-end": (28.5, 94.9, 96.5, 96.6, 96.6),
        "adaptive": (16.0, 95.5, 96.5, 96.7, 96.8),
        "adaptive+rewrite": (75.6, 96.1, 96.6, 96.8, 96.9),
    },
}
"""The prototype's shares of prompt tokens restored, in percent, for SIZES: means of four seeds."""
MOONCAKE_SIZES = (72, 145, 290, 580, 1160, 2320)
MOONCAKE_CHECKPOINTS = 250
MOONCAKE: Mapping[str, Sequence[float]] = {
    "stock": (16.2, 16.2, 19.0, 30.4, 45.5, 58.8),
    "stock+touch": (16.2, 16.2, 18.7, 30.7, 45.7, 58.9),
    "kv-once": (16.2, 20.5, 33.6, 49.3, 60.8, 63.3),
    "kv-once+touch": (16.2, 20.5, 34.5, 49.4, 60.9, 63.3),
    "prompt-end": (20.6, 30.7, 42.0, 49.8, 53.2, 53.2),
    "adaptive": (20.5, 31.0, 42.1, 50.6, 55.8, 59.1),
}
PUBLISHED = (
    ("580 GiB, SGLang's own linker", "stock", 580, "82.4"),
    ("580 GiB, with touching", "stock+touch", 580, "96.4"),
    ("580 GiB, one copy of KV", "kv-once", 580, "87.5"),
    ("580 GiB, one copy and touching", "kv-once+touch", 580, "96.7"),
)
FILLED = (
    ("1160 GiB full, eight copies", "stock", 1160, "about 25 min"),
    ("1160 GiB full, one copy", "kv-once", 1160, "about 60 min"),
)
PAGE = REPOSITORY / "docs" / "explanation" / "cache-model.md"
BEGIN, END = "<!-- make compare-model PAGE=1 writes these tables -->", "<!-- until here -->"

_traces: dict[str, Trace] = {}
_Job = tuple[str, str, int, Recency, int]
Result = tuple[float, float | None]
"""Percent restored, and seconds until the store first evicted."""


def _run(job: _Job) -> Result:
    trace, policy, gib, recency, seed = job
    setup = Setup(recency=recency) if trace == "agents" else Setup(device_checkpoints=MOONCAKE_CHECKPOINTS)
    outcome = simulate(_traces[trace], COMPARED[policy], gib * GIB, setup, seed)
    return outcome.counts.hit_ratio * 100, outcome.tier.filled_at


def _replayed(jobs: Sequence[_Job]) -> dict[_Job, Result]:
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        return dict(zip(jobs, pool.map(_run, jobs, chunksize=4), strict=True))


def agents_table(seeds: int) -> list[str]:
    """Ours with the seeds' range, the prototype's behind it; bold where they differ by more than NEAR."""
    jobs: list[_Job] = [
        ("agents", policy, gib, recency, seed)
        for recency, rows in AGENTS.items()
        for policy in rows
        for gib in SIZES
        for seed in range(seeds)
    ]
    found = _replayed(jobs)
    lines = [
        f"| refreshed by | policy | {' | '.join(f'{gib} GiB' for gib in SIZES)} |",
        "|---" * (2 + len(SIZES)) + "|",
    ]
    for recency, rows in AGENTS.items():
        for policy, theirs in rows.items():
            cells = []
            for gib, prototype in zip(SIZES, theirs, strict=True):
                ours = [found["agents", policy, gib, recency, seed][0] for seed in range(seeds)]
                text = f"{statistics.fmean(ours):.1f} ({min(ours):.1f}-{max(ours):.1f})"
                cells.append(_beside(text, statistics.fmean(ours), prototype))
            lines.append(f"| {recency} | {policy} | {' | '.join(cells)} |")
    return lines


def mooncake_table() -> list[str]:
    """Ours and the prototype's; one replay each, as there is no chance in it."""
    found = _replayed([("mooncake", policy, gib, Recency.READS, 0) for policy in MOONCAKE for gib in MOONCAKE_SIZES])
    lines = [
        f"| policy | {' | '.join(f'{gib} GiB' for gib in MOONCAKE_SIZES)} |",
        "|---" * (1 + len(MOONCAKE_SIZES)) + "|",
    ]
    for policy, theirs in MOONCAKE.items():
        cells = []
        for gib, prototype in zip(MOONCAKE_SIZES, theirs, strict=True):
            ours = found["mooncake", policy, gib, Recency.READS, 0][0]
            cells.append(_beside(f"{ours:.1f}", ours, prototype))
        lines.append(f"| {policy} | {' | '.join(cells)} |")
    return lines


def published_table(seeds: int) -> list[str]:
    """The published figures beside ours for both models of recency."""
    rows = (*PUBLISHED, *FILLED)
    jobs: list[_Job] = [
        ("agents", policy, gib, recency, seed)
        for _, policy, gib, _ in rows
        for recency in Recency
        for seed in range(seeds)
    ]
    found = _replayed(jobs)
    lines = ["| what | published | ours, reads refresh | ours, writes refresh |", "|---|---|---|---|"]
    for what, policy, gib, said in rows:
        cells = []
        for recency in Recency:
            results = [found["agents", policy, gib, recency, seed] for seed in range(seeds)]
            if gib == FILLED[0][2]:
                minutes = [f"{full / 60:.0f}" if full else "never" for _, full in results]
                cells.append(f"{', '.join(minutes)} min")
            else:
                ratios = [ratio for ratio, _ in results]
                cells.append(f"{statistics.fmean(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})")
        lines.append(f"| {what} | {said} | {' | '.join(cells)} |")
    return lines


def _beside(text: str, ours: float, prototype: float) -> str:
    cell = f"{text} / {prototype}"
    return f"**{cell}**" if abs(ours - prototype) > NEAR else cell


def main() -> int:
    """Prints the tables; with --page writes them into the page, too."""
    parser = argparse.ArgumentParser(description="Compares the model of umbra size with a prototype and with reports.")
    parser.add_argument("--agents", type=Path, required=True, help="archive of recorded agent sessions")
    parser.add_argument("--mooncake", type=Path, required=True, help="Mooncake's synthetic trace")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.name}")
    arguments = parser.parse_args()
    _traces.update(agents=read(arguments.agents), mooncake=read(arguments.mooncake))
    sections = (
        f"Agent sessions, {arguments.seeds} seeds: ours (lowest-highest seed) / prototype.",
        *["", *agents_table(arguments.seeds), ""],
        "Mooncake's synthetic trace: ours / prototype.",
        *["", *mooncake_table(), ""],
        f"Published figures, on the agent sessions, {arguments.seeds} seeds.",
        *["", *published_table(arguments.seeds)],
    )
    text = "\n".join(sections) + "\n"
    sys.stdout.write(text)
    if arguments.page:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
