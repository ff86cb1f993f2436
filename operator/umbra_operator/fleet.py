"""Where each K3Deployment stands, as metrics.

They are read from the memory at each scrape, so a series ends with its object and none can be left behind. A deployment
has a series for each condition that it has and one for each other metric here: 23 at most.

The text of a deployment is made once for each version of it: with many of them, a scrape that made all anew kept the
event loop waiting.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from umbra_operator.records import DeploymentRecord, Key

_OBJECT = ("namespace", "name")


class Family(NamedTuple):
    """A metric: a gauge with a value for each deployment, or for each of several things that the deployment has."""

    name: str
    meaning: str
    values: Callable[[DeploymentRecord], Iterable[tuple[tuple[str, ...], float]]]
    """The values of ``labels`` beyond the deployment's, and the gauge's."""
    labels: tuple[str, ...] = _OBJECT


def _conditions(deployment: DeploymentRecord) -> Iterator[tuple[tuple[str, ...], float]]:
    for each in deployment.status.get("conditions") or ():
        yield (each["type"], each["status"], each["reason"]), 1


def _one(name: str, meaning: str, value: Callable[[DeploymentRecord], float | None]) -> Family:
    """A metric with one value, or none where it is not known."""

    def values(deployment: DeploymentRecord) -> Iterator[tuple[tuple[str, ...], float]]:
        if (found := value(deployment)) is not None:
            yield (), found

    return Family(name, meaning, values)


def _cached(name: str, meaning: str, field: str, unit: float) -> Family:
    """A field of ``status.cache`` in `unit`; a list counts by its length."""

    def value(deployment: DeploymentRecord) -> float | None:
        found = (deployment.status.get("cache") or {}).get(field)
        return None if found is None else unit * (len(found) if isinstance(found, list) else found)

    return _one(name, meaning, value)


FAMILIES = (
    Family(
        "umbra_deployment_condition",
        "Always 1: the status and reason that a condition of this K3Deployment has now.",
        _conditions,
        (*_OBJECT, "type", "status", "reason"),
    ),
    _one(
        "umbra_deployment_replicas",
        "Replicas that the K3Deployment asks for.",
        lambda deployment: deployment.spec.replicas if deployment.spec else None,
    ),
    _one(
        "umbra_deployment_ready_replicas",
        "Replicas of the K3Deployment that serve.",
        lambda deployment: deployment.status.get("readyReplicas", 0),
    ),
    _one(
        "umbra_deployment_unobserved_generations",
        "Edits of the K3Deployment that its status does not speak of yet; 0 is good.",
        lambda deployment: deployment.generation - deployment.status.get("observedGeneration", 0),
    ),
    _one(
        "umbra_deployment_overrides",
        "Settings that engines follow otherwise than the spec says (autonomy Act); status.overrides has them.",
        lambda deployment: len(deployment.status.get("overrides") or ()),
    ),
    _cached(
        "umbra_deployment_hit_ratio",
        "Tokens of prompts that device or store had, of all replicas in 15 minutes; rounded, as in status.cache.",
        "hitPercent",
        0.01,
    ),
    _cached(
        "umbra_deployment_hot_miss_ratio",
        "Pages asked of the stores that were there before and are evicted, likewise.",
        "hotMissPercent",
        0.01,
    ),
    _cached(
        "umbra_deployment_store_retention_seconds",
        "In how long the stores are written over as a whole, at the pace of 15 minutes.",
        "retentionSeconds",
        1,
    ),
    _cached(
        "umbra_deployment_advice",
        "Changes of the spec that would help the cache; status.cache.advice names them.",
        "advice",
        1,
    ),
)


class Fleet:
    """The exposition of the deployments that ``known`` gives; the thread of the HTTP port asks for it."""

    def __init__(self, known: Callable[[], Iterable[DeploymentRecord]] = tuple) -> None:
        self.known = known
        self._made: dict[Key, tuple[DeploymentRecord, list[str]]] = {}

    def text(self) -> str:
        """The families and their series, in a form that both formats of Prometheus read."""
        made = {}
        # One copy at once: the event loop adds and removes deployments meanwhile.
        for deployment in [*self.known()]:
            last = self._made.get(deployment.key)
            made[deployment.key] = last if last and last[0] is deployment else (deployment, _series(deployment))
        self._made = made
        lines = []
        for number, family in enumerate(FAMILIES):
            lines.append(f"# HELP {family.name} {family.meaning}\n# TYPE {family.name} gauge\n")
            lines += [series[number] for _, series in made.values()]
        return "".join(lines)


def _series(deployment: DeploymentRecord) -> list[str]:
    """The lines of each family. Names, types and reasons are words of Kubernetes, so JSON's escapes do."""
    found = []
    for family in FAMILIES:
        lines = []
        for labels, value in family.values(deployment):
            pairs = zip(family.labels, (*deployment.key, *labels), strict=True)
            lines.append(
                f"{family.name}{{{','.join(f'{name}={json.dumps(word)}' for name, word in pairs)}}} {float(value)}\n"
            )
        found.append("".join(lines))
    return found
