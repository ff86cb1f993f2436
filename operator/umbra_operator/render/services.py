"""The Service that clients use: one named port, only pods that serve."""

from typing import Any

from umbra_operator.render import names


def service(deployment: str, namespace: str, uid: str) -> dict[str, Any]:
    """The Service of a deployment. Contract: it has the deployment's name; port ``http`` speaks the engine's API."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": names.child_metadata(deployment, namespace, uid),
        "spec": {
            "selector": names.selector(deployment),
            "ports": [{"name": "http", "port": names.ENGINE_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
