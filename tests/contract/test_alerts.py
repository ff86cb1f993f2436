"""The alerts, by the real promtool: each fires for what is ill, not for what is well beside it, and clears."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import toolchain
from product import CHART, IMAGE, ROOT, template
from umbra_operator.codegen import metricspage
from umbra_operator.conditions import Reason

RULES = CHART / "files" / "alerts.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
# One sample a step: well for 30 steps, ill for the next 60, then well for 120.
ILL_AT, WELL_AT, END = 85, 205, 210


def _phases(well: str, ill: str) -> str:
    return f"{well.format(29)} {ill.format(60)} {well.format(120)}"


def gauge(well: float, ill: float) -> str:
    """Values of a gauge, in promtool's notation."""
    return _phases(f"{well}x{{}}", f"{ill}x{{}}")


def counter(well: int, ill: int) -> str:
    """Values of a counter that grows by these a step."""
    first, second = 29 * well, 29 * well + 61 * ill
    return f"0+{well}x29 {first + ill}+{ill}x60 {second + well}+{well}x120"


@dataclass(frozen=True)
class Case:
    """Series of something that falls ill, and of something that stays as it was; `%s` is the place of their labels."""

    ill: dict[str, str]
    quiet: dict[str, str]
    minutes: int = 1
    """Length of a step."""


def _same(name: str, ill: str, quiet: str) -> Case:
    return Case({name: ill}, {name: quiet})


def _both(names: tuple[str, str], ill: tuple[str, str], quiet: tuple[str, str]) -> Case:
    return Case(dict(zip(names, ill, strict=True)), dict(zip(names, quiet, strict=True)))


_RANKS = ('umbra_linker_hit_pages_total{rank="0",%s}', 'umbra_linker_hit_pages_total{rank="1",%s}')
_CORES = ('umbra_tree_core_info{rank="0",core="rust",%s}', 'umbra_tree_core_info{rank="1",core="python",%s}')
_RECONCILES = tuple(
    f'controller_runtime_reconcile_total{{controller="k3deployment",result="{result}",%s}}'
    for result in ("error", "success")
)
_TOKENS = tuple(f'sglang:prefill_effective_tokens_total{{mode="{mode}",%s}}' for mode in ("device_hit", "input"))
_FIRST_TOKENS = (
    'sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="10.0",%s}',
    'sglang:time_to_first_token_seconds_count{is_streaming="true",%s}',
)
_OPEN = 'sglang:http_requests_active{exported_endpoint="/generate",%s}'
_SERVES = 'umbra_agent_engine_state{state="serving",%s}'
_SLOTS = tuple(f'{name}{{pool="mamba",%s}}' for name in ("umbra_linker_offload_held_pages", "umbra_linker_pool_pages"))
_UNTOUCHED = (
    'umbra_linker_touch_hints_total{result="touched",%s}',
    _TOKENS[0],
    "umbra_agent_store_eviction_rounds_total{%s}",
)


def _answers(endpoint: str, status: int) -> str:
    return f'sglang:http_responses_total{{exported_endpoint="{endpoint}",status_code="{status}",%s}}'


_CALLS = tuple(f'umbra_linker_call_seconds_bucket{{op="exists",le="{le}",%s}}' for le in ("0.1", "0.5", "+Inf"))


def condition(kind: str, status: str, reason: str) -> str:
    """A series of the operator about one of a deployment's conditions."""
    return f'umbra_deployment_condition{{type="{kind}",status="{status}",reason="{reason}",%s}}'


def _sample(result: str) -> str:
    return f'umbra_linker_canary_objects_total{{rank="3",pool="kv",result="{result}",%s}}'


_SERVED = "1x29 _x60 1x120"
# Such a series is there only while the condition is so.
_ILL = "_x29 1x60 stale"


def _condition(kind: str, status: str, reason: str, quiet_reason: str) -> Case:
    return Case({condition(kind, status, reason): _ILL}, {condition(kind, status, quiet_reason): _ILL})


