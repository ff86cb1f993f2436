"""``K3Deployment``: one engine shape times ``replicas``, each replica a pod with its own store."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from umbra_operator.api.base import ATOMIC, ENGINE, LIVE, OPERATOR, POD, Cel, EditClass, Model, checked, edit
from umbra_operator.api.v1alpha1.auth import Auth
from umbra_operator.api.v1alpha1.cache import Cache
from umbra_operator.api.v1alpha1.engine import Engine, ModelSpec, Parallelism, Speculation, Toolchain
from umbra_operator.api.v1alpha1.network import Network
from umbra_operator.api.v1alpha1.rollout import Health, Recovery, Restart, Rollout
from umbra_operator.api.v1alpha1.scheduling import Devices, Placement, PodMetadata, Resources

NAME_LIMIT = 40
"""Longest name of a K3Deployment: ``-<ordinal>-<attempt>`` and other suffixes must fit into 63 characters."""


class Role(StrEnum):
    """What the engines of a deployment do."""

    UNIFIED = "Unified"


class Autonomy(StrEnum):
    """What the operator does about an engine or a store that is unwell."""

    ADVISE = "Advise"
    """It says so, and what would help."""
    ACT = "Act"
    """It also changes settings that running engines follow, one at a time and for a day at most."""


class ProfileRef(Model):
    """Names the K3Profile that this deployment uses."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of a K3Profile. A missing profile sets ConfigValid=False and stops no engine."""


def _unless_broken_before(broken: str, message: str) -> Cel:
    """A rule of ``spec`` that an older object may go on breaking; ``broken`` has ``{0}`` for the spec."""
    return Cel(
        f"!({broken.format('self')}) || (oldSelf.hasValue() && {broken.format('oldSelf.value()')})",
        message,
        optional_old_self=True,
    )


_DECODE_CONTEXT = "has({0}.parallelism) && has({0}.parallelism.decodeContext)"


class K3DeploymentSpec(Model):
    """What a K3Deployment asks for."""

    rules: ClassVar[tuple[Cel, ...]] = (
        _unless_broken_before(
            "has({0}.speculation) && {0}.speculation.type == 'DSPARK' && "
            + _DECODE_CONTEXT
            + " && {0}.parallelism.decodeContext > 1",
            "speculation DSPARK cannot be combined with parallelism.decodeContext greater than 1; "
            "set decodeContext to 1 or speculation.type to None",
        ),
        _unless_broken_before(
            "has({0}.engine) && has({0}.engine.chunkedPrefillSize) && "
            + _DECODE_CONTEXT
            + " && {0}.engine.chunkedPrefillSize < 64 * {0}.parallelism.decodeContext",
            "engine.chunkedPrefillSize must be at least 64 tokens times parallelism.decodeContext, a page of the tree",
        ),
    )
    profile_ref: Annotated[ProfileRef, Field(json_schema_extra=OPERATOR)]
    """The profile that images, default flags and limits come from."""
    role: Annotated[
        Role,
        Field(
            json_schema_extra=edit(
                EditClass.OPERATOR,
                **checked(Cel("self == oldSelf", "role is immutable; create another object")),
            )
        ),
    ] = Role.UNIFIED
    """What the engines do. Immutable."""
    replicas: Annotated[int, Field(ge=0, le=64, json_schema_extra=OPERATOR)] = 1
    """Number of engines, each a pod with its own store. Leave it out of a manifest that is applied again while an
    autoscaler sets it."""
    model: ModelSpec
    """The model to serve."""
    parallelism: Annotated[Parallelism | None, Field(json_schema_extra=POD)] = None
    """How one engine is spread over GPUs."""
    speculation: Annotated[Speculation | None, Field(json_schema_extra=ENGINE)] = None
    """Speculative decoding."""
    cache: Cache
    """The cache tier."""
    engine: Annotated[Engine | None, Field(json_schema_extra=ENGINE)] = None
    """The engine's own settings."""
    toolchain: Annotated[Toolchain, Field(json_schema_extra=ENGINE)] = Toolchain()
    """Which of SGLang's implementations run."""
    devices: Annotated[Devices | None, Field(json_schema_extra=POD)] = None
    """The GPUs of a pod."""
    resources: Annotated[Resources | None, Field(json_schema_extra=POD)] = None
    """Requests and limits per container."""
    placement: Annotated[Placement | None, Field(json_schema_extra=POD)] = None
    """Where pods run."""
    pod_metadata: Annotated[PodMetadata | None, Field(json_schema_extra=POD)] = None
    """Labels and annotations of the pods."""
    image_pull_secrets: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253)]],
        Field(max_length=8, json_schema_extra=edit(EditClass.POD, **ATOMIC)),
    ] = []
    """Names of Secrets in the same namespace that the node pulls images with."""
    service_account_name: Annotated[str | None, Field(min_length=1, max_length=253, json_schema_extra=POD)] = None
    """ServiceAccount of the pods, which get no token of it. Unset: one of the deployment's name, made by Umbra."""
    auth: Annotated[Auth | None, Field(json_schema_extra=POD)] = None
    """Who is served."""
    network: Annotated[Network | None, Field(json_schema_extra=OPERATOR)] = None
    """Who reaches the pods."""
    rollout: Annotated[Rollout, Field(json_schema_extra=OPERATOR)] = Rollout()
    """How changes reach the pods."""
    restart: Annotated[Restart | None, Field(json_schema_extra=ENGINE)] = None
    """A restart on request."""
    recovery: Annotated[Recovery | None, Field(json_schema_extra=LIVE)] = None
    """A bound on restarts. Unset: there is none."""
    health: Health | None = None
    """Bounds on starting and stopping."""
    autonomy: Annotated[Autonomy, Field(json_schema_extra=OPERATOR)] = Autonomy.ADVISE
    """Advise says in conditions and status.cache what would help. Act also does the part of it that no engine restarts
    for, and status.overrides says what and until when."""


def object_rules() -> tuple[dict[str, Any], ...]:
    """Rules on the whole object, which sees its own name."""
    return (
        Cel(
            f"size(self.metadata.name) <= {NAME_LIMIT}",
            f"metadata.name must have at most {NAME_LIMIT} characters: names of pods and Services are made from it",
        ).to_schema(),
        Cel(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must begin with a letter and hold only a-z, 0-9 and -: the Service has the same name",
        ).to_schema(),
    )
