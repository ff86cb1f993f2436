"""The Service that clients use: one named port, only pods that serve."""

from typing import Any

from umbra_operator.render import names
from umbra_operator.render.revision import content


def service(deployment: str, namespace: str, uid: str) -> dict[str, Any]:
    """The Service of a deployment. Contract: it has the deployment's name; port ``http`` speaks the engine's API."""
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": deployment,
            "namespace": namespace,
            "labels": names.common_labels(deployment),
            "ownerReferences": [names.owner(deployment, uid)],
        },
        "spec": {
            "selector": names.selector(deployment),
            "ports": [{"name": "http", "port": names.ENGINE_PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }
    manifest["metadata"]["annotations"] = {names.ANNOTATION_CONTENT: content(manifest)}
    return manifest
