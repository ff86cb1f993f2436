"""A sweep as one HTML page that needs nothing else: advice, curves and table."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping

from umbra_sim.advice import Advice, advice, fragment, gibibytes
from umbra_sim.charts import Band, Bar, Line, bar_chart, line_chart
from umbra_sim.output import columns
from umbra_sim.policies import REFERENCES, Recency
from umbra_sim.replay import BUCKETS, COLD_REQUESTS
from umbra_sim.sweep import Cell, Row, Sweep

_COLOURS = ("#c0392b", "#e08e0b", "#2471a3", "#1e8449", "#7d3c98", "#5d6d7e", "#17a2b8", "#784212")
_INFINITE = "infinite"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;color:#1c2833}"
    "h1{font-size:1.5em}h2{font-size:1.1em;margin:0 0 .3em}.charts{display:flex;flex-wrap:wrap;gap:1.5em}"
    "pre{background:#f4f6f7;padding:1em;overflow-x:auto;font-size:13px}"
    "section{width:560px;max-width:100%}svg{max-width:100%}svg text{font:12px system-ui,sans-serif;fill:#566573}"
    ".advice li:first-child{font-weight:600}.about{color:#566573}"
)


def as_html(sweep: Sweep) -> str:
    """Return the page."""
    found = advice(sweep.rows)
    names = list(dict.fromkeys(row.policy for row in sweep.rows))
    colour = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(names)}
    words = "".join(f"<li>{html.escape(line)}</li>" for line in found.lines)
    fields = ""
    if found.chosen:
        fields = f"<h2>In the K3Deployment</h2><pre>{html.escape(fragment(sweep, found.chosen))}</pre>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Umbra: size of the store</title>'
        f"<style>{_STYLE}</style></head><body><h1>How large must the store be?</h1>"
        f'<ul class="advice">{words}</ul>{fields}{_legend(colour)}'
        f'<div class="charts">{"".join(_charts(sweep, found, colour))}</div>'
        f"<h2>All figures</h2><pre>{html.escape(columns(sweep))}</pre>{_about(sweep)}</body></html>\n"
    )


def _charts(sweep: Sweep, found: Advice, colour: Mapping[str, str]) -> Iterator[str]:
    rows = sweep.rows
    sizes = sorted({row.dram_bytes for row in rows})
    place = {size: float(at) for at, size in enumerate(sizes)}
    ticks = [(place[size], gibibytes(size)) for size in sizes]

    def over_size(value: str, scale: float, *, references: bool) -> list[Line]:
        lines = []
        for name, code in colour.items():
            if name in REFERENCES and not references:
                continue
            points = [(place[row.dram_bytes], getattr(row, value) * scale) for row in rows if row.policy == name]
            if name == _INFINITE:  # it has no size
                points = [(0.0, points[0][1]), (float(len(sizes) - 1), points[0][1])]
            lines.append(Line(name, code, points, dashed=name in REFERENCES))
        return lines

    bands = [
        Band(f"{up.policy} collapses", colour[up.policy], place[down.dram_bytes], place[up.dram_bytes])
        for up, down in found.cliffs
    ]
    title = "Prompt tokens restored, %, over size" + (" (shaded: a policy collapses)" if bands else "")
    yield line_chart(title, over_size("hit_ratio", 100, references=True), ticks, 100, bands)

    size = found.chosen.dram_bytes if found.chosen else sizes[-1]
    shown = [cell for cell in sweep.cells if cell.row.dram_bytes == size or cell.row.policy == _INFINITE]
    time = [(BUCKETS * quarter / 4, _clock(sweep.seconds * quarter / 4)) for quarter in range(5)]
    course = [_course(cell, colour, [v and v * 100 for v in cell.curves.hit_ratio]) for cell in shown]
    yield line_chart(f"Restored over time, %, at {gibibytes(size)}", course, time, 100)
    fill = [
        _course(cell, colour, [used / (1 << 30) for used in cell.curves.used_bytes])
        for cell in shown
        if cell.row.policy != _INFINITE
    ]
    yield line_chart(f"Store used over time, GiB, at {gibibytes(size)}", fill, time)

    again = over_size("evicted_then_asked", 100, references=False)
    yield line_chart("Of the evicted KV, asked for later, %, over size", again, ticks, 100)
    written = [line for line in over_size("bytes_per_prompt_token", 0.001, references=True) if line.name != _INFINITE]
    yield line_chart("kB written for each prompt token, over size", written, ticks)
    yield bar_chart(
        f"kB written for each prompt token at {gibibytes(size)}: KV, checkpoints (pale)",
        [_pools(cell.row, colour[cell.row.policy]) for cell in shown],
    )


def _course(cell: Cell, colour: Mapping[str, str], values: list[float | None] | list[float]) -> Line:
    """A value at the end of each part of the time, where there is one."""
    points = [(at + 1.0, value) for at, value in enumerate(values) if value is not None]
    name = cell.row.policy
    return Line(name, colour[name], points, dashed=name in REFERENCES)


def _pools(row: Row, colour: str) -> Bar:
    written = row.bytes_per_prompt_token / 1000
    return Bar(row.policy, colour, written * (1 - row.checkpoint_share), written * row.checkpoint_share)


def _legend(colour: Mapping[str, str]) -> str:
    keys = (f'<span style="color:{code}">&#9632;</span> {html.escape(name)}' for name, code in colour.items())
    return "<p>" + " &nbsp; ".join(keys) + "</p>"


def _about(sweep: Sweep) -> str:
    """What was replayed, and what not to read into it."""
    setup, load = sweep.setup, sweep.setup.load
    how = "requests come when the trace says, and take no time"
    if sweep.closed:
        how = (
            f"{load.lanes} lanes, users who think at most {load.idle_cap:g} s, answers at {load.decode_rate:g} "
            f"tokens/s, sessions of at least {load.min_requests} requests, the first {COLD_REQUESTS} of each lane not "
            f"counted; {max(row.seeds for row in sweep.rows)} seeds"
        )
    refreshed = "reads and writes refresh" if setup.recency is Recency.READS else "only writes refresh"
    shape = setup.shape
    sentences = (
        f"Replayed: {_clock(sweep.seconds)} of a trace of {sweep.requests:,} requests; {how}.",
        f"Device: {setup.device_tokens:,} tokens of KV and {setup.device_checkpoints:,} checkpoints.",
        f"Store: {refreshed}; evicts above {setup.high_percent} % down to {setup.low_percent} %.",
        f"TP{shape.tensor}, DCP{shape.decode_context}: a page has {shape.page_tokens} tokens, a checkpoint "
        f"{shape.checkpoint_bytes / 1e6:,.0f} MB.",
        "This is a model; it was compared with no running server yet.",
    )
    return f'<p class="about">{html.escape(" ".join(sentences))}</p>'


def _clock(seconds: float) -> str:
    """A time as people write it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.0f} min" if seconds < 4 * 3600 else f"{seconds / 3600:.1f} h"
