"""What the operator remembers of each object: small, frozen, made from the event at once.

No cache holds raw bodies. With 10,000 pods that is the difference between tens of MiB and 1 GiB.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.render import names, pulls
from umbra_operator.render.children import Facts
from umbra_operator.render.revision import content

M = TypeVar("M", K3DeploymentSpec, K3ProfileSpec)

IMAGE_PROBLEMS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
)
"""The kubelet's words for an image that it cannot get."""

Key = tuple[str, str]
"""(namespace, name) of a K3Deployment."""


@dataclass(frozen=True, slots=True)
class DeploymentRecord:
    """A K3Deployment. ``spec`` is None when this operator cannot read it; ``problem`` then says why."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool
    spec: K3DeploymentSpec | None
    problem: str | None
    status: Mapping[str, Any]
    resource_version: str = field(compare=False)
    """Version that was seen, for writes that must meet no other one."""

    @property
    def key(self) -> Key:
        """(namespace, name)."""
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """A K3Profile, or why it cannot be read."""

    name: str
    uid: str
    spec: K3ProfileSpec | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """State of one container, init containers included."""

    name: str
    ready: bool
    started: bool
    restarts: int
    waiting_reason: str | None = None
    waiting_message: str | None = None
    exit_code: int | None = None
    """Exit code when it is terminated now."""
    exit_reason: str | None = None
    """Kubernetes' word for the current or else the last end, such as OOMKilled."""
    exit_message: str | None = None
    """Termination message of the current or else the last end."""


@dataclass(frozen=True, slots=True)
class End:
    """How a pod ended by no wish of anybody."""

    at: int
    """Unix seconds, by the clock of whoever ended it."""
    cause: str


@dataclass(frozen=True, slots=True)
class PullRecord:
    """An image that the pod's node was asked to get before a container changes to it."""

    name: str
    """Of the ephemeral container that asks."""
    present: bool
    problem: str | None
    """The kubelet's words, when it cannot get the image."""


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod of a K3Deployment."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str | None
    deployment: str
    ordinal: int
    attempt: int
    labelled: bool
    """Whether its labels say the same ordinal and attempt as its name."""
    pod_revision: str | None
    """Hash of what only a new pod can change."""
    launch_revision: str | None
    """Revision in the launch document that the pod carries."""
    live_revision: str | None
    """Which live settings that document has; None also when the document itself was taken away."""
    store_size: str | None
    """Size of its store as the spec said it when the pod was made."""
    node: str | None
    address: str | None
    phase: str
    ready: bool
    deleting: bool
    unschedulable: str | None
    """The scheduler's sentence, when it found no node."""
    containers: tuple[ContainerRecord, ...]
    kit_image: str | None
    """Image of its kit container, as its spec says."""
    pulls: tuple[PullRecord, ...]
    end: End | None = None
    """Of a pod that has failed, or that is lost with its node."""
    earlier_ends: tuple[tuple[int, int], ...] = ()
    """Which attempts of this replica before it ended when, in Unix seconds."""

    @property
    def over(self) -> bool:
        """Whether it runs no container any more and never will."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def key(self) -> Key:
        """(namespace, name) of the deployment."""
        return (self.namespace, self.deployment)

    def container(self, name: str) -> ContainerRecord | None:
        """The container of that name, if the kubelet has reported it."""
        return next((container for container in self.containers if container.name == name), None)


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """An object other than a pod that has a name which a K3Deployment needs, whoever owns it."""

    namespace: str
    name: str
    kind: str
    uid: str
    owner_uid: str | None
    content: str | None
    """Hash of what the operator applied last; None where somebody has changed it since."""
    live: str
    """Hash of what it holds now, but for status and for what others may add to its metadata."""
    touched: bool
    """Whether somebody else has changed more than metadata or status of it since the operator wrote it last."""

    @property
    def key(self) -> Key:
        """(namespace, name) of the deployment: children have its name."""
        return (self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a decision about one K3Deployment may rest on."""

    deployment: DeploymentRecord
    profile: ProfileRecord | None
    pods: tuple[PodRecord, ...]
    """Pods with the deployment's label, whoever owns them."""
    children: tuple[ChildRecord, ...]
    """Objects of other kinds that hold a name which the deployment needs, whoever owns them."""
    facts: Facts