CASES = {
    "UmbraDeploymentUnavailable": Case(
        {
            condition("Available", "True", "Serving"): _SERVED,
            condition("Available", "False", "NoReplicaServes"): _ILL,
        },
        # It never served: its weights are being loaded.
        {condition("Available", "False", "NoReplicaServes"): "1x210"},
    ),
    "UmbraDeploymentNotReady": Case(
        {condition("Ready", "False", "EngineFailed"): _ILL},
        {condition("Ready", "False", "RolloutPaused"): "1x210"},
        minutes=2,
    ),
    "UmbraConfigInvalid": Case(
        {condition("ConfigValid", "False", "ProfileNotFound"): _ILL},
        {condition("ConfigValid", "True", "Valid"): "1x210"},
    ),
    "UmbraPreflightFailed": Case(
        {condition("PreflightPassed", "False", "CheckFailed"): _ILL},
        {condition("PreflightPassed", "True", "Passed"): "1x210"},
    ),
    "UmbraPodNotStarting": _condition("PreflightPassed", "Unknown", "Unschedulable", "Pending"),
    "UmbraOutOfMemory": _condition("EngineReady", "False", "OutOfMemory", "EngineStarting"),
    "UmbraRanksInconsistent": Case(
        {condition("RanksConsistent", "False", "RanksDiverge"): _ILL},
        {condition("RanksConsistent", "True", "Consistent"): "1x210"},
    ),
    "UmbraDegraded": Case(
        {condition("Degraded", "True", "EngineStalled"): _ILL}, {condition("Degraded", "False", "AsExpected"): "1x210"}
    ),
    "UmbraCacheIneffective": Case(
        {condition("CacheEffective", "False", "HotPagesEvicted"): _ILL},
        {condition("CacheEffective", "True", "Effective"): "1x210"},
    ),
    "UmbraAgentSilent": _condition("StoreReady", "Unknown", "AgentSilent", "Pending"),
    "UmbraRolloutHeld": Case(
        {condition("Stalled", "True", "AcknowledgementRequired"): _ILL},
        {condition("Stalled", "True", "ProfileNotFound"): "1x210"},
        minutes=5,
    ),
    "UmbraDeploymentUnobserved": _same("umbra_deployment_unobserved_generations{%s}", gauge(0, 2), gauge(0, 0)),
    "UmbraDeletionStuck": Case(
        {condition("Ready", "False", "Deleting"): _ILL},
        {condition("Ready", "False", "EngineStarting"): _ILL},
        minutes=2,
    ),
    # What stays quiet began with little traffic, all of which was found.
    "UmbraPrefixHitsDeclining": _both(
        _TOKENS,
        (counter(58020, 49440), counter(1980, 10560)),
        (counter(600, 42000), counter(0, 18000)),
    ),
    "UmbraPrefixHitsLost": _both(
        _TOKENS,
        (counter(58020, 18000), counter(1980, 42000)),
        (counter(600, 27000), counter(0, 33000)),
    ),
    "UmbraEngineFailed": _same('umbra_agent_engine_state{state="failed",%s}', gauge(0, 1), gauge(0, 0)),
    "UmbraEngineRestarting": _same(
        'umbra_agent_engine_restarts_total{reason="Exited",%s}', counter(0, 1), "0x50 1x160"
    ),
    "UmbraLaunchDocumentRefused": _same("umbra_agent_launch_documents_refused_total{%s}", counter(0, 1), counter(0, 0)),
    "UmbraEngineStalled": _both(
        (_OPEN, "sglang:realtime_tokens_total{%s}"),
        (gauge(3, 3), counter(900, 0)),
        (gauge(3, 3), counter(900, 900)),
    ),
    "UmbraCheckpointPoolLocked": Case(
        dict(zip(_SLOTS, (gauge(3, 117), gauge(120, 120)), strict=True)),
        # Full of requests that run: nothing waits for the store.
        {**dict(zip(_SLOTS, (gauge(3, 3), gauge(120, 120)), strict=True)), "sglang:mamba_usage{%s}": gauge(0.3, 0.98)},
    ),
    "UmbraEngineScrapeDown": Case(
        {'up{endpoint="http",%s}': gauge(1, 0), _SERVES: gauge(1, 1)},
        # It loads its weights.
        {'up{endpoint="http",%s}': gauge(1, 0), _SERVES: gauge(1, 0)},
    ),
    "UmbraAgentScrapeDown": Case({'up{endpoint="agent",%s}': gauge(1, 0)}, {'up{endpoint="http",%s}': gauge(1, 0)}),
    "UmbraRequestsFailing": Case(
        {_answers("/generate", 503): counter(0, 10), _answers("/generate", 200): counter(100, 100)},
        {
            _answers("/generate", 503): counter(0, 1),
            _answers("/v1/chat/completions", 200): counter(100, 100),
            _answers("/ready", 503): counter(100, 100),
        },
    ),
    "UmbraRequestsAborted": _both(
        ("sglang:num_aborted_requests_total{%s}", "sglang:num_requests_total{%s}"),
        (counter(0, 20), counter(100, 100)),
        (counter(0, 5), counter(100, 100)),
    ),
    "UmbraFirstTokensSlow": _both(
        _FIRST_TOKENS, (counter(100, 50), counter(100, 100)), (counter(100, 95), counter(100, 100))
    ),
    "UmbraTreeCoreMixed": _both(_CORES, (gauge(1, 1), "_x29 1x60 stale"), (gauge(1, 1), "_x210")),
    "UmbraRanksDiverge": _both(_RANKS, (counter(100, 100), counter(100, 80)), (counter(100, 100), counter(100, 100))),
    "UmbraStoreNotReady": _same("umbra_agent_store_ready{%s}", gauge(1, 0), gauge(1, 1)),
    "UmbraStoreFrozen": _same("umbra_linker_oldest_call_seconds{%s}", gauge(0, 1620), gauge(0, 5)),
    "UmbraStoreSlow": Case(
        dict(zip(_CALLS, (counter(100, 50), counter(100, 100), counter(100, 100)), strict=True)),
        dict.fromkeys(_CALLS, counter(100, 100)),
    ),
    "UmbraBreakerOpen": _same("umbra_linker_breaker_open{%s}", gauge(0, 1), gauge(0, 0)),
    "UmbraStoreFenced": _same("umbra_linker_fenced_stores_total{%s}", counter(0, 1), counter(0, 0)),
    "UmbraStoreEvictionStuck": _same("umbra_agent_store_eviction_stuck_total{%s}", counter(0, 1), counter(0, 0)),
    "UmbraHotPagesEvicted": _both(
        ('umbra_linker_missed_pages_total{reason="evicted_recently",%s}', "umbra_linker_lookup_pages_total{%s}"),
        (counter(0, 46), counter(100, 100)),
        (counter(0, 10), counter(100, 100)),
    ),
    "UmbraTouchOff": _both(
        _UNTOUCHED,
        (counter(10, 0), counter(1000, 1000), counter(1, 1)),
        # The store keeps all that there is.
        (counter(10, 0), counter(1000, 1000), counter(0, 0)),
    ),
    "UmbraStoreChurning": _both(
        ("umbra_agent_store_evicted_bytes_total{%s}", "umbra_agent_store_capacity_bytes{%s}"),
        (counter(0, 50), gauge(1000, 1000)),
        (counter(0, 20), gauge(1000, 1000)),
    ),
    "UmbraLoadsFailing": _both(
        ("umbra_linker_failed_loads_total{%s}", "umbra_linker_loads_total{%s}"),
        (counter(0, 10), counter(100, 100)),
        (counter(0, 1), counter(100, 100)),
    ),
    "UmbraStoredBytesDiffer": Case(
        {_sample("different"): counter(0, 1), _sample("equal"): counter(100, 100)},
        {_sample("different"): counter(0, 0), _sample("unmeasured"): counter(100, 100)},
    ),
    "UmbraOffloadBacklog": _both(
        ('umbra_linker_skipped_offloads_total{reason="backpressure",%s}', "umbra_linker_offloads_total{%s}"),
        (counter(0, 50), counter(100, 100)),
        (counter(0, 5), counter(100, 100)),
    ),
    "UmbraOperatorAbsent": Case({"umbra_operator_last_resync_timestamp_seconds{%s}": "0+60x29 _x60 5400+60x120"}, {}),
    "UmbraOperatorResyncStale": _same(
        "umbra_operator_last_resync_timestamp_seconds{%s}", "0+60x29 1740x60 5400+60x120", "0+60x210"
    ),
    "UmbraOperatorReconcileErrors": _both(
        _RECONCILES, (counter(0, 20), counter(60, 60)), (counter(0, 3), counter(60, 60))
    ),
    # What stays quiet is a large one: what it is written would be far too much for the other.
    "UmbraOperatorWriteLoop": _both(
        ("umbra_deployment_writes_total{%s}", "umbra_deployment_replicas{%s}", "umbra_deployment_ready_replicas{%s}"),
        (counter(1, 10), "1x210", "1x210"),
        (counter(1, 60), "40x210", "40x210"),
    ),
    "UmbraOperatorMissesEvents": _same("umbra_operator_resync_repaired_total{%s}", counter(0, 1), "0x50 3x160"),
    "UmbraCRDOutdated": _same("umbra_operator_crd_lacking_fields{%s}", gauge(0, 2), gauge(0, 0)),
}


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    _, tool = toolchain.prometheus()
    return subprocess.run([str(tool), *arguments], capture_output=True, text=True, check=False, timeout=300)


