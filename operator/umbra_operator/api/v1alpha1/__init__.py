"""Kinds of ``umbra.dev/v1alpha1`` and how each appears in the API."""

from dataclasses import dataclass
from typing import Any

from umbra_operator.api.base import Model
from umbra_operator.api.v1alpha1 import deployment, profile
from umbra_operator.api.v1alpha1.deployment import K3DeploymentSpec
from umbra_operator.api.v1alpha1.profile import K3ProfileSpec
from umbra_operator.api.v1alpha1.status import K3DeploymentStatus

__all__ = ["KINDS", "K3DeploymentSpec", "K3DeploymentStatus", "K3ProfileSpec", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A custom resource: names, scope, models, columns of ``kubectl get`` and subresources."""

    kind: str
    plural: str
    short: str
    namespaced: bool
    description: str
    spec: type[Model]
    status: type[Model] | None
    rules: tuple[dict[str, Any], ...]
    columns: tuple[tuple[str, str, str], ...]
    """(heading, type, JSON path)."""
    scale: bool = False


KINDS: tuple[Kind, ...] = (
    Kind(
        kind="K3Deployment",
        plural="k3deployments",
        short="k3",
        namespaced=True,
        description="K3Deployment runs Kimi K3 on SGLang with its UMBP cache tier: one engine shape, several replicas.",
        spec=K3DeploymentSpec,
        status=K3DeploymentStatus,
        rules=deployment.object_rules(),
        columns=(
            ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason'),
            ("Replicas", "integer", ".spec.replicas"),
            ("Serving", "integer", ".status.readyReplicas"),
            ("Profile", "string", ".spec.profileRef.name"),
            ("Store", "string", ".spec.cache.dram.size"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
        scale=True,
    ),
    Kind(
        kind="K3Profile",
        plural="k3profiles",
        short="k3p",
        namespaced=False,
        description="K3Profile is a tested combination of images, flags and limits; the administrator writes it.",
        spec=K3ProfileSpec,
        status=None,
        rules=profile.object_rules(),
        columns=(
            ("Engine", "string", ".spec.engine.image"),
            ("Kit", "string", ".spec.kit.version"),
            ("Tensor", "integer", ".spec.tensor"),
            ("Age", "date", ".metadata.creationTimestamp"),
        ),
    ),
)