def deployment_record(body: Mapping[str, Any]) -> DeploymentRecord:
    """Record of a K3Deployment as the API server sent it."""
    meta = body["metadata"]
    spec, problem = _parse(K3DeploymentSpec, body.get("spec") or {})
    return DeploymentRecord(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        deleting="deletionTimestamp" in meta,
        spec=spec,
        problem=problem,
        status=body.get("status") or {},
        resource_version=meta["resourceVersion"],
    )


def profile_record(body: Mapping[str, Any]) -> ProfileRecord:
    """Record of a K3Profile as the API server sent it."""
    spec, problem = _parse(K3ProfileSpec, body.get("spec") or {})
    return ProfileRecord(name=body["metadata"]["name"], uid=body["metadata"]["uid"], spec=spec, problem=problem)


def pod_record(body: Mapping[str, Any]) -> PodRecord | None:
    """Record of a pod, or None when neither its name nor its labels tell which replica of a deployment it is.

    The name counts where the two differ: it never changes, and labels can be edited by hand.
    """
    meta, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    deployment = labels.get(names.LABEL_DEPLOYMENT, "")
    said = _numbers(labels)
    numbers = names.pod_numbers(deployment, meta["name"]) or said
    if not deployment or numbers is None:
        return None
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled", {})
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return PodRecord(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        owner_uid=controller_uid(meta),
        deployment=deployment,
        ordinal=numbers[0],
        attempt=numbers[1],
        labelled=numbers == said,
        pod_revision=annotations.get(names.ANNOTATION_POD_REVISION),
        launch_revision=annotations.get(names.ANNOTATION_REVISION) or _launch_revision(annotations),
        live_revision=annotations.get(names.ANNOTATION_LIVE) if names.ANNOTATION_LAUNCH in annotations else None,
        store_size=annotations.get(names.ANNOTATION_STORE_SIZE),
        node=spec.get("nodeName"),
        address=status.get("podIP"),
        phase=status.get("phase", "Pending"),
        ready=conditions.get("Ready", {}).get("status") == "True",
        deleting="deletionTimestamp" in meta,
        unschedulable=scheduled.get("message") if scheduled.get("status") == "False" else None,
        containers=tuple(_container(entry) for entry in statuses),
        kit_image=next((each["image"] for each in spec.get("initContainers") or () if each["name"] == names.KIT), None),
        pulls=_pulls(spec, status),
        end=_end(meta, status, conditions.get("DisruptionTarget", {}), statuses),
        earlier_ends=_earlier_ends(annotations.get(names.ANNOTATION_EARLIER_ENDS, "")),
    )


def _numbers(labels: Mapping[str, str]) -> tuple[int, int] | None:
    """Ordinal and attempt in a pod's labels; None when they are not there, or no numbers."""
    try:
        return int(labels[names.LABEL_ORDINAL]), int(labels[names.LABEL_ATTEMPT])
    except (KeyError, ValueError):
        return None


def _launch_revision(annotations: Mapping[str, str]) -> str | None:
    """The revision in the launch document itself, for a pod whose annotation with it was taken away."""
    try:
        return str(json.loads(annotations[names.ANNOTATION_LAUNCH])["revision"])
    except (KeyError, TypeError, ValueError):
        return None


def child_record(kind: str, body: Mapping[str, Any]) -> ChildRecord:
    """Record of a Service, ServiceAccount and so on as the API server sent it; items of a list carry no kind."""
    meta = body["metadata"]
    return ChildRecord(
        namespace=meta["namespace"],
        name=meta["name"],
        kind=kind,
        uid=meta["uid"],
        owner_uid=controller_uid(meta),
        content=(meta.get("annotations") or {}).get(names.ANNOTATION_CONTENT),
        live=content({key: value for key, value in body.items() if key not in _NOT_CONTENT}),
        touched=_touched(meta.get("managedFields") or ()),
    )


