"""What Prometheus scrapes from the whole product: all that the rules ask for, as documented, and an alert that is told.

The promtool tests show what a rule does with series; these show that there are such series.
"""

import json
import math
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from localcluster.progress import Progress
from localstack import monitoring, product
from localstack.engine import Engine, prompt
from localstack.monitoring import Prometheus
from localstack.product import NAME, NAMESPACE, Stack
from product import CHART, ROOT
from umbra_operator.codegen.dashboards import DASHBOARDS

pytestmark = [pytest.mark.kubelet, pytest.mark.engine, pytest.mark.timeout(900)]

RULES = [
    rule for group in yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
TARGET_LABELS = {"__name__", "instance", "job", "namespace", "pod", "container", "endpoint"}
LATER = {
    "umbra_agent_engine_stop_duration_seconds",
    "umbra_agent_store_registration_duration_seconds",
    "umbra_deployment_hit_ratio",
    "umbra_deployment_hot_miss_ratio",
    "umbra_deployment_store_retention_seconds",
    "umbra_linker_rewritten_pages_total",
    "umbra_linker_touched_pages_total",
}
"""Metrics that have no series before what they count has happened."""


@pytest.fixture
def prometheus(stack: Stack, engine: Engine) -> Prometheus:
    """A Prometheus that has seen a request computed, others restored from the store, and one aborted.

    It may be an earlier test's, which recorded something long ago: what the tests ask for is asked for here.
    """
    running = monitoring.start(stack, Progress())
    _stream_and_leave(engine)
    recorded = [rule["record"] for rule in RULES if "record" in rule]
    # A counter that appears with its first event has no rate before the second.
    loads = "sum(rate(umbra_linker_load_seconds_count[5m])) > 0"
    wanted = [*recorded, "sglang:num_aborted_requests_total", loads]
    seen = " and ".join(f"count({expr})" for expr in wanted)

    def complete() -> bool:
        # The engine counts the tokens of a request only with the next ones.
        found = bool(running.query(seen))
        if not found:
            asked = prompt(323)
            engine.generate(asked)
            engine.flush()
            engine.generate([*asked, 11, 12, 13])
        return found

    product.wait(complete, 180, lambda: f"Prometheus has not seen all of this: {'; '.join(wanted)}")
    return running


def _stream_and_leave(engine: Engine) -> None:
    """A client that takes the first token of a stream and goes: one that the engine has to abort."""
    sampling = {"max_new_tokens": 2000, "ignore_eos": True}
    body = json.dumps({"input_ids": prompt(70), "stream": True, "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"{engine.url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        response.readline()


def selectors(node: Any, grouping: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, str], set[str]]]:
    """Name, matchers as PromQL by label, and labels that it is grouped by, of each selector in a parsed expression."""
    if isinstance(node, list):
        for each in node:
            yield from selectors(each, grouping)
    elif isinstance(node, dict):
        if node.get("type") in ("vectorSelector", "matrixSelector"):
            matchers = {each["name"]: f'{each["name"]}{each["type"]}"{each["value"]}"' for each in node["matchers"]}
            matchers.pop("__name__")
            yield node["name"], matchers, set(grouping)
        inner = (*grouping, *(node.get("grouping") or ()))
        for each in node.values():
            yield from selectors(each, inner)


def test_every_metric_label_and_value_that_a_rule_asks_for_is_scraped(prometheus: Prometheus) -> None:
    found = [each for rule in RULES for each in selectors(prometheus.tree(rule["expr"]))]
    assert len(found) > len(RULES)
    for name, matchers, grouping in found:
        labels = {label for series in prometheus.query(name) for label in series.labels}
        assert labels, f"{name} is not scraped"
        assert grouping | matchers.keys() <= labels, f"{name} has only {sorted(labels)}"
        # No answer of a well engine is an error of the server.
        matchers.pop("status_code", None)
        # A condition has one status and reason at a time, and this deployment is well.
        if name != "umbra_deployment_condition":
            chosen = f"{name}{{{','.join(matchers.values())}}}"
            assert prometheus.query(chosen), f"no series is {chosen}"


def test_what_is_scraped_has_the_labels_of_the_reference_page(prometheus: Prometheus) -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| \w* \| ([^|]*) \|", page, re.MULTILINE)
    absent = set()
    for name, kind, labels in rows:
        series = prometheus.query(f"{name}_count" if kind == "histogram" else name)
        own = {label for each in series for label in each.labels if not label.startswith("umbra_dev_")}
        if not series:
            absent.add(name)
        else:
            assert own - TARGET_LABELS == set(re.findall(r"`(\w+)`", labels)) - TARGET_LABELS, name
    assert absent <= LATER


def test_no_label_of_ours_is_pushed_aside_by_a_target_s(prometheus: Prometheus) -> None:
    assert prometheus.query('count({__name__=~"umbra_.+|sglang:.+"})')
    for label in ("namespace", "pod", "container", "endpoint", "job", "instance"):
        assert not prometheus.query(f'{{exported_{label}!="",__name__=~"umbra_.+"}}'), label


def test_an_alert_becomes_pending_with_its_cause_and_ends_with_it(stack: Stack, prometheus: Prometheus) -> None:
    assert "firing" not in prometheus.alerts().values()
    assert "UmbraConfigInvalid" not in prometheus.alerts()
    _allow(stack, "--trust-remote-code")
    try:
        product.wait(
            lambda: prometheus.alerts().get("UmbraConfigInvalid") == "pending", 30, lambda: "the alert is not pending"
        )
        (series,) = prometheus.query('umbra_deployment_condition{type="ConfigValid"}')
        wanted = {"namespace": NAMESPACE, "name": NAME, "status": "False", "reason": "ArgumentNotAllowed"}
        assert wanted.items() <= series.labels.items()
    finally:
        _allow(stack, None)
    product.wait(lambda: "UmbraConfigInvalid" not in prometheus.alerts(), 30, lambda: "the alert stays")


def test_every_panel_of_the_dashboards_shows_something(stack: Stack, prometheus: Prometheus) -> None:
    # What Grafana fills in: everything is chosen, and rates reach over some scrapes.
    filled = {"$__rate_interval": "5m", "$namespace": ".+", "$deployment": ".+"}
    queries = {}
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                expr = query.expr
                for name, value in filled.items():
                    expr = expr.replace(name, value)
                assert "$" not in expr
                queries[f"{dashboard.title}: {panel.title}: {expr}"] = expr
    assert len(queries) > 50
    _allow(stack, "--trust-remote-code")
    _allow(stack, None)

    def silent() -> list[str]:
        return [
            place
            for place, expr in queries.items()
            if all(math.isnan(series.value) for series in prometheus.query(expr))
        ]

    product.wait(lambda: not silent(), 30, lambda: "; ".join(silent()))


def _allow(stack: Stack, argument: str | None) -> None:
    patch = {"spec": {"engine": {"extraArgs": [argument] if argument else None}}}
    stack.cluster.kubectl("-n", NAMESPACE, "patch", "k3", NAME, "--type=merge", "-p", yaml.safe_dump(patch))