def _series(case: Case) -> list[dict[str, str]]:
    """What is ill lives in the namespace `ill`, the other in `quiet`."""
    found = []
    for namespace, series in (("ill", case.ill), ("quiet", case.quiet)):
        labels = f'namespace="{namespace}",name="k3",umbra_dev_deployment="k3",pod="k3-0-1"'
        found += [{"series": name % labels, "values": values} for name, values in series.items()]
    return found


def _firing(name: str, minute: int, fires: bool) -> dict[str, Any]:
    # Absence has no labels to tell of.
    label = "" if name == "UmbraOperatorAbsent" else ', namespace="ill"'
    expected = [{"labels": f'{{alertname="{name}"{label}}}', "value": 1}] if fires else []
    expr = f'max by (alertname, namespace) (ALERTS{{alertname="{name}",alertstate="firing"}})'
    return {"expr": expr, "eval_time": f"{minute}m", "exp_samples": expected}


def test_each_alert_fires_stays_quiet_and_clears(tmp_path: Path) -> None:
    assert CASES.keys() == alerts().keys()
    paths = []
    for name, case in CASES.items():
        # Each alone with the recorded series that it asks for: all rules in all tests would take a minute.
        alert, own = alerts()[name], tmp_path / f"{name}.rules.yaml"
        needed = [rule for rule in rules() if rule.get("record", "none") in alert["expr"]]
        own.write_text(json.dumps({"groups": [{"name": "own", "rules": [*needed, alert]}]}))
        test = {
            "name": name,
            "interval": f"{case.minutes}m",
            "input_series": _series(case),
            "promql_expr_test": [
                _firing(name, step * case.minutes, fires)
                for step, fires in ((28, False), (ILL_AT, True), (WELL_AT, False))
            ],
        }
        paths.append(tmp_path / f"{name}.yaml")
        step = f"{case.minutes}m"
        paths[-1].write_text(json.dumps({"rule_files": [str(own)], "evaluation_interval": step, "tests": [test]}))
    result = promtool("test", "rules", *map(str, paths))
    assert result.returncode == 0, result.stdout + result.stderr