def _touched(managers: Sequence[Mapping[str, Any]]) -> bool:
    """Times of field managers are whole seconds: in the same second it may have been after the operator."""
    own = max((entry.get("time", "") for entry in managers if entry["manager"] == names.MANAGER), default="")
    return any(
        entry["manager"] != names.MANAGER
        and entry.get("time", "") >= own
        and set(entry.get("fieldsV1", ())) - {"f:metadata", "f:status"}
        for entry in managers
    )


_NODE_LOST = "DeletionByTaintManager"
"""Why a pod whose node answers no more is deleted, in Kubernetes' word."""


def _end(
    meta: Mapping[str, Any],
    status: Mapping[str, Any],
    disrupted: Mapping[str, Any],
    containers: Sequence[Mapping[str, Any]],
) -> End | None:
    """How a pod ended. One that somebody deleted, drained or preempted has not: its successor is wanted at once."""
    lost = disrupted.get("status") == "True" and disrupted.get("reason") == _NODE_LOST
    if status.get("phase") not in ("Failed", "Succeeded") and not lost:
        return None
    ended = [each["state"]["terminated"] for each in containers if (each.get("state") or {}).get("terminated")]
    last = max((each.get("finishedAt") or "" for each in ended), default="")
    # A pod that the node refused has neither of the first two.
    at = disrupted.get("lastTransitionTime") or last or status.get("startTime") or meta.get("creationTimestamp")
    said = ": ".join(filter(None, (status.get("reason"), status.get("message")))) or disrupted.get("message")
    failed = next((f"{each.get('reason')}, exit code {each['exitCode']}" for each in ended if each["exitCode"]), None)
    return End(int(datetime.fromisoformat(at).timestamp()) if at else 0, (said or failed or status["phase"])[:256])


def _earlier_ends(text: str) -> tuple[tuple[int, int], ...]:
    """The ends in the annotation; none where somebody made it unreadable."""
    return tuple((int(attempt), int(at)) for attempt, at in re.findall(r"\b([0-9]{1,9})@([0-9]{1,12})\b", text))


_NOT_CONTENT = ("apiVersion", "kind", "metadata", "status")


def controller_uid(meta: Mapping[str, Any]) -> str | None:
    """Uid of the owner that controls the object."""
    return next((owner["uid"] for owner in meta.get("ownerReferences") or () if owner.get("controller")), None)


def _container(entry: Mapping[str, Any]) -> ContainerRecord:
    state, last = entry.get("state") or {}, entry.get("lastState") or {}
    waiting, ended, before = state.get("waiting") or {}, state.get("terminated") or {}, last.get("terminated") or {}
    return ContainerRecord(
        name=entry["name"],
        ready=bool(entry.get("ready")),
        started=bool(entry.get("started")),
        restarts=entry.get("restartCount", 0),
        waiting_reason=waiting.get("reason"),
        waiting_message=waiting.get("message"),
        exit_code=ended.get("exitCode"),
        exit_reason=ended.get("reason") or before.get("reason"),
        exit_message=ended.get("message") or before.get("message"),
    )


def _pulls(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[PullRecord, ...]:
    statuses = {entry["name"]: entry for entry in status.get("ephemeralContainerStatuses") or ()}
    found = []
    for asked in spec.get("ephemeralContainers") or ():
        if asked["name"].startswith(pulls.PREFIX):
            entry = statuses.get(asked["name"], {})
            waiting = (entry.get("state") or {}).get("waiting") or {}
            problem = (
                waiting.get("message") or waiting.get("reason") if waiting.get("reason") in IMAGE_PROBLEMS else None
            )
            found.append(PullRecord(asked["name"], bool(entry.get("imageID")), problem))
    return tuple(found)


def _parse(model: type[M], raw: Mapping[str, Any]) -> tuple[M | None, str | None]:
    try:
        return model.model_validate(raw), None
    except ValidationError as error:
        first: Mapping[str, Any] = error.errors()[0]
        field = ".".join(str(part) for part in ("spec", *first["loc"]))
        return None, f"{field}: {first['msg']}"
