"""Every object of a deployment besides its pods: each has the deployment's name, and one exists of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from umbra_operator.render import names
from umbra_operator.render.budgets import budget
from umbra_operator.render.claims import claim_template
from umbra_operator.render.networkpolicies import network_policy
from umbra_operator.render.podmonitors import pod_monitor
from umbra_operator.render.resolve import Resolved
from umbra_operator.render.revision import content
from umbra_operator.render.serviceaccounts import service_account
from umbra_operator.render.services import service

IMMUTABLE = frozenset({"ResourceClaimTemplate"})
"""Kinds that are replaced by another object when their content changes."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What rendering depends on besides spec and profile: facts about this cluster, found with each full list."""

    operator_namespace: str | None = None
    """Where the operator runs; None outside the cluster."""
    pod_monitors: bool = False
    """Whether the cluster has the kind PodMonitor."""
    lacking: tuple[str, ...] = ()
    """Fields of this operator's kinds that the cluster's CRDs do not have."""


def children(resolved: Resolved, deployment: str, namespace: str, uid: str, facts: Facts) -> dict[str, dict[str, Any]]:
    """Manifests by kind, in the order in which they are made: pods need the first two."""
    found = (
        service_account(resolved, deployment, namespace, uid),
        claim_template(resolved, deployment, namespace, uid),
        service(deployment, namespace, uid),
        network_policy(resolved, deployment, namespace, uid, facts.operator_namespace),
        budget(resolved, deployment, namespace, uid),
        pod_monitor(deployment, namespace, uid) if facts.pod_monitors else None,
    )
    return {manifest["kind"]: _marked(manifest) for manifest in found if manifest}


def _marked(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with a hash of itself, so that an unchanged object is not written again."""
    annotations = {names.ANNOTATION_CONTENT: content(manifest)}
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": annotations}}
