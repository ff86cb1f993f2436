"""A sweep as one HTML page that needs nothing else: curves, table and advice."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from umbra_sim.advice import advice, gibibytes
from umbra_sim.output import as_table
from umbra_sim.sweep import Cell

_COLOURS = ("#c0392b", "#e08e0b", "#2471a3", "#1e8449", "#7d3c98", "#5d6d7e")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 560, 260, 56, 12, 34
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c2833}"
    "h1{font-size:1.5em}h2{font-size:1.1em;margin:0 0 .3em}.charts{display:flex;flex-wrap:wrap;gap:1.5em}"
    "pre{background:#f4f6f7;padding:1em;overflow-x:auto;font-size:13px}"
    "svg text{font:12px system-ui,sans-serif;fill:#566573}"
    ".advice li:first-child{font-weight:600}"
)

Point = tuple[float, float]
Line = tuple[str, str, Sequence[Point]]


def as_html(cells: Sequence[Cell]) -> str:
    """Return the page."""
    rows = [cell.row for cell in cells]
    names = list(dict.fromkeys(row.policy for row in rows))
    colour = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}
    sizes = sorted({row.dram_bytes for row in rows})
    place = {size: float(at) for at, size in enumerate(sizes)}
    ratio: list[Line] = []
    for name in names:
        points = [(place[row.dram_bytes], row.hit_ratio * 100) for row in rows if row.policy == name]
        if name == "infinite":
            points = [(0.0, points[0][1]), (float(len(sizes) - 1), points[0][1])]
        ratio.append((name, colour[name], points))
    middle = sizes[len(sizes) // 2]
    shown = [cell for cell in cells if cell.row.dram_bytes == middle or cell.row.policy == "infinite"]
    course: list[Line] = [
        (
            c.row.policy,
            colour[c.row.policy],
            [(at, v * 100) for at, v in enumerate(c.curves.hit_ratio) if v is not None],
        )
        for c in shown
    ]
    fill: list[Line] = [
        (c.row.policy, colour[c.row.policy], [(at, v / (1 << 30)) for at, v in enumerate(c.curves.used_bytes)])
        for c in shown
        if c.row.policy != "infinite"
    ]
    bars: list[Line] = [
        (name, colour[name], [(place[r.dram_bytes], r.bytes_per_prompt_token / 1000) for r in rows if r.policy == name])
        for name in names
        if name != "infinite"
    ]
    ticks = [(place[size], gibibytes(size)) for size in sizes]
    time = [(0.0, "start"), (29.5, "half"), (59.0, "end")]
    charts = (
        _chart("Prompt tokens restored, %, over size", ratio, ticks, 100),
        _chart(f"Restored over time, %, at {gibibytes(middle)}", course, time, 100),
        _chart(f"Store used over time, GiB, at {gibibytes(middle)}", fill, time, None),
        _chart("kB written for each prompt token, over size", bars, ticks, None),
    )
    words = "".join(f"<li>{html.escape(line)}</li>" for line in advice(rows))
    table = html.escape(as_table(cells).partition("\n\n")[0])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Umbra: size of the store</title>'
        f"<style>{_STYLE}</style></head><body><h1>How large must the store be?</h1>"
        f'<ul class="advice">{words}</ul>{_legend(colour)}<div class="charts">{"".join(charts)}</div>'
        f"<h2>All figures</h2><pre>{table}</pre></body></html>\n"
    )


def _legend(colour: dict[str, str]) -> str:
    keys = (f'<span style="color:{code}">&#9632;</span> {html.escape(name)}' for name, code in colour.items())
    return "<p>" + " &nbsp; ".join(keys) + "</p>"


def _chart(title: str, lines: Sequence[Line], ticks: Sequence[tuple[float, str]], top: float | None) -> str:
    """Lines over a row of labelled places."""
    values = [y for _, _, points in lines for _, y in points] or [0.0]
    high = top or _round_up(max(values))
    last = max((x for x, _ in ticks), default=0.0) or 1.0
    width, height = _WIDTH - _LEFT - 30, _HEIGHT - _TOP - _BOTTOM

    def x_of(value: float) -> float:
        return _LEFT + value / last * width

    def y_of(value: float) -> float:
        return _TOP + height - value / high * height

    parts = []
    for quarter in range(5):
        value = high * quarter / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}" stroke="#e5e8e8"/>'
            f'<text x="{_LEFT - 6}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for x, label in ticks:
        parts.append(f'<text x="{x_of(x):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{html.escape(label)}</text>')
    for name, colour, points in lines:
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        dash = ' stroke-dasharray="6 4"' if name == "infinite" else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"{dash}/>')
        if len(points) == 1:
            parts.append(f'<circle cx="{x_of(points[0][0]):.1f}" cy="{y_of(points[0][1]):.1f}" r="4" fill="{colour}"/>')
    return (
        f'<section><h2>{html.escape(title)}</h2><svg width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{html.escape(title)}">{"".join(parts)}</svg></section>'
    )


def _round_up(value: float) -> float:
    """The next number that people like, at least ``value``."""
    if value <= 0:
        return 1.0
    step: float = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 2, 4, 8, 10) if step * factor >= value)
