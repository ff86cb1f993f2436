"""The chart's values, each once: ``values.yaml``, ``values.schema.json`` and the table in the chart's README."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import yaml

from umbra_operator.codegen.reference import NOTE


@dataclass(frozen=True)
class Value:
    """One value of the chart."""

    name: str
    """Path with dots; at most two parts."""
    default: Any
    schema: Mapping[str, Any]
    help: str


_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_DIGEST = "sha256:[0-9a-f]{64}"
_BY_DIGEST = {"type": "string", "pattern": f"^([^@]+@{_DIGEST})?$"}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
_OBJECTS = {"type": "array", "items": {"type": "object"}}

VALUES = (
    Value(
        "image.repository",
        "",
        {"type": "string", "pattern": r"^([^\s@]+/)?[^\s@:/]*$"},
        "Repository of the operator's image. It has no default, because none is invented.",
    ),
    Value(
        "image.digest", "", {"type": "string", "pattern": f"^({_DIGEST})?$"}, "Digest of that image; better than a tag."
    ),
    Value(
        "image.tag",
        "",
        {"type": "string", "pattern": r"^(\w[\w.-]{0,127})?$"},
        "Tag of that image, used when there is no digest.",
    ),
    Value(
        "image.pullPolicy",
        "IfNotPresent",
        {"enum": ["Always", "IfNotPresent", "Never"]},
        "When a node pulls the image.",
    ),
    Value(
        "imagePullSecrets",
        [],
        {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": _TEXT}}},
        "Secrets to pull the image with, each as `{name: NAME}`.",
    ),
    Value(
        "replicas",
        2,
        {"type": "integer", "minimum": 1, "maximum": 5},
        "Operators. One leads; another takes over within 2 s after it ends, and after at most 17 s when its node "
        "is lost.",
    ),
    Value(
        "namespaces",
        [],
        {"type": "array", "items": _NAME, "uniqueItems": True},
        "Namespaces that the operator serves, and has rights in; empty means all of them.",
    ),
    Value("logLevel", "INFO", {"enum": ["DEBUG", "INFO", "WARNING", "ERROR"]}, "Level of the log."),
    Value(
        "resources",
        {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        {"type": "object"},
        "Requests and limits of an operator.",
    ),
    Value("nodeSelector", {}, _LABELS, "Labels of the nodes that may run operators."),
    Value("tolerations", [], _OBJECTS, "Taints that operators tolerate."),
    Value("affinity", {}, {"type": "object"}, "Affinity of operators. Unset: they prefer different nodes."),
    Value(
        "crds.install",
        True,
        _FLAG,
        "CRDs come and are upgraded with the chart. They stay when it is uninstalled: removing one would delete every "
        "object of its kind.",
    ),
    Value(
        "profiles.create",
        False,
        _FLAG,
        "A K3Profile for eight MI355X, as examples/mi355x-tp8-v1.yaml. Its name holds a hash of its content, so that "
        "another image makes another profile, and profiles stay when the chart goes. It needs the CRDs: a first "
        "install leaves it to the next upgrade.",
    ),
    Value(
        "profiles.engineImage",
        "",
        _BY_DIGEST,
        "Image with SGLang 0.5.23 for ROCm and amd-mori 1.2.4, by digest; profiles.create requires it.",
    ),
    Value("profiles.kitImage", "", _BY_DIGEST, "The kit's image, by digest; profiles.create requires it."),
    Value(
        "profiles.modelRoot",
        "/mnt/models",
        {"type": "string", "pattern": "^/"},
        "Folder of the nodes that has the weights; K3Deployments call it `models`.",
    ),
    Value(
        "networkPolicy.create",
        True,
        _FLAG,
        "Lets nothing reach the operators but their port of metrics and probes. What goes out is not limited: where "
        "the API server and the pods are differs from cluster to cluster.",
    ),
    Value(
        "networkPolicy.metricsFrom",
        [],
        _OBJECTS,
        "Who may reach that port, as peers of a NetworkPolicy; empty means everyone.",
    ),
    Value(
        "prometheusRule.create",
        False,
        _FLAG,
        "Alerts and recording rules; needs the Prometheus Operator's PrometheusRule.",
    ),
    Value("prometheusRule.labels", {}, _LABELS, "Labels by which your Prometheus selects rules."),
    Value(
        "prometheusRule.runbooks",
        "",
        {"type": "string", "pattern": "^(https?://.+)?$"},
        "URL where your users read this release's docs/runbooks; each alert's runbook_url is a page below it. "
        "Unset: the page's path in the repository.",
    ),
    Value(
        "prometheusRule.firstTokenSeconds",
        10,
        {"enum": [0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400]},
        "Within how many seconds 99 of 100 streams are to begin, one of the bounds that SGLang counts by; an alert "
        "fires when that is missed by far.",
    ),
    Value(
        "prometheusRule.gpus",
        False,
        _FLAG,
        "Also the alert about GPUs that are unhealthy, by AMD's device-metrics-exporter, which others install. Its "
        "names are from that exporter's documentation; it was not tried on a GPU.",
    ),
    Value(
        "dashboards.create",
        False,
        _FLAG,
        "Dashboards of the fleet, a deployment, its cache tier and its ranks, as ConfigMaps that Grafana's sidecar "
        "loads.",
    ),
    Value(
        "dashboards.labels",
        {},
        _LABELS,
        'Labels by which that sidecar finds them. Unset: `grafana_dashboard: "1"`.',
    ),
    Value(
        "podMonitor.create",
        False,
        _FLAG,
        "Scrapes the operators; needs the Prometheus Operator's PodMonitor. Deployments have one of their own wherever "
        "it exists.",
    ),
    Value("podMonitor.labels", {}, _LABELS, "Labels by which your Prometheus selects PodMonitors."),
    Value(
        "serviceMonitor.create",
        False,
        _FLAG,
        "Scrapes the operators as `podMonitor.create` does, for a Prometheus that selects ServiceMonitors only; brings "
        "a Service without an address. The two exclude each other.",
    ),
    Value("serviceMonitor.labels", {}, _LABELS, "Labels by which your Prometheus selects ServiceMonitors."),
)


def _groups() -> Iterator[tuple[str, list[Value]]]:
    """Values by the first part of their names, in their order."""
    for group, values in groupby(VALUES, key=lambda value: value.name.partition(".")[0]):
        yield group, list(values)


def values_yaml() -> str:
    """The defaults, each with its sentence."""
    lines = ["# Generated by `make generate` from the table in umbra_operator.codegen.chartvalues; do not edit."]
    for group, values in _groups():
        lines.append("")
        if values[0].name != group:
            lines.append(f"{group}:")
        for value in values:
            indent = "  " * value.name.count(".")
            lines += [f"{indent}# {line}" for line in _wrapped(value.help, 110)]
            shown = yaml.safe_dump({value.name.rpartition(".")[2]: value.default}, sort_keys=False).splitlines()
            lines += [f"{indent}{line}".replace("''", '""') for line in shown]
    return "\n".join(lines) + "\n"


def values_schema() -> str:
    """The JSON schema; what is no value is refused."""
    properties: dict[str, Any] = {"global": {"type": "object", "description": "What parent charts share; not used."}}
    for group, values in _groups():
        own = {value.name.rpartition(".")[2]: {"description": value.help, **value.schema} for value in values}
        properties[group] = own[group] if values[0].name == group else {**_closed(own), "required": _needed(values)}
    needed = [group for group, values in _groups() if values[0].name != group or _needed(values)]
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_closed(properties), "required": needed}
    return json.dumps(schema, indent=2) + "\n"


def readme() -> str:
    """The chart's README."""
    rows = (f"| `{value.name}` | `{json.dumps(value.default)}` | {value.help} |\n" for value in VALUES)
    return "".join([NOTE, _INTRODUCTION, "| Value | Default | Meaning |\n|---|---|---|\n", *rows])


