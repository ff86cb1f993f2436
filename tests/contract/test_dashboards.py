"""The dashboards as Grafana gets them; that each panel shows something is shown beside the real product."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from grafanaschema import faults
from product import CHART, IMAGE, template
from umbra_operator.codegen.dashboards import DASHBOARDS
from umbra_operator.codegen.grafana import Dashboard
from umbra_operator.codegen.metricspage import metrics_page

FOLDER = CHART / "files/dashboards"
EACH = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)


def shipped(dashboard: Dashboard) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{dashboard.name}.json").read_text())
    return found


def test_grafana_s_own_types_take_them(tmp_path: Path) -> None:
    texts = {dashboard.name: (FOLDER / f"{dashboard.name}.json").read_text() for dashboard in DASHBOARDS}
    wrong = texts["fleet"].replace('"schemaVersion": 39', '"schemaVersion": "39"').replace('"gridPos"', '"gridPlace"')
    found = faults({**texts, "wrong": wrong}, tmp_path)
    assert [line for line in found if not line.startswith(("wrong.ts", " "))] == []
    assert any("'string' is not assignable to type 'number'" in line for line in found)
    assert any("gridPlace" in line for line in found)


@EACH
def test_panels_have_their_own_numbers_and_places(dashboard: Dashboard) -> None:
    panels = shipped(dashboard)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below


@EACH
def test_panels_ask_with_variables_and_labels_that_there_are(dashboard: Dashboard) -> None:
    body = shipped(dashboard)
    known = {variable["name"] for variable in body["templating"]["list"]} | {"__rate_interval"}
    for panel in body["panels"]:
        for target in panel.get("targets", ()):
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= known
            assert target["datasource"]["uid"] == "${datasource}"
            # A label that is no label of the answer would be shown as nothing.
            kept = {label for names in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in names.split(", ")}
            shown = set(re.findall(r"{{(\w+)}}", target.get("legendFormat", "")))
            assert shown <= kept or "rate15m" in target["expr"], panel["title"]


@EACH
def test_pods_are_named_only_where_their_names_are_unique(dashboard: Dashboard) -> None:
    variables = {variable["name"]: variable for variable in shipped(dashboard)["templating"]["list"]}
    if dashboard.per_deployment:
        # Two namespaces may each have a pod of the same name.
        assert not any(
            variables[name]["multi"] or variables[name]["includeAll"] for name in ("namespace", "deployment")
        )
    else:
        for panel in dashboard.panels:
            for query in panel.queries:
                grouped = re.findall(r"by \(([^)]*)\)", query.expr)
                assert all("pod" not in names or "namespace" in names for names in grouped), panel.title


@EACH
def test_panels_ask_for_metrics_that_are_documented(dashboard: Dashboard) -> None:
    page = metrics_page()
    for panel in dashboard.panels:
        assert panel.help.endswith(".")
        for query in panel.queries:
            for metric in re.findall(r"(?<![:\w])(?:umbra_(?!dev_)|controller_runtime_|rest_client_)\w+", query.expr):
                assert f"`{metric.removesuffix('_bucket')}`" in page, metric


def test_the_chart_ships_them_where_grafana_looks() -> None:
    def maps(**values: Any) -> list[dict[str, Any]]:
        return [body for body in template({**IMAGE, **values}) if body["kind"] == "ConfigMap"]

    assert maps() == []
    found = maps(**{"dashboards.create": True})
    assert {name: json.loads(text) for body in found for name, text in body["data"].items()} == {
        f"umbra-{dashboard.name}.json": shipped(dashboard) for dashboard in DASHBOARDS
    }
    assert all(body["metadata"]["labels"]["grafana_dashboard"] == "1" for body in found)
    labelled = maps(**{"dashboards.create": True, "dashboards.labels": {"grafana": "yes"}})
    assert all(body["metadata"]["labels"]["grafana"] == "yes" for body in labelled)
    assert all("grafana_dashboard" not in body["metadata"]["labels"] for body in labelled)
