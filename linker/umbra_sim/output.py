"""A sweep as a table for people, as JSON or as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence

from umbra_sim.advice import advice, gibibytes
from umbra_sim.sweep import Cell

_COLUMNS = ("policy", "store", "hit %", "spread", "last half %", "kB/token", "full after", "KV asked again")


def as_json(cells: Sequence[Cell]) -> str:
    """One list of rows."""
    return json.dumps([cell.row.public() for cell in cells], indent=1) + "\n"


def as_csv(cells: Sequence[Cell]) -> str:
    """A header and one line a row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(cells[0].row.public()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(cell.row.public() for cell in cells)
    return text.getvalue()


def as_table(cells: Sequence[Cell]) -> str:
    """Columns, then advice."""
    lines = [_COLUMNS]
    for row in (cell.row for cell in cells):
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
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
    return text + "\n\n" + "\n".join(advice([cell.row for cell in cells])) + "\n"
