"""Charts as SVG: lines over labelled places, and bars made of two parts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 560, 260, 56, 30, 12, 34
_BAR, _BAR_GAP, _NAMES, _VALUES = 22, 12, 130, 60
_GRID = "#e5e8e8"


@dataclass(frozen=True, slots=True)
class Line:
    """One curve."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A marked range of the horizontal axis."""

    name: str
    colour: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of two parts that stand one behind the other."""

    name: str
    colour: str
    first: float
    second: float


def line_chart(
    title: str,
    lines: Sequence[Line],
    ticks: Sequence[tuple[float, str]],
    top: float | None = None,
    bands: Sequence[Band] = (),
) -> str:
    """Draw curves.

    Args:
        title: says what the vertical axis is, and its unit.
        lines: the curves.
        ticks: labelled places of the horizontal axis, which begins at 0 and ends at the last one.
        top: upper end of the vertical axis; None takes a round number above all points.
        bands: ranges to mark.
    """
    high = top or _round_up(max((y for line in lines for _, y in line.points), default=0.0))
    last = max((x for x, _ in ticks), default=0.0) or 1.0
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def x_of(value: float) -> float:
        return _LEFT + value / last * width

    def y_of(value: float) -> float:
        return _TOP + height - value / high * height

    parts = [
        f'<rect x="{x_of(band.begin):.1f}" y="{_TOP}" width="{x_of(band.end) - x_of(band.begin):.1f}" '
        f'height="{height}" fill="{band.colour}" opacity="0.12"><title>{html.escape(band.name)}</title></rect>'
        for band in bands
    ]
    for quarter in range(5):
        value = high * quarter / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + width}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}" stroke="{_GRID}"/>'
            f'<text x="{_LEFT - 6}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    for x, label in ticks:
        parts.append(f'<text x="{x_of(x):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{html.escape(label)}</text>')
    for line in lines:
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in line.points)
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2.2"{dash}>'
            f"<title>{html.escape(line.name)}</title></polyline>"
        )
        if len(line.points) == 1:
            x, y = line.points[0]
            parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="4" fill="{line.colour}"/>')
    return _section(title, _HEIGHT, parts)


def bar_chart(title: str, bars: Sequence[Bar]) -> str:
    """Draw bars from the left; the second part is paler, and the sum stands behind it."""
    high = max((bar.first + bar.second for bar in bars), default=0.0) or 1.0
    width = _WIDTH - _NAMES - _VALUES
    parts = []
    for at, bar in enumerate(bars):
        y = _TOP + at * (_BAR + _BAR_GAP)
        first, second = bar.first / high * width, bar.second / high * width
        text = y + _BAR / 2 + 4
        parts.append(
            f'<text x="{_NAMES - 8}" y="{text}" text-anchor="end">{html.escape(bar.name)}</text>'
            f'<rect x="{_NAMES}" y="{y}" width="{first:.1f}" height="{_BAR}" fill="{bar.colour}"/>'
            f'<rect x="{_NAMES + first:.1f}" y="{y}" width="{second:.1f}" height="{_BAR}" fill="{bar.colour}" '
            f'opacity="0.4"/>'
            f'<text x="{_NAMES + first + second + 6:.1f}" y="{text}">{bar.first + bar.second:.1f}</text>'
        )
    return _section(title, max(_HEIGHT, _TOP + len(bars) * (_BAR + _BAR_GAP)), parts)


def _section(title: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<section><h2>{html.escape(title)}</h2><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg></section>'
    )


def _round_up(value: float) -> float:
    """The next number that people like, at least ``value``."""
    if value <= 0:
        return 1.0
    step: float = 10.0 ** math.floor(math.log10(value))
    return next(step * factor for factor in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * factor >= value)
