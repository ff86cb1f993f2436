"""The ServiceAccount of the pods: a name that policies of the cluster can be bound to, without any right or token."""

from typing import Any

from umbra_operator.render import names
from umbra_operator.render.resolve import Resolved


def service_account(resolved: Resolved, deployment: str, namespace: str, uid: str) -> dict[str, Any] | None:
    """The account of a deployment; None when the spec names another one, which Umbra neither makes nor changes."""
    if resolved.spec.service_account_name:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": names.child_metadata(deployment, namespace, uid),
        "automountServiceAccountToken": False,
    }
