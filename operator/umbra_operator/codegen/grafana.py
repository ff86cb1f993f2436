"""Grafana's dashboards as values, and the JSON that Grafana imports."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS = 24


class Kind(Enum):
    """How a panel shows what it asks: Grafana's word, width in columns of 24, height in Grafana's rows."""

    NUMBER = ("stat", 4, 4)
    CURVES = ("timeseries", 8, 8)
    TABLE = ("table", 12, 8)


@dataclass(frozen=True)
class Query:
    """One expression, and the name of each of its series; ``{{label}}`` stands for a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Panel:
    """One panel. ``unit`` is Grafana's word for it."""

    title: str
    help: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.CURVES


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; its rows have a title each. ``per_deployment`` asks for a deployment, not only for namespaces."""

    name: str
    title: str
    help: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    per_deployment: bool = True

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel, in order."""
        return tuple(panel for _, panels in self.rows for panel in panels)


def dashboard_json(dashboard: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    body = {
        "uid": f"umbra-{dashboard.name}",
        "title": dashboard.title,
        "description": dashboard.help,
        "tags": ["umbra"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "links": [_LINKS],
        "templating": {"list": _variables(dashboard.per_deployment)},
        "panels": list(_placed(dashboard.rows)),
    }
    return json.dumps(body, indent=2) + "\n"


_LINKS = {
    "type": "dashboards",
    "title": "Umbra",
    "tooltip": "",
    "icon": "external link",
    "tags": ["umbra"],
    "asDropdown": True,
    "targetBlank": False,
    "includeVars": True,
    "keepTime": True,
}


def _variables(per_deployment: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
        _variable("namespace", "Namespace", "label_values(umbra_deployment_replicas, namespace)", one=per_deployment),
    ]
    if per_deployment:
        query = 'label_values(umbra_deployment_replicas{namespace=~"$namespace"}, name)'
        found.append(_variable("deployment", "Deployment", query, one=True))
    return found


def _variable(name: str, label: str, query: str, *, one: bool) -> dict[str, Any]:
    """A variable with one value, the first at first, or with several, at first all."""
    chosen: dict[str, Any] = {
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"selected": True, "text": "All", "value": "$__all"},
    }
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": _DATASOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        **({"multi": False, "includeAll": False} if one else chosen),
    }


def _placed(rows: Iterable[tuple[str, Iterable[Panel]]]) -> Iterator[dict[str, Any]]:
    """Panels with their places: from left to right, the next line below the highest of the last."""
    number, y = 0, 0
    for title, panels in rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": _at(0, y, 24, 1),
        }
        x, y, highest = 0, y + 1, 0
        for panel in panels:
            _, width, height = panel.kind.value
            if x + width > _COLUMNS:
                x, y, highest = 0, y + highest, 0
            number += 1
            yield {"id": number, **_panel(panel), "gridPos": _at(x, y, width, height)}
            x, highest = x + width, max(highest, height)
        y += highest


def _at(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> dict[str, Any]:
    table = panel.kind is Kind.TABLE
    shown: dict[str, Any] = {
        "type": panel.kind.value[0],
        "title": panel.title,
        "description": panel.help,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": query.expr,
                **({"instant": True, "format": "table"} if table else {"legendFormat": query.legend or "__auto"}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }
    if table:
        # Which labels there are is the content; time and the value 1 say nothing.
        hidden = {"Time": True, "Value": True}
        shown["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return shown
