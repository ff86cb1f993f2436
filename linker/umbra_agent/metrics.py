"""Prometheus text format, written by hand: the engine image need not have a client library for our Python."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric family. `unit` is for the reference page; the name carries it too, as Prometheus asks."""

    name: str
    kind: str
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One value of a metric family."""

    metric: Metric
    value: float
    labels: Mapping[str, str] | None = None


INFO = Metric(
    "umbra_agent_info",
    "gauge",
    "The agent and the kit it runs from; always 1.",
    labels=("agent", "kit", "revision"),
)
READY = Metric("umbra_agent_ready", "gauge", "1 when the agent's /ready answers 200.")

ENGINE_STATE = Metric(
    "umbra_agent_engine_state",
    "gauge",
    "1 for the state that the engine is in, 0 for the others.",
    labels=("state",),
)
ENGINE_RESTARTS = Metric(
    "umbra_agent_engine_restarts_total",
    "counter",
    "Engine starts after the first, by reason: Exited (it ended by itself) or Revision (a new launch document).",
    labels=("reason",),
)
ENGINE_BACKOFF = Metric(
    "umbra_agent_engine_backoff_seconds", "gauge", "Wait before the next start after an exit; 0 when none.", "seconds"
)
ENGINE_STARTED = Metric(
    "umbra_agent_engine_started_timestamp_seconds", "gauge", "When the running engine was started.", "seconds"
)
ENGINE_START_DURATION = Metric(
    "umbra_agent_engine_start_duration_seconds", "gauge", "From the last start of the engine until ready.", "seconds"
)
ENGINE_STOP_DURATION = Metric(
    "umbra_agent_engine_stop_duration_seconds",
    "gauge",
    "From the last stop request until the engine's last process was gone.",
    "seconds",
)
DOCUMENTS_REFUSED = Metric("umbra_agent_launch_documents_refused_total", "counter", "Launch documents found invalid.")
STORE_READY = Metric("umbra_agent_store_ready", "gauge", "1 when the store agent's last answer was ready.")

STORE_STATE = Metric(
    "umbra_agent_store_state", "gauge", "1 for the state that the store is in, 0 for the others.", labels=("state",)
)
STORE_CAPACITY = Metric("umbra_agent_store_capacity_bytes", "gauge", "Configured size of the store's tier.", "bytes")
STORE_REGISTERED = Metric(
    "umbra_agent_store_registered",
    "gauge",
    "1 once the store said that its tier is registered for access by every GPU.",
)
STORE_REGISTRATION_DURATION = Metric(
    "umbra_agent_store_registration_duration_seconds",
    "gauge",
    "From the store's start until its tier was registered.",
    "seconds",
)
STORE_STARTED = Metric("umbra_agent_store_started_timestamp_seconds", "gauge", "When the store was started.", "seconds")
STORE_EVICTION_ROUNDS = Metric(
    "umbra_agent_store_eviction_rounds_total", "counter", "Log lines in which the store said that it evicted locally."
)
STORE_EVICTED_KEYS = Metric(
    "umbra_agent_store_evicted_keys_total", "counter", "Keys that local eviction freed.", "keys"
)
STORE_EVICTED_BYTES = Metric(
    "umbra_agent_store_evicted_bytes_total", "counter", "Bytes that local eviction freed.", "bytes"
)
STORE_EVICTION_STUCK = Metric(
    "umbra_agent_store_eviction_stuck_total",
    "counter",
    "Log lines in which the store found nothing to evict: every key was leased or pinned.",
)


def one_hot(metric: Metric, states: Iterable[str], current: str) -> list[Sample]:
    """Samples of a state metric: 1 for `current`, 0 for the other `states`."""
    return [Sample(metric, float(state == current), {"state": state}) for state in states]


def render(samples: Iterable[Sample]) -> str:
    """Return the exposition: each family once, with its help and type, in order of first appearance."""
    families: dict[Metric, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, members in families.items():
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_labels(sample.labels)} {float(sample.value)!r}" for sample in members]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str] | None) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
