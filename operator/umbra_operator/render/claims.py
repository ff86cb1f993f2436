"""The ResourceClaimTemplate: the GPUs of a pod where the cluster allocates them dynamically (DRA)."""

from typing import Any

from umbra_operator.api.v1alpha1.scheduling import DeviceMode
from umbra_operator.render import names
from umbra_operator.render.resolve import Resolved


def claim_template(resolved: Resolved, deployment: str, namespace: str, uid: str) -> dict[str, Any] | None:
    """The template from which each pod gets a claim of its own; None where a device plugin hands out the GPUs."""
    if resolved.device_mode is not DeviceMode.DRA or resolved.profile.devices is None:
        return None
    wanted = {
        "deviceClassName": resolved.profile.devices.device_class_name,
        "allocationMode": "ExactCount",
        "count": resolved.tensor,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": names.child_metadata(deployment, namespace, uid),
        "spec": {
            "metadata": {"labels": names.common_labels(deployment)},
            "spec": {"devices": {"requests": [{"name": names.GPUS, "exactly": wanted}]}},
        },
    }
