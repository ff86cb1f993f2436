"""The PodMonitor: what the Prometheus Operator scrapes, where the cluster has that kind."""

from typing import Any

from umbra_operator.render import names


def pod_monitor(deployment: str, namespace: str, uid: str) -> dict[str, Any]:
    """Scrapes the engines' and both agents' metrics of a deployment."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": names.child_metadata(deployment, namespace, uid),
        "spec": {
            "selector": {"matchLabels": names.selector(deployment)},
            "podTargetLabels": [names.LABEL_DEPLOYMENT, names.LABEL_ORDINAL],
            "podMetricsEndpoints": [
                {"port": "http", "path": "/metrics"},
                {"port": "agent", "path": "/metrics"},
                {"port": "store-agent", "path": "/metrics"},
            ],
        },
    }
