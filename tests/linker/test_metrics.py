"""The metrics that the definitions promise are the ones that appear."""

import re
import subprocess
import sys
from pathlib import Path

import prometheus_client
import pytest

from umbra_linker.metrics import METRICS, Kind, LinkerMetrics
from umbra_linker.planning import MissReason
from umbra_linker.settings import Settings
from umbra_linker.store import Operation


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    """A registry of our own, so that tests do not meet."""
    return prometheus_client.CollectorRegistry()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_rules(metric: object) -> None:
    assert re.fullmatch(r"umbra_(linker|tree_core)_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.labels[0] == "rank"
    assert metric.help.endswith(".")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)


def test_what_is_recorded_appears(registry: prometheus_client.CollectorRegistry) -> None:
    metrics = LinkerMetrics(3, registry=registry)
    metrics.lookup(seconds=0.002, pages=10, hit_pages=4, hit_tokens=256, hit_objects={"kv": 4, "mamba": 1})
    metrics.missed(6, MissReason.EVICTED_RECENTLY)
    metrics.ages(oldest_call=1.5, oldest_offload=2.5)
    metrics.call(Operation.READ, 0.003)
    metrics.settings(Settings(rpc_parallelism=8))
    metrics.loads(3, failed=1)
    metrics.offloads(5, failed=2)
    metrics.queue_depth(7)
    metrics.stored("kv", objects=2, size=200)
    metrics.read("mamba", objects=1, size=50)

    expected = {
        "umbra_linker_lookups_total": 1,
        "umbra_linker_lookup_pages_total": 10,
        "umbra_linker_hit_pages_total": 4,
        "umbra_linker_hit_tokens_total": 256,
        "umbra_linker_oldest_call_seconds": 1.5,
        "umbra_linker_offload_oldest_seconds": 2.5,
        "umbra_linker_loads_total": 2,
        "umbra_linker_failed_loads_total": 1,
        "umbra_linker_offloads_total": 3,
        "umbra_linker_failed_offloads_total": 2,
        "umbra_linker_offload_queue_depth": 7,
        "umbra_linker_lookup_seconds_count": 1,
    }
    found = {name: registry.get_sample_value(name, {"rank": "3"}) for name in expected}
    assert found == expected
    missed = {"rank": "3", "reason": "evicted_recently"}
    assert registry.get_sample_value("umbra_linker_missed_pages_total", missed) == 6
    assert registry.get_sample_value("umbra_linker_hit_objects_total", {"rank": "3", "pool": "mamba"}) == 1
    assert registry.get_sample_value("umbra_linker_call_seconds_count", {"rank": "3", "op": "read"}) == 1
    assert registry.get_sample_value("umbra_linker_policy", {"rank": "3", "setting": "rpcParallelism"}) == 8
    pool = {"rank": "3", "pool": "kv"}
    assert registry.get_sample_value("umbra_linker_stored_objects_total", pool) == 2
    assert registry.get_sample_value("umbra_linker_stored_bytes_total", pool) == 200
    assert registry.get_sample_value("umbra_linker_read_bytes_total", pool | {"pool": "mamba"}) == 50


def test_series_exist_at_zero_from_the_start(registry: prometheus_client.CollectorRegistry) -> None:
    LinkerMetrics(0, registry=registry)
    assert registry.get_sample_value("umbra_linker_failed_loads_total", {"rank": "0"}) == 0


@pytest.mark.parametrize(
    "module",
    [
        "plugin",
        "metrics",
        "settings",
        "keys",
        "planning",
        "guard",
        "hooks",
        "tree_core",
        "batch",
        "mover",
        "recent",
        "store",
        "transfers",
    ],
)
def test_importing_a_module_imports_nothing_heavy(module: str) -> None:
    # SGLang chooses prometheus_client's mode after the plugin was imported, and the operator has no torch.
    script = (
        f"import sys, umbra_linker.{module}\n"
        "print(sorted({'prometheus_client', 'torch', 'sglang'} & set(sys.modules)))"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def test_every_metric_is_explained() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "linker.md"
    text = page.read_text()
    assert [metric.name for metric in METRICS if f"`{metric.name}`" not in text] == []
