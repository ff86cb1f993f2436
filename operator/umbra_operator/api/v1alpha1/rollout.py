"""How changes reach the pods, and how often and how long starting and stopping may take."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from umbra_operator.api.base import LIVE, POD, Model


class RolloutStrategy(StrEnum):
    """How a change reaches pods that exist."""

    IN_PLACE = "InPlace"
    """Whatever a running pod can take is changed in it; only what needs another pod replaces it."""
    RECREATE = "Recreate"
    """Every change replaces the pod."""
    ON_DELETE = "OnDelete"
    """A change waits until somebody deletes the pod."""


class CacheLoss(StrEnum):
    """What a change needs that empties a store."""

    ALLOW = "Allow"
    REQUIRE_ACKNOWLEDGEMENT = "RequireAcknowledgement"


class Rollout(Model):
    """How changes reach the pods."""

    strategy: RolloutStrategy = RolloutStrategy.IN_PLACE
    """InPlace changes in the pod what it can take. Recreate replaces the pod. OnDelete waits until a pod is deleted."""
    max_unavailable: Annotated[int, Field(ge=1, le=64)] = 1
    """Replicas that a rollout or a node drain may have down at once."""
    paused: bool = False
    """Stops the rollout where it is. Scaling still works, and new pods get the new revision."""
    cache_loss: CacheLoss = CacheLoss.ALLOW
    """RequireAcknowledgement holds a change that empties warm stores until acknowledgedChange names it."""
    acknowledged_change: Annotated[str | None, Field(pattern=r"^[0-9a-f]{12}$", max_length=12)] = None
    """The change that may empty stores: the id in the message of the Ready condition that holds it."""


class Restart(Model):
    """A restart on request."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    """Any word; another one restarts every engine in its pod, one after the other, and the stores keep their pages."""


class Recovery(Model):
    """How often an engine that ends by itself is started again in its pod, after waits of 1, 2, 4 ... 60 s, and how
    often a replica whose pod has ended gets another one, after 0, 10, 20 ... 300 s."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)]
    """Restarts of an engine, and pods in place of others, within windowSeconds, each counted for itself. The end after
    the last one leaves the engine or the pod as it is until restart.id or the spec changes, and Degraded says so."""
    window_seconds: Annotated[int, Field(ge=60, le=86400)] = 3600
    """The window."""


class Health(Model):
    """Bounds on starting and stopping."""

    startup_timeout_seconds: Annotated[int | None, Field(ge=60, le=14400, json_schema_extra=POD)] = None
    """How long the store may take to be ready, in seconds. Unset: computed from its size."""
    drain_timeout_seconds: Annotated[int | None, Field(ge=0, le=3000, json_schema_extra=LIVE)] = None
    """How long running requests may finish before an engine stops, in seconds. Unset: 600. A drain in a pod that stays
    goes by a new value at once; that of a pod which is being deleted keeps the old one."""