def test_promtool_finds_no_fault() -> None:
    result = promtool("check", "rules", "--lint-fatal", str(RULES))
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_metric_of_ours_exists() -> None:
    page = metricspage.metrics_page()
    for rule in rules():
        for metric in set(re.findall(r"(?<!:)\b(?:umbra_(?!dev)|controller_runtime_)\w+", rule["expr"])):
            assert f"`{metric.removesuffix('_bucket')}`" in page, metric


def test_every_reason_of_a_condition_exists() -> None:
    wanted = {
        value
        for rule in rules()
        for text in re.findall(r'reason!?~?="([A-Z][\w|]+)"', rule["expr"])
        for value in text.split("|")
    }
    assert wanted - {"Exited"} <= {reason.value for reason in Reason}


def test_recorded_series_are_named_by_level_metric_and_operation() -> None:
    names = [rule["record"] for rule in rules() if "record" in rule]
    assert names
    assert all(re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z_]*rate15m", name) for name in names)


@pytest.mark.parametrize("name", CASES)
def test_each_alert_has_its_runbook(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert re.findall(r"^#+ (.*)$", text, re.MULTILINE) == [name, "Meaning", "Confirm", "Do"]


def test_no_runbook_is_without_its_alert() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*alerts(), "UmbraGPUUnhealthy"}


def test_the_chart_ships_exactly_these_alerts_when_asked() -> None:
    (body,) = [body for body in template({**IMAGE, "prometheusRule.create": True}) if body["kind"] == "PrometheusRule"]
    assert body["spec"] == yaml.safe_load(RULES.read_text())
    assert [body for body in template(IMAGE) if body["kind"] == "PrometheusRule"] == []