def _needed(values: Iterable[Value]) -> list[str]:
    """Those that null cannot take away; without a map or a list nothing is asked for."""
    return [value.name.rpartition(".")[2] for value in values if not isinstance(value.default, dict | list)]


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    yield line


_INTRODUCTION = """# Chart `umbra`

The operator, its CRDs and rights, and, when asked for, alerts and a profile.

```
helm install umbra charts/umbra -n umbra-system --create-namespace \\
  --set image.repository=example.com/umbra/operator --set image.digest=sha256:DIGEST
```

- The operator's pods pass the `restricted` Pod Security Standard, so its namespace can enforce it.
- `helm upgrade` upgrades the CRDs with the operator and changes no pod of a K3Deployment.
- CRDs that someone applied with kubectl are a conflict for the next `helm upgrade`: give it `--force-conflicts` once.
- `helm rollback` brings the older CRDs back as well: the API server then drops what newer fields held, with the next
  write.
- `helm uninstall` leaves CRDs, profiles and deployments, and engines go on serving. Installing again under the same
  release name and namespace takes CRDs and profiles over; under another one, set `crds.install=false` and
  `profiles.create=false`, or give `--take-ownership`.
- Two releases share a cluster when each serves `namespaces` of its own; the second one with `crds.install=false`. Helm
  refuses a release that would serve a namespace that another one serves, or all of them as another one does.
- To remove everything, delete the K3Deployments, uninstall, then delete the K3Profiles and the two CRDs.

## Values

"""
