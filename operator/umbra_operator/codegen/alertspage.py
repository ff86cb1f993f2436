"""``docs/reference/alerts.md``: every alert of the chart, from its rules, and what has none."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from umbra_operator.codegen.reference import NOTE

_ABOUT = {
    "umbra-deployment": "Deployments",
    "umbra-engine": "Engines",
    "umbra-ranks": "Ranks",
    "umbra-store": "Stores",
    "umbra-operator": "The operator",
}


def alerts_page(rules: str) -> str:
    """The page; ``rules`` is the text of the chart's ``files/alerts.yaml``."""
    parts = [NOTE, _INTRODUCTION]
    for group in yaml.safe_load(rules)["groups"]:
        if group["name"] in _ABOUT:
            parts += [f"\n## {_ABOUT[group['name']]}\n\n", *_table(group["rules"])]
    return "".join([*parts, _RECORDED, *_recorded(rules), _LEFT_OUT])


def _table(rules: list[Mapping[str, Any]]) -> Iterator[str]:
    yield "| Alert | Severity | For | Says |\n|---|---|---|---|\n"
    for rule in rules:
        name, says = rule["alert"], _plain(rule["annotations"]["summary"])
        yield f"| [`{name}`](../runbooks/{name}.md) | {rule['labels']['severity']} | {rule['for']} | {says} |\n"


def _plain(summary: str) -> str:
    """The sentence with the names of labels in capitals, and N for the value."""
    text = re.sub(r"{{ \$value[^}]*}}", "N", summary)
    return re.sub(r"{{ \$labels\.(?:umbra_dev_)?(\w+) }}", lambda label: label[1].upper(), text)


def _recorded(rules: str) -> Iterator[str]:
    for group in yaml.safe_load(rules)["groups"]:
        yield from (f"- `{rule['record']}`\n" for rule in group["rules"] if "record" in rule)


_INTRODUCTION = """# Alerts

`prometheusRule.create` of [the chart](../../charts/umbra/README.md) installs these rules. `critical` is for now,
`warning` for working hours. Each alert has a page with its meaning, commands that confirm it, and what to do. They ask
for what the monitors of chart and operator scrape, with the labels that the Prometheus Operator gives; see
[every metric](metrics.md).

Umbra acts on few of these by itself: an engine that ended is started again, a store that leaves a load unanswered is
ended, and lookups do not ask a store that answers late. No alert restarts an engine that serves. With `autonomy: Act`
the operator changes cache settings for a day where [its own rules](../explanation/health.md#autonomy) tell; the pages
say which.
"""

_RECORDED = """
## Recorded series

"""

_LEFT_OUT = """
## What has no alert, and why

| Nothing tells of | because |
|---|---|
| how full the store is | it tells no used bytes without a master; `UmbraStoreChurning` sees what a full one does |
| master, Redis and SSD of UMBP | Umbra runs none: each pod has a store of its own, in memory |
| a restored state that is not the computed one | tests compare; what a store changes, `UmbraStoredBytesDiffer` sees |
| pages stored once for each rank | `keyLayout: PerRank` is somebody's choice; `status.cache.advice` has the remedy |
| tokens evicted differently by ranks | the operator judges it, `UmbraRanksInconsistent` fires |
| a rank that is missing | likewise |
| a watch of the operator that stands still | kopf tells of none; `UmbraOperatorMissesEvents` sees what follows |
| GPUs | they are another exporter's; `prometheusRule.gpus` adds `UmbraGPUUnhealthy` for AMD's |
"""
