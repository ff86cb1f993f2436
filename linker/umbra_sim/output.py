"""A sweep as a table for people, as JSON or as CSV."""

from __future__ import annotations

import csv
import io
import json

from umbra_sim.advice import advice, fragment, gibibytes
from umbra_sim.sweep import Sweep

_COLUMNS = ("policy", "store", "hit %", "spread", "last half %", "kB/token", "full after", "KV asked again")


def as_json(sweep: Sweep) -> str:
    """One list of rows."""
    return json.dumps([row.public() for row in sweep.rows], indent=1) + "\n"


def as_csv(sweep: Sweep) -> str:
    """A header and one line a row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(sweep.rows[0].public()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.public() for row in sweep.rows)
    return text.getvalue()


def as_table(sweep: Sweep) -> str:
    """Columns, then advice."""
    found = advice(sweep.rows)
    text = f"{columns(sweep)}\n" + "".join(f"{line}\n" for line in found.lines)
    return text + (f"\n{fragment(sweep, found.chosen)}" if found.chosen else "")


def columns(sweep: Sweep) -> str:
    """The table alone."""
    lines = [_COLUMNS]
    for row in sweep.rows:
        full = "never" if row.seconds_to_full is None else f"{row.seconds_to_full / 60:.0f} min"
        lines.append(
            (
                row.policy,
                "-" if row.policy == "infinite" else gibibytes(row.dram_bytes),
                f"{row.hit_ratio:.1%}"[:-1],
                f"{row.hit_ratio_spread:.1%}"[:-1],
                f"{row.hit_ratio_last_half:.1%}"[:-1],
                f"{row.bytes_per_prompt_token / 1000:.1f}",
                full,
                f"{row.evicted_then_asked:.0%}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in lines
    )
