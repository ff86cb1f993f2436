"""The PodDisruptionBudget: how many replicas a node drain must leave serving."""

from typing import Any

from umbra_operator.render import names
from umbra_operator.render.resolve import Resolved


def min_available(resolved: Resolved) -> int:
    """Replicas that an eviction must leave; 0 means that no budget can help.

    An integer, because with another form the disruption controller needs the scale of the pods' owner.
    At one replica a budget would only block the drain of its node for ever, so there is none.
    """
    return max(0, resolved.spec.replicas - resolved.spec.rollout.max_unavailable)


def budget(resolved: Resolved, deployment: str, namespace: str, uid: str) -> dict[str, Any] | None:
    """The budget of a deployment, or None where it could only block."""
    wanted = min_available(resolved)
    if not wanted:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.child_metadata(deployment, namespace, uid),
        "spec": {
            "minAvailable": wanted,
            "selector": {"matchLabels": names.selector(deployment)},
            # A pod that does not serve protects nothing; without this it would hold its node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
