"""What the rows of a sweep mean: which size is enough, and below which a policy collapses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from umbra_sim.policies import REFERENCES
from umbra_sim.sweep import Row

ENOUGH = 0.005
"""Within so much of the best ratio a size is enough: the spread between seeds is about as large."""
CLIFF = 0.10
"""A fall of so much from one size to the next smaller one is a cliff."""


def gibibytes(size: float) -> str:
    """A size as people write it."""
    return f"{size / (1 << 30):.4g} GiB"


def _quantity(size: int) -> str:
    """The size as the API spells it."""
    return f"{size >> 30}Gi" if size % (1 << 30) == 0 else str(size)


def advice(rows: Sequence[Row]) -> list[str]:
    """Return sentences, the most important first."""
    sized = [row for row in rows if row.policy not in REFERENCES]
    best = max(row.hit_ratio for row in rows)
    lines = []
    enough = [row for row in sized if row.hit_ratio >= best - ENOUGH]
    if enough:
        least = min(enough, key=lambda row: (row.dram_bytes, row.bytes_per_prompt_token))
        lines.append(
            f"{least.policy} with {gibibytes(least.dram_bytes)} restores {least.hit_ratio:.1%} of prompt tokens; no "
            f"size or policy here restores more than {best:.1%}."
        )
        lines.append(f"In the K3Deployment: spec: {{cache: {{dram: {{size: {_quantity(least.dram_bytes)}}}}}}}")
    else:
        most = max(sized, key=lambda row: row.hit_ratio, default=None)
        if most:
            lines.append(
                f"No size here is enough: {most.policy} with {gibibytes(most.dram_bytes)} restores "
                f"{most.hit_ratio:.1%}, where {best:.1%} is possible. Try larger sizes."
            )
    for larger, smaller in cliffs(sized):
        lines.append(
            f"{larger.policy} collapses between {gibibytes(larger.dram_bytes)} ({larger.hit_ratio:.1%}) and "
            f"{gibibytes(smaller.dram_bytes)} ({smaller.hit_ratio:.1%})."
        )
    return lines


def cliffs(rows: Sequence[Row]) -> list[tuple[Row, Row]]:
    """For each policy that has one, the largest size above a cliff and the next smaller one."""
    found = []
    for policy in dict.fromkeys(row.policy for row in rows):
        falling = sorted((row for row in rows if row.policy == policy), key=lambda row: -row.dram_bytes)
        found.extend([pair for pair in pairwise(falling) if pair[0].hit_ratio - pair[1].hit_ratio > CLIFF][:1])
    return found
