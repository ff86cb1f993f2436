"""What the rows of a sweep mean: which size is enough, and below which a policy collapses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from umbra_linker.settings import Checkpoints
from umbra_sim.policies import DEFAULT, REFERENCES, Policy
from umbra_sim.sweep import Row, Sweep

ENOUGH = 0.005
"""Within so much of the best ratio a size is enough: the spread between seeds is about as large."""
CLIFF, NEAR = 0.10, 0.8
"""From a size that restores so much of what is possible to the next smaller one, a fall of so much is a cliff."""
AS_CHEAP = 1.05
"""A policy that writes up to so many times the fewest bytes is taken if nobody has to set it."""
HIGH_PERCENT, LOW_PERCENT = 90, 85
"""Watermarks of a store whose deployment names none."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do."""

    lines: tuple[str, ...]
    """Sentences, the most important first."""
    chosen: Row | None
    """The smallest size that is enough; None when no size is."""
    cliffs: tuple[tuple[Row, Row], ...]
    """The largest size above a cliff and the next smaller one, of each policy that has one."""


def gibibytes(size: float) -> str:
    """A size as people write it."""
    return f"{size / (1 << 30):.4g} GiB"


def advice(rows: Sequence[Row]) -> Advice:
    """Choose among the rows and say why."""
    sized = [row for row in rows if row.policy not in REFERENCES]
    best = max(row.hit_ratio for row in rows)
    lines = []
    chosen = _chosen([row for row in sized if row.hit_ratio >= best - ENOUGH])
    if best <= 0:
        chosen = None
        lines.append("No prompt of this trace begins as an earlier one does, so no store restores anything.")
    elif chosen:
        lines.append(
            f"{chosen.policy} with {gibibytes(chosen.dram_bytes)} restores {chosen.hit_ratio:.1%} of prompt tokens; no "
            f"size or policy here restores more than {best:.1%}."
        )
    elif sized:
        most = max(sized, key=lambda row: row.hit_ratio)
        lines.append(
            f"No size here is enough: {most.policy} with {gibibytes(most.dram_bytes)} restores "
            f"{most.hit_ratio:.1%}, where {best:.1%} is possible. Try larger sizes."
        )
    if chosen and chosen.dram_bytes == min(row.dram_bytes for row in sized):
        lines.append(f"{gibibytes(chosen.dram_bytes)} is the smallest size here; a smaller one may be enough, too.")
    found = tuple(_cliffs(sized, best))
    for larger, smaller in found:
        lines.append(
            f"{larger.policy} collapses between {gibibytes(larger.dram_bytes)} ({larger.hit_ratio:.1%}) and "
            f"{gibibytes(smaller.dram_bytes)} ({smaller.hit_ratio:.1%})."
        )
    return Advice(tuple(lines), chosen, found)


def _chosen(enough: Sequence[Row]) -> Row | None:
    if not enough:
        return None
    least = min(row.dram_bytes for row in enough)
    here = sorted((row for row in enough if row.dram_bytes == least), key=lambda row: row.bytes_per_prompt_token)
    cheap = [row for row in here if row.bytes_per_prompt_token <= here[0].bytes_per_prompt_token * AS_CHEAP]
    return next((row for row in cheap if row.policy == DEFAULT), here[0])


def _cliffs(rows: Sequence[Row], best: float) -> list[tuple[Row, Row]]:
    found = []
    for policy in dict.fromkeys(row.policy for row in rows):
        falling = sorted((row for row in rows if row.policy == policy), key=lambda row: -row.dram_bytes)
        deep = (
            (larger, smaller)
            for larger, smaller in pairwise(falling)
            if larger.hit_ratio >= NEAR * best and larger.hit_ratio - smaller.hit_ratio > CLIFF
        )
        found.extend(list(deep)[:1])
    return found


def fragment(sweep: Sweep, chosen: Row) -> str:
    """The fields of a K3Deployment that make it what was chosen, as YAML; what is the default is left out."""
    setup, policy = sweep.setup, next(each for each in sweep.policies if each.name == chosen.policy)
    size = chosen.dram_bytes
    lines = ["spec:", "  cache:", f"    dram: {{size: {f'{size >> 30}Gi' if size % (1 << 30) == 0 else size}}}"]
    if (setup.high_percent, setup.low_percent) != (HIGH_PERCENT, LOW_PERCENT):
        lines.append(f"    watermarks: {{highPercent: {setup.high_percent}, lowPercent: {setup.low_percent}}}")
    if fields := _fields(policy):
        lines.append(f"    policy: {{{', '.join(fields)}}}")
    if not policy.leaf_first:
        lines += [
            f"# Umbra writes each prefix from its end on, which {policy.name} does not; near a collapse that tells.",
            "# Replay these fields with --deployment to see what they restore.",
        ]
    return "\n".join(lines) + "\n"


def _fields(policy: Policy) -> list[str]:
    """Of ``spec.cache.policy``, those that are not the linker's defaults."""
    fields = []
    if not policy.once:
        fields.append("keyLayout: PerRank")
    if not policy.touch:
        fields.append("touch: {mode: 'Off'}")
    if policy.checkpoints is not Checkpoints.ADAPTIVE:
        fields.append(f"checkpoints: {policy.checkpoints.value}")
    if policy.touch and not policy.rewrite:
        fields.append("rewriteMissing: Disabled")
    return fields
