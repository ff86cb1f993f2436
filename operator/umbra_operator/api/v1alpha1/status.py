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


class Advice(Model):
    """One change of the spec that would help the cache."""

    name: Annotated[str, Field(max_length=63)]
    """Touch, AdaptCheckpoints, SharePages or GrowStore, the cheapest first."""
    message: Annotated[str, Field(max_length=1024)]
    """What would help, and what it costs."""
    patch: Annotated[str, Field(max_length=1024)]
    """The change itself, for `kubectl patch --type merge -p`."""


class CacheStatus(Model):
    """How well the caches of all replicas do. Rounded, and told again every ten minutes at most."""

    hit_percent: Annotated[int | None, Field(ge=0, le=100)] = None
    """Tokens of prompts that the device or the store had, in percent of 15 minutes, to the next 5."""
    hot_miss_percent: Annotated[int | None, Field(ge=0, le=100)] = None
    """Pages asked of the stores that were there before and are evicted, likewise."""
    retention_seconds: Annotated[int | None, Field(ge=0)] = None
    """In how long the stores are written over as a whole, at the pace of 15 minutes."""
    advice: Annotated[list[Advice], Field(max_length=8, json_schema_extra=list_map("name"))] = []
    """What would help."""


class OverrideStatus(Model):
    """A field of the spec that engines follow in another value for a while, since autonomy is Act."""

    setting: Annotated[str, Field(max_length=253)]
    """Path of the field below spec."""
    value: Annotated[str, Field(max_length=63)]
    """What engines follow."""
    message: Annotated[str, Field(max_length=1024)]
    """Why, and what the spec says."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When it began."""
    expires_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When engines follow the spec again."""


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
    cache: CacheStatus | None = None
    """How well the caches do; unset until an engine was measured."""
    overrides: Annotated[list[OverrideStatus], Field(max_length=8, json_schema_extra=list_map("setting"))] = []
    """What Act changed; unset fields are as the spec says."""
    pods: Annotated[list[PodStatus], Field(max_length=64, json_schema_extra=list_map("name"))] = []
    """One entry for each pod."""
