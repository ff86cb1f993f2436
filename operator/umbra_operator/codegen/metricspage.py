"""``docs/reference/metrics.md``: every metric of operator, linker and agents, from their definitions."""

from collections.abc import Iterable, Iterator

from prometheus_client import Counter, Gauge, Histogram

from umbra_agent import metrics as agent
from umbra_linker.metrics import METRICS
from umbra_operator import metrics as operator
from umbra_operator.codegen.reference import NOTE
from umbra_operator.fleet import FAMILIES

_UNITS = ("seconds", "bytes")

Row = tuple[str, str, str, Iterable[str], str]
"""Name, kind, unit, labels and meaning."""


def metrics_page() -> str:
    """The page."""
    linker = [(each.name, each.kind.value, each.unit, each.labels, each.help) for each in METRICS]
    agents = [each for each in vars(agent).values() if isinstance(each, agent.Metric)]
    return "".join(
        [
            NOTE,
            "# Metrics\n\n",
            "Names of times and sizes end in their unit, counters in `_total`. A histogram `x` is the series ",
            "`x_bucket`, `x_sum` and `x_count`.\n",
            "\n## Operator\n\nAt `/metrics` of the operator's own port, 8080 unless `UMBRA_METRICS_PORT` says ",
            "otherwise. Where controller-runtime has a metric, its name is used.\n\n",
            *_table(operator_rows()),
            "\n## K3Deployments\n\nAt `/metrics` of the operator that leads; a series ends with its object. ",
            "`namespace` is the object's: a scrape must honour labels, as the chart's monitors do.\n\n",
            *_table(_fleet_rows()),
            "\n## Linker\n\nIn the engine's own `/metrics`, one series for each rank.\n\n",
            *_table(linker),
            "\n## Agents\n\nAt `/metrics` of each agent, which has those about its own child.\n\n",
            *_table((each.name, each.kind, each.unit, each.labels, each.help) for each in agents),
        ]
    )


def operator_rows() -> Iterator[Row]:
    """The operator's metrics, in the order of their definition."""
    for made in vars(operator).values():
        if isinstance(made, Counter | Gauge | Histogram):
            (family,) = made.describe()
            # A counter's family has no "_total", its series have.
            name = f"{family.name}_total" if family.type == "counter" else family.name
            unit = next((unit for unit in _UNITS if family.name.endswith(f"_{unit}")), "")
            yield name, family.type, unit, made._labelnames, family.documentation


def _fleet_rows() -> Iterator[Row]:
    for family in FAMILIES:
        yield family.name, "gauge", "", family.labels, family.meaning


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| Metric | Kind | Unit | Labels | Meaning |\n|---|---|---|---|---|\n"
    for name, kind, unit, labels, meaning in rows:
        yield f"| `{name}` | {kind} | {unit} | {', '.join(f'`{label}`' for label in labels)} | {meaning} |\n"
