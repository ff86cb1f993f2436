"""The reference page of metrics against what a process really shows, and the metrics about K3Deployments."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from builders import NAME, NAMESPACE, deployment, stored
from product import ROOT
from umbra_operator import fleet, metrics
from umbra_operator.conditions import Reason, Type, Verdict, merge
from umbra_operator.fleet import Fleet
from umbra_operator.observe import Memory


def test_the_page_names_every_series_of_the_operator_with_its_labels() -> None:
    metrics.RECONCILES.labels("a", "b")
    metrics.REQUESTS.labels("a", "b", "c")
    metrics.POLLS.labels("a", "b")
    metrics.WRITES.labels("a", "b")
    lines = generate_latest().decode().splitlines()
    shown = dict(line.removeprefix("# TYPE ").split(" ") for line in lines if line.startswith("# TYPE "))
    own = {name for name in shown if not re.match(r"python_|process_", name) and not name.endswith("_created")}
    page = (ROOT / "docs/reference/metrics.md").read_text()
    table = page.split("## Operator")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == own
    for name, labels in re.findall(r"^\| `(\w+_total)` \| counter \| \w* \| (`[^|]+) \|", table, re.MULTILINE):
        series = next(line for line in lines if line.startswith(f"{name}{{"))
        assert set(re.findall(r"`(\w+)`", labels)) == set(re.findall(r"(\w+)=", series))


def shown(memory: Memory) -> set[str]:
    """The series, with their labels in the order of the alphabet."""
    families = text_string_to_metric_families(Fleet(memory.deployments.values).text())
    return {line(sample.name, sample.labels, sample.value) for family in families for sample in family.samples}


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    return f"{name}{{{','.join(f'{label}={json.dumps(word)}' for label, word in sorted(labels.items()))}}} {value}"


def test_a_deployment_has_one_series_for_each_condition_until_it_is_gone() -> None:
    memory = Memory()
    verdicts = [
        Verdict(Type.AVAILABLE, True, Reason.SERVING, ""),
        Verdict(Type.STORE_READY, None, Reason.AGENT_SILENT, ""),
    ]
    cache = {"hitPercent": 85, "retentionSeconds": 1500, "advice": [{"name": "GrowStore"}]}
    status = {
        "cache": cache,
        "readyReplicas": 1,
        "observedGeneration": 2,
        "conditions": merge((), verdicts, 2, "2026-12-02T07:00:00Z"),
    }
    body = stored(deployment(replicas=2), "d1", generation=3)
    memory.put_deployment({**body, "status": status})
    of = f'name="{NAME}",namespace="{NAMESPACE}"'
    assert shown(memory) == {
        f'umbra_deployment_condition{{{of},reason="Serving",status="True",type="Available"}} 1.0',
        f'umbra_deployment_condition{{{of},reason="AgentSilent",status="Unknown",type="StoreReady"}} 1.0',
        f"umbra_deployment_replicas{{{of}}} 2.0",
        f"umbra_deployment_ready_replicas{{{of}}} 1.0",
        f"umbra_deployment_unobserved_generations{{{of}}} 1.0",
        f"umbra_deployment_overrides{{{of}}} 0.0",
        f"umbra_deployment_hit_ratio{{{of}}} 0.85",
        f"umbra_deployment_store_retention_seconds{{{of}}} 1500.0",
        f"umbra_deployment_advice{{{of}}} 1.0",
    }
    memory.drop_deployment((NAMESPACE, NAME), "d1")
    assert not shown(memory)


def test_a_deployment_has_no_more_series_than_are_told() -> None:
    verdicts = [Verdict(kind, True, Reason.SERVING, "") for kind in Type]
    cache = {"hitPercent": 85, "hotMissPercent": 5, "retentionSeconds": 1500, "advice": []}
    status = {"cache": cache, "conditions": merge((), verdicts, 1, "2026-12-02T07:00:00Z")}
    memory = Memory()
    memory.put_deployment({**stored(deployment(), "d1"), "status": status})
    assert f"here: {len(shown(memory))} at most." in " ".join((fleet.__doc__ or "").split())


def test_a_deployment_that_cannot_be_read_is_shown_all_the_same() -> None:
    memory = Memory()
    memory.put_deployment(stored({**deployment(), "spec": {"replicas": "many"}}, "d1"))
    of = f'name="{NAME}",namespace="{NAMESPACE}"'
    assert shown(memory) == {
        f"umbra_deployment_ready_replicas{{{of}}} 0.0",
        f"umbra_deployment_unobserved_generations{{{of}}} 1.0",
        f"umbra_deployment_overrides{{{of}}} 0.0",
    }


class Looked(Mapping[str, Any]):
    """A status that counts how often somebody looks into it."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.fields, self.looks = fields, 0

    def __getitem__(self, name: str) -> Any:
        self.looks += 1
        return self.fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


def test_a_scrape_reads_only_what_changed_since_the_last() -> None:
    memory = Memory()
    memory.put_deployment(stored(deployment(), "d1"))
    (record,) = memory.deployments.values()
    first, then = Looked({"readyReplicas": 1}), Looked({"readyReplicas": 2})
    known = [replace(record, status=first)]
    exposition = Fleet(lambda: known)
    text, looks = exposition.text(), first.looks
    assert exposition.text() == text and first.looks == looks > 0
    known[:] = [replace(record, status=then)]
    ready = f'umbra_deployment_ready_replicas{{namespace="{NAMESPACE}",name="{NAME}"}} '
    assert f"{ready}1.0" in text
    assert f"{ready}2.0" in exposition.text()
