"""Draws what `panelfigures` recorded, each panel where it is in Grafana: ``docs/pictures/dashboard-*.png``.

Run by `make pictures`, in an environment of its own: only this needs matplotlib.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE, TARGET = REPOSITORY / "build/panels", REPOSITORY / "docs/pictures"
INCHES_WIDE, INCHES_HIGH = 0.62, 0.30
"""Size of one of Grafana's columns and rows."""
LEGENDS = 8
HIDDEN = {"__name__"}
_PREFIXES = {"bytes": ("B", 1024.0), "Bps": ("B/s", 1024.0)}


def shown(value: float, unit: str) -> str:
    """A value as Grafana would write it."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    word, base = _PREFIXES.get(unit, ({"s": "s", "ops": "/s", "reqps": "/s"}.get(unit, ""), 1000.0))
    prefixes = ["", "Ki", "Mi", "Gi", "Ti"] if base == 1024.0 else ["", "k", "M", "G", "T"]
    index = 0
    while abs(value) >= base and index < len(prefixes) - 1:
        value, index = value / base, index + 1
    return f"{value:.3g} {prefixes[index]}{word}".rstrip()


def legend(series: dict[str, Any]) -> str:
    """The name of a series: labels filled into the panel's pattern."""
    metric: dict[str, str] = series["metric"]
    return re.sub(r"{{(\w+)}}", lambda found: metric.get(found[1], ""), series["legend"]).strip()


def curves(axes: Axes, panel: dict[str, Any]) -> None:
    """Lines over minutes."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    begin = min(point[0] for each in panel["series"] for point in each["values"])
    for each in panel["series"]:
        minutes = [(point[0] - begin) / 60 for point in each["values"]]
        axes.plot(minutes, [float(point[1]) for point in each["values"]], linewidth=1.2, label=legend(each))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    # From zero, and not below it where everything is zero or nothing was measured.
    values = [float(point[1]) for each in panel["series"] for point in each["values"]]
    highest = max((value for value in values if math.isfinite(value)), default=0.0)
    axes.set_ylim(0.0, highest * 1.08 if highest > 0 else 1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min"))
    axes.margins(x=0)
    axes.grid(visible=True, color="#e4e4e4", linewidth=0.6)
    axes.legend(
        *(entries[:LEGENDS] for entries in axes.get_legend_handles_labels()),
        fontsize=6,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.12),
        ncols=2,
        frameon=False,
    )


def number(axes: Axes, panel: dict[str, Any]) -> None:
    """The last value, large."""
    value = float(panel["series"][-1]["values"][-1][1])
    axes.text(0.5, 0.5, shown(value, panel["fieldConfig"]["defaults"]["unit"]), ha="center", va="center", fontsize=20)
    bare(axes)


def table(axes: Axes, panel: dict[str, Any]) -> None:
    """Labels as columns."""
    bare(axes)
    rows = [{key: text for key, text in each["metric"].items() if key not in HIDDEN} for each in panel["series"]]
    columns = list(dict.fromkeys(key for row in rows for key in sorted(row)))
    cells = [[row.get(column, "") for column in columns] for row in rows]
    drawn = axes.table(cells, colLabels=columns, loc="upper center", cellLoc="left", edges="horizontal")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)
    drawn.auto_set_column_width(list(range(len(columns))))


def bare(axes: Axes) -> None:
    """No axes."""
    axes.axis("off")


DRAW = {"timeseries": curves, "stat": number, "table": table}


def draw(body: dict[str, Any], path: Path) -> None:
    """One dashboard as a picture."""
    places = [panel["gridPos"] for panel in body["panels"]]
    rows = max(place["y"] + place["h"] for place in places)
    figure = pyplot.figure(figsize=(24 * INCHES_WIDE, (rows + 2) * INCHES_HIGH), dpi=90)
    figure.text(0.01, 1 - 0.9 / (rows + 2), body["title"], fontsize=13, weight="bold")
    for panel in body["panels"]:
        place = panel["gridPos"]
        top = place["y"] + 2
        if panel["type"] == "row":
            figure.text(0.01, 1 - (top + 0.75) / (rows + 2), panel["title"], fontsize=10, color="#555555")
            continue
        # Room for title and ticks, and below curves for the legend.
        left, right, above = (1.5, 0.3, 1.3) if panel["type"] == "timeseries" else (0.4, 0.3, 1.3)
        below = 2.4 if panel["type"] == "timeseries" else 0.4
        width, height = place["w"] - left - right, place["h"] - above - below
        corner = ((place["x"] + left) / 24, 1 - (top + place["h"] - below) / (rows + 2))
        axes = figure.add_axes((*corner, width / 24, height / (rows + 2)))
        axes.set_title(panel["title"], fontsize=8, loc="left")
        axes.tick_params(labelsize=6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        DRAW[panel["type"]](axes, panel)
    figure.savefig(path, pil_kwargs={"optimize": True})
    pyplot.close(figure)


def main() -> int:
    """Entry point; returns the exit code."""
    recorded = sorted(SOURCE.glob("*.json"))
    if not recorded:
        print(f"error: nothing is recorded below {SOURCE}; `make pictures` records and draws", file=sys.stderr)
        return 1
    TARGET.mkdir(exist_ok=True)
    for source in recorded:
        draw(json.loads(source.read_text()), TARGET / f"dashboard-{source.stem}.png")
    print(f"drew {len(recorded)} dashboards below {TARGET}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
