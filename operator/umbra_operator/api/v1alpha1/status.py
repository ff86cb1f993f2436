"""Status of a ``K3Deployment``. There is no phase: conditions say what is true."""

from typing import Annotated

from pydantic import Field

from umbra_operator.api.base import Model, list_map


class Condition(Model):
    """One observation, with the standard six fields."""

    type: Annotated[str, Field(max_length=316)]
    """Name of the condition."""
    status: Annotated[str, Field(pattern=r"^(True|False|Unknown)$")]
    """True, False or Unknown."""
    reason: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
    """One word for programs; docs/reference/conditions.md has a line for each."""
    message: Annotated[str, Field(max_length=4096)]
    """One sentence for people: what is the matter and what to do."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that this is about."""


class PodStatus(Model):
    """What is known of one replica's pod."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the pod."""
    ordinal: Annotated[int, Field(ge=0)]
    """Number of the replica, from 0."""
    node: Annotated[str | None, Field(max_length=253)] = None
    """Node that it runs on."""
    ready: bool = False
    """Whether it serves."""
    revision: Annotated[str | None, Field(max_length=64)] = None
    """Revision that its engine runs, as the agent says."""
    epoch: Annotated[str | None, Field(max_length=64)] = None
    """Life of its store: another value means that the cache began empty."""


class K3DeploymentStatus(Model):
    """What is observed."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """Generation of the spec that this status is about."""
    replicas: Annotated[int, Field(ge=0)] = 0
    """Pods that exist."""
    ready_replicas: Annotated[int, Field(ge=0)] = 0
    """Pods that serve."""
    selector: Annotated[str | None, Field(max_length=512)] = None
    """Label selector of the pods, for the scale subresource."""
    revision: Annotated[str | None, Field(max_length=64)] = None
    """Revision that the spec and its profile ask for."""
    conditions: Annotated[list[Condition], Field(max_length=32, json_schema_extra=list_map("type"))] = []
    """Observations."""
    pods: Annotated[list[PodStatus], Field(max_length=64, json_schema_extra=list_map("name"))] = []
    """One entry for each pod."""