def test_the_alert_about_gpus_is_there_when_asked_for_and_fires(tmp_path: Path) -> None:
    """The label sets are those of the exporter's documentation; its own exposition was not at hand."""
    (body,) = [
        body
        for body in template({**IMAGE, "prometheusRule.create": True, "prometheusRule.gpus": True})
        if body["kind"] == "PrometheusRule"
    ]
    group = body["spec"]["groups"][-1]
    assert group["name"] == "umbra-gpus"
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [group]}))
    # The exporter names the pod that uses a GPU; each of these engines ends after the 60th minute.
    series = {
        'gpu_health{gpu_id="3",hostname="ill",pod="k3-0-0"}': f"1x29 0x{ILL_AT - 31} stale",
        'gpu_health{gpu_id="3",hostname="ill"}': f"_x{ILL_AT - 1} 0x4 1x200",
        'gpu_health{gpu_id="0",hostname="well",pod="k3-1-0"}': "1x60 stale",
        'gpu_health{gpu_id="0",hostname="well"}': "_x60 1x150",
        'gpu_ecc_uncorrect_total{gpu_id="5",hostname="errors",pod="k3-2-0",container="engine"}': "0x60 stale",
        'gpu_ecc_uncorrect_total{gpu_id="5",hostname="errors"}': "_x60 1x150",
        'gpu_ecc_uncorrect_total{gpu_id="6",hostname="errors",pod="k3-2-0",container="engine"}': "0x60 stale",
        'gpu_ecc_uncorrect_total{gpu_id="6",hostname="errors"}': "_x60 0x150",
        'gpu_ecc_uncorrect_total{gpu_id="2",hostname="same",pod="k3-3-0"}': "0x60 1x150",
        'amd_gpu_ecc_uncorrect_total{gpu_id="1",hostname="old",pod="k3-4-0"}': "7x60 stale",
        'amd_gpu_ecc_uncorrect_total{gpu_id="1",hostname="old",pod="k3-4-1"}': "_x60 7x150",
        # The driver was loaded again.
        'gpu_ecc_uncorrect_total{gpu_id="4",hostname="reset",pod="k3-5-0"}': "7x60 stale",
        'gpu_ecc_uncorrect_total{gpu_id="4",hostname="reset"}': "_x60 0x150",
    }
    expr = 'max by (hostname, gpu_id) (ALERTS{alertname="UmbraGPUUnhealthy",alertstate="firing"})'
    firing = [
        {"labels": f'{{hostname="{host}", gpu_id="{gpu}"}}', "value": 1}
        for host, gpu in (("ill", 3), ("errors", 5), ("same", 2))
    ]
    told = [(28, []), (ILL_AT, firing), (WELL_AT, [])]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{minute}m", "exp_samples": samples} for minute, samples in told
        ],
    }
    path = tmp_path / "tests.yaml"
    path.write_text(json.dumps({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}))
    result = promtool("test", "rules", str(path))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_readme_counts_the_alerts_with_the_one_about_gpus() -> None:
    (count,) = re.findall(
        r"(\d+) \[alerts\]\(docs/reference/alerts.md\) with runbooks", (ROOT / "README.md").read_text()
    )
    assert int(count) == len(alerts()) + 1


def test_the_runbooks_are_where_the_chart_s_values_say() -> None:
    values = {**IMAGE, "prometheusRule.create": True, "prometheusRule.runbooks": "https://docs.example.test/runbooks/"}
    (body,) = [body for body in template(values) if body["kind"] == "PrometheusRule"]
    found = [rule for group in body["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    wanted = {f"https://docs.example.test/runbooks/{name}.md" for name in alerts()}
    assert {rule["annotations"]["runbook_url"] for rule in found} == wanted


@pytest.mark.parametrize(("seconds", "bound"), [(10, "10.0"), (0.4, "0.4"), (100, "100.0")])
def test_the_bound_of_first_tokens_is_the_chart_s(seconds: float, bound: str) -> None:
    values = {**IMAGE, "prometheusRule.create": True, "prometheusRule.firstTokenSeconds": seconds}
    (body,) = [body for body in template(values) if body["kind"] == "PrometheusRule"]
    (rule,) = [
        rule
        for group in body["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "UmbraFirstTokensSlow"
    ]
    assert re.findall(r'le="([^"]*)"', rule["expr"]) == [bound, bound]
    assert f" {bound} s" in rule["annotations"]["summary"]
