"""Where each K3Deployment stands, as metrics.

They are read from the memory at each scrape, so a series ends with its object and none can be left behind. A deployment
has a series for each condition that it has and one for each other metric here: 22 at most.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from umbra_operator.records import DeploymentRecord

_OBJECT = ("namespace", "name")


_CACHE = (
    (
        "umbra_deployment_hit_ratio",
        "Tokens of prompts that device or store had, of all replicas in 15 minutes; rounded, as in status.cache.",
        "hitPercent",
        0.01,
    ),
    (
        "umbra_deployment_hot_miss_ratio",
        "Pages asked of the stores that were there before and are evicted, likewise.",
        "hotMissPercent",
        0.01,
    ),
    (
        "umbra_deployment_store_retention_seconds",
        "In how long the stores are written over as a whole, at the pace of 15 minutes.",
        "retentionSeconds",
        1,
    ),
    (
        "umbra_deployment_advice",
        "Changes of the spec that would help the cache; status.cache.advice names them.",
        "advice",
        1,
    ),
)
"""Metric, meaning, field of status.cache and its unit; there is no series where the field is not known."""


def _families() -> tuple[GaugeMetricFamily, ...]:
    return (
        GaugeMetricFamily(
            "umbra_deployment_condition",
            "Always 1: the status and reason that a condition of this K3Deployment has now.",
            labels=(*_OBJECT, "type", "status", "reason"),
        ),
        GaugeMetricFamily("umbra_deployment_replicas", "Replicas that the K3Deployment asks for.", labels=_OBJECT),
        GaugeMetricFamily(
            "umbra_deployment_ready_replicas", "Replicas of the K3Deployment that serve.", labels=_OBJECT
        ),
        GaugeMetricFamily(
            "umbra_deployment_unobserved_generations",
            "Edits of the K3Deployment that its status does not speak of yet; 0 is good.",
            labels=_OBJECT,
        ),
        GaugeMetricFamily(
            "umbra_deployment_overrides",
            "Settings that engines follow otherwise than the spec says (autonomy Act); status.overrides has them.",
            labels=_OBJECT,
        ),
        *(GaugeMetricFamily(name, meaning, labels=_OBJECT) for name, meaning, _, _ in _CACHE),
    )


class Fleet(Collector):
    """Collector of the deployments that ``known`` gives; the thread of the HTTP port calls it."""

    def __init__(self, known: Callable[[], Iterable[DeploymentRecord]] = tuple) -> None:
        self._known = known

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The families without a sample."""
        return _families()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The families with what is known now."""
        condition, replicas, ready, unobserved, overridden, *cache = families = _families()
        # One copy at once: the event loop adds and removes deployments meanwhile.
        for deployment in [*self._known()]:
            status = deployment.status
            for each in status.get("conditions") or ():
                condition.add_metric([*deployment.key, each["type"], each["status"], each["reason"]], 1)
            if deployment.spec:
                replicas.add_metric(deployment.key, deployment.spec.replicas)
            ready.add_metric(deployment.key, status.get("readyReplicas", 0))
            for family, (_, _, field, unit) in zip(cache, _CACHE, strict=True):
                if (value := (status.get("cache") or {}).get(field)) is not None:
                    family.add_metric(deployment.key, unit * (len(value) if isinstance(value, list) else value))
            overridden.add_metric(deployment.key, len(status.get("overrides") or ()))
            unobserved.add_metric(deployment.key, deployment.generation - status.get("observedGeneration", 0))
        yield from families
