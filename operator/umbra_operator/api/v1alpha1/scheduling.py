"""Where pods run, what they ask of a node, and what they carry for others to find them by."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from umbra_operator.api.base import ATOMIC, Bytes, EditClass, Labels, Model, edit


class DeviceMode(StrEnum):
    """How a pod asks for its GPUs."""

    DEVICE_PLUGIN = "DevicePlugin"
    """As an extended resource of the engine's container; the store reaches the GPUs as a privileged container."""
    DRA = "DRA"
    """By one ResourceClaim that preflight, store and engine share; nothing is privileged."""


class Devices(Model):
    """The GPUs of a pod."""

    mode: DeviceMode | None = None
    """How the pod asks for them. Unset: DevicePlugin if the profile names a resource for it, else DRA."""


class ContainerResources(Model):
    """Requests and limits of one container, equal so that the pod is Guaranteed."""

    cpu: Annotated[str | None, Field(max_length=16, pattern=r"^[0-9]+(\.[0-9]{1,3}|m)?$")] = None
    """CPU, such as "16" or "500m". "0" sets no limit: the pod is then Burstable. Unset: 4 for each rank of the engine,
    8 for the store."""
    memory: Bytes | None = None
    """Memory. Unset: 64Gi for each rank of the engine and its /dev/shm; 16Gi for the store.
    The store's size comes on top of it: Umbra adds it to the store's container itself."""


class Resources(Model):
    """Requests and limits per container. An unset field leaves the profile's value."""

    engine: ContainerResources | None = None
    """The engine container."""
    store: ContainerResources | None = None
    """The store container, on top of cache.dram.size."""


class Toleration(Model):
    """A taint that the pod tolerates."""

    key: Annotated[str | None, Field(max_length=317)] = None
    """Key of the taint; unset with operator Exists matches every taint."""
    operator: Annotated[str, Field(pattern=r"^(Exists|Equal)$")] = "Equal"
    """Exists or Equal."""
    value: Annotated[str | None, Field(max_length=63)] = None
    """Value of the taint, for Equal."""
    effect: Annotated[str | None, Field(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)$")] = None
    """Effect of the taint; unset matches all."""
    toleration_seconds: Annotated[int | None, Field(ge=0, le=86400)] = None
    """How long a NoExecute taint is tolerated, in seconds; unset: for ever."""


class Placement(Model):
    """Where pods run."""

    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=16, json_schema_extra=edit(EditClass.POD, **ATOMIC))] = []
    """Taints that the pods tolerate."""
    affinity: Annotated[
        dict[str, Any],
        Field(max_length=3, json_schema_extra=edit(EditClass.POD, **{"x-kubernetes-preserve-unknown-fields": True})),
    ] = {}
    """Affinity as a pod has it: nodeAffinity, podAffinity, podAntiAffinity."""
    priority_class_name: Annotated[str | None, Field(max_length=253)] = None
    """PriorityClass of the pods."""
    scheduler_name: Annotated[str | None, Field(max_length=253)] = None
    """Scheduler of the pods; unset: the cluster's."""
    runtime_class_name: Annotated[str | None, Field(max_length=253)] = None
    """RuntimeClass of the pods; unset: the node's."""


Annotations = Annotated[dict[str, Annotated[str, Field(max_length=4096)]], Field(max_length=32)]


class PodMetadata(Model):
    """Labels and annotations that pods carry besides Umbra's own."""

    labels: Labels = {}
    """Labels; umbra.dev/ and app.kubernetes.io/ keys are Umbra's and refused."""
    annotations: Annotations = {}
    """Annotations; umbra.dev/ keys are Umbra's and refused."""
