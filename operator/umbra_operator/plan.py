"""What to do next: pure, from one observed value to a short list of actions with at most one disruptive step."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from umbra_operator.agents import SERVING, Agents
from umbra_operator.api.v1alpha1.rollout import CacheLoss, RolloutStrategy
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.records import DeploymentRecord, Observed, PodRecord, PullRecord
from umbra_operator.recovery import Succession, succession
from umbra_operator.render import names
from umbra_operator.render.budgets import min_available
from umbra_operator.render.children import IMMUTABLE, children
from umbra_operator.render.memory import check_gpu_memory
from umbra_operator.render.pods import annotations, pod
from umbra_operator.render.pulls import kit_pull, pull_name
from umbra_operator.render.resolve import Resolved, resolve
from umbra_operator.render.revision import Revision, revision
from umbra_operator.render.secrets import admin_key


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create a pod; a name that exists already is a conflict to be observed."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateSecret:
    """Create the Secret of the admin key, unless it exists."""

    manifest: Mapping[str, Any]
    """All but the key."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete exactly this pod, in this version."""

    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class PatchPod:
    """Give a running pod Umbra's labels and annotations, the launch document among them, and maybe another kit."""

    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    kit_image: str | None = None
    """Another image for its kit container; the node has it already."""


@dataclass(frozen=True, slots=True)
class PullImage:
    """Have the node of a running pod get an image, by a container that does nothing else."""

    name: str
    uid: str
    resource_version: str
    container: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Apply:
    """Create an object, or apply it over the one of ``uid``, which is ours."""

    manifest: Mapping[str, Any]
    uid: str | None


@dataclass(frozen=True, slots=True)
class Prune:
    """Delete an object of ours that the spec does not ask for any more."""

    kind: str
    name: str
    uid: str


Action = CreatePod | CreateSecret | DeletePod | PatchPod | PullImage | Apply | Prune


@dataclass(frozen=True, slots=True)
class Finding:
    """Why the spec cannot be followed as it is."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Why a change does not reach pods that exist, although the spec can be followed."""

    reason: Reason
    message: str
    pods: frozenset[str]
    """Names of the pods that stay as they are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, and what the decision rested on."""

    actions: tuple[Action, ...]
    finding: Finding | None
    revision: Revision | None
    """What the spec asks for; None when it cannot be told."""
    owned: tuple[PodRecord, ...]
    """Pods that this deployment owns."""
    ranks: int | None = None
    """Of an engine at that revision; None when it cannot be told."""
    min_available: int = 0
    """Replicas that the PodDisruptionBudget leaves serving; 0 means that there is none."""
    hold: Hold | None = None
    losing: Mapping[str, str] = field(default_factory=dict)
    """Size of the running store that each pod loses when its turn comes, by name of the pod."""
    unpulled: Mapping[str, str] = field(default_factory=dict)
    """Why the node of a pod cannot get the image that the pod is to change to, by name of the pod."""
    stopped: tuple[str, ...] = ()
    """Why replicas whose pods have ended get no others."""
    wait_seconds: float | None = None
    """When to look again at replicas whose successors are to be made later."""


def plan(observed: Observed, agents: Mapping[str, Agents], now: float) -> Plan:
    """Actions that bring the cluster one step nearer to the spec.

    ``agents`` is keyed by pod uid; ``now`` is in Unix seconds.

    Without a usable spec or profile no engine is created, changed or stopped; only scaling down still works.
    """
    deployment = observed.deployment
    owned = tuple(pod for pod in observed.pods if pod.owner_uid == deployment.uid)
    if deployment.deleting:
        # Owner references collect the children; writing now would only race with the garbage collector.
        return Plan((), None, None, owned)
    finding, resolved, wanted = _resolve(observed)
    finding = finding or _name_conflict(observed)
    surplus = _surplus(deployment, owned)
    if finding or resolved is None or wanted is None:
        return Plan(surplus, finding, wanted, owned)
    due = _due(resolved, wanted, owned, now)
    missing = _missing(deployment, resolved, wanted, owned, due)
    actions: list[Action] = [*_children(observed, resolved), *surplus]
    if missing:
        actions.append(CreateSecret(admin_key(deployment.name, deployment.namespace, deployment.uid)))
    actions += missing
    going = {action.uid for action in surplus}
    actions += _follow(resolved, wanted, [pod for pod in owned if pod.uid not in going])
    hold = _hold(resolved, wanted, owned)
    waiting = _waiting_for_kit(resolved, wanted, owned, hold)
    actions += [_pull(pod, resolved) for pod, pull in waiting if pull is None]
    if not any(isinstance(action, DeletePod | CreatePod) for action in actions):
        later = {pod.name for pod, _ in waiting} | (hold.pods if hold else frozenset())
        actions += _disrupt(resolved, wanted, owned, agents, later)
    losing = _losing(resolved, wanted, owned)
    return Plan(
        tuple(actions),
        None,
        wanted,
        owned,
        resolved.tensor,
        min_available(resolved),
        hold,
        losing,
        unpulled={pod.name: pull.problem for pod, pull in waiting if pull and pull.problem},
        stopped=tuple(each.stopped for each in due.values() if each.stopped),
        wait_seconds=min((each.wait_seconds for each in due.values() if each.wait_seconds > 0), default=None),
    )


def _resolve(observed: Observed) -> tuple[Finding | None, Resolved | None, Revision | None]:
    deployment, profile = observed.deployment, observed.profile
    if deployment.spec is None:
        return Finding(Reason.SPEC_UNREADABLE, deployment.problem or "the spec cannot be read"), None, None
    if profile is None:
        name = deployment.spec.profile_ref.name
        message = f"spec.profileRef.name: no K3Profile is called {name!r}; create it or correct the name"
        return Finding(Reason.PROFILE_NOT_FOUND, message), None, None
    if profile.spec is None:
        message = f"K3Profile {profile.name!r}: {profile.problem}"
        return Finding(Reason.PROFILE_UNREADABLE, message), None, None
    wanted = revision(deployment.spec, profile.spec)
    try:
        resolved = resolve(deployment.spec, profile.spec)
        check_gpu_memory(resolved)
    except SpecInvalid as error:
        return Finding(Reason(error.reason), str(error)), None, wanted
    return None, resolved, wanted


def _name_conflict(observed: Observed) -> Finding | None:
    for held in observed.children:
        if held.owner_uid != observed.deployment.uid:
            return Finding(Reason.NAME_CONFLICT, taken(held.kind, held.name))
    for stranger in observed.pods:
        if stranger.owner_uid != observed.deployment.uid and not stranger.deleting:
            message = (
                f"pod {stranger.name!r} carries this deployment's label but belongs to something else; delete the pod"
            )
            return Finding(Reason.NAME_CONFLICT, message)
    return None


def taken(kind: str, name: str) -> str:
    """The sentence for a name that an object of somebody else holds."""
    return f"{kind} {name!r} exists and belongs to something else; delete it or rename this K3Deployment"


def _children(observed: Observed, resolved: Resolved) -> list[Action]:
    """Objects that are missing or differ from what was applied last, and those that nothing asks for any more."""
    deployment = observed.deployment
    wanted = children(resolved, deployment.name, deployment.namespace, deployment.uid, observed.facts)
    held = {child.kind: child for child in observed.children}
    actions: list[Action] = []
    for kind, manifest in wanted.items():
        child = held.get(kind)
        if child and child.content == manifest["metadata"]["annotations"][names.ANNOTATION_CONTENT]:
            continue
        if child and kind in IMMUTABLE:
            actions.append(Prune(kind, child.name, child.uid))
            child = None
        actions.append(Apply(manifest, child.uid if child else None))
    return actions + [Prune(kind, child.name, child.uid) for kind, child in held.items() if kind not in wanted]


def _surplus(deployment: DeploymentRecord, owned: Sequence[PodRecord]) -> tuple[DeletePod, ...]:
    """Pods beyond the wanted number, and older twins of a replica: an ended pod stays until it has a successor."""
    if deployment.spec is None:
        return ()
    replicas = deployment.spec.replicas
    newest = {pod.ordinal: pod.attempt for pod in sorted(owned, key=lambda pod: pod.attempt) if not pod.deleting}
    return tuple(
        _delete(pod)
        for pod in owned
        if not pod.deleting and (pod.ordinal >= replicas or pod.attempt < newest[pod.ordinal])
    )


def _due(resolved: Resolved, wanted: Revision, owned: Sequence[PodRecord], now: float) -> dict[int, Succession]:
    """For each replica that no pod serves or will serve, what follows the pods it had, by ordinal."""
    alive = {pod.ordinal for pod in owned if not pod.deleting and not pod.over}
    return {
        ordinal: succession(
            (pod for pod in owned if pod.ordinal == ordinal), resolved.spec.recovery, wanted.launch, now
        )
        for ordinal in range(resolved.spec.replicas)
        if ordinal not in alive
    }


def _missing(
    deployment: DeploymentRecord,
    resolved: Resolved,
    wanted: Revision,
    owned: Sequence[PodRecord],
    due: Mapping[int, Succession],
) -> list[CreatePod]:
    """A pod for each replica that is due to get one, under a name that no other pod holds.

    A pod that somebody took the labels off is not seen any more. The status still has its name, and whoever creates
    that name meets it and gives the labels back: under another name the replica would run twice.
    """
    last = _last_attempts(deployment)
    actions = []
    for ordinal, before in due.items():
        if before.stopped or before.wait_seconds > 0:
            continue
        attempts = [pod.attempt for pod in owned if pod.ordinal == ordinal]
        attempt = max(attempts) + 1 if attempts else last.get(ordinal, 0)
        manifest = pod(resolved, wanted, deployment.name, deployment.namespace, deployment.uid, ordinal, attempt)
        if before.ends:
            ends = ",".join(f"{earlier}@{at}" for earlier, at in before.ends)
            manifest["metadata"]["annotations"][names.ANNOTATION_EARLIER_ENDS] = ends
        actions.append(CreatePod(manifest))
    return actions


def _follow(resolved: Resolved, wanted: Revision, owned: Sequence[PodRecord]) -> list[PatchPod]:
    """Live settings for the engines that run what is wanted, and labels and annotations that somebody took away.

    It costs nothing, so all at once and never held. An engine behind has both with its new revision: its old launch
    document is nowhere but in its pod.
    """
    return [
        _patch(pod, resolved, wanted)
        for pod in owned
        if not pod.deleting and not pod.over and not _behind(pod, wanted) and not _marked(pod, wanted)
    ]


def _last_attempts(deployment: DeploymentRecord) -> dict[int, int]:
    """The attempt of each replica's pod that the status named last, by ordinal."""
    found = {}
    for entry in deployment.status.get("pods") or ():
        if numbers := names.pod_numbers(deployment.name, entry["name"]):
            ordinal, attempt = numbers
            found[ordinal] = attempt
    return found


def _hold(resolved: Resolved, wanted: Revision, owned: Sequence[PodRecord]) -> Hold | None:
    """What keeps a change from pods that exist: the user's pause, or a cache that must not be lost unasked."""
    rollout = resolved.spec.rollout
    behind = [pod for pod in owned if not pod.deleting and _behind(pod, wanted)]
    if not behind:
        return None
    names_behind = ", ".join(sorted(pod.name for pod in behind))
    if rollout.paused:
        message = f"spec.rollout.paused keeps {names_behind} at the old revision; unset it to go on"
        return Hold(Reason.ROLLOUT_PAUSED, message, frozenset(pod.name for pod in behind))
    if rollout.strategy is RolloutStrategy.ON_DELETE:
        message = f"{names_behind}: delete the pod to give it the new revision (spec.rollout.strategy OnDelete)"
        return Hold(Reason.WAITING_FOR_DELETION, message, frozenset(pod.name for pod in behind))
    change = wanted.launch if rollout.strategy is RolloutStrategy.RECREATE else wanted.pod
    if rollout.cache_loss is CacheLoss.ALLOW or rollout.acknowledged_change == change:
        return None
    losing = _losing(resolved, wanted, owned)
    if not losing:
        return None
    message = (
        f"the change empties the stores of {', '.join(f'{name} ({size})' for name, size in losing.items())}; "
        f"set spec.rollout.acknowledgedChange to {change} to let it, or take the edit back"
    )
    return Hold(Reason.ACKNOWLEDGEMENT_REQUIRED, message, frozenset(losing))


def _behind(pod: PodRecord, wanted: Revision) -> bool:
    """Only a pod that is as wanted ever gets the launch revision that is wanted, so that alone tells."""
    return pod.launch_revision != wanted.launch


def _marked(pod: PodRecord, wanted: Revision) -> bool:
    """Whether a pod that is as wanted says so in its labels and annotations."""
    told = (pod.pod_revision, pod.live_revision) == (wanted.pod, wanted.live)
    return told and pod.labelled and pod.store_size is not None


def _replaces(pod: PodRecord, resolved: Resolved, wanted: Revision) -> bool:
    """Whether the change needs another pod in place of this one."""
    recreate = resolved.spec.rollout.strategy is RolloutStrategy.RECREATE
    return _behind(pod, wanted) and (recreate or pod.pod_revision != wanted.pod)


def _losing(resolved: Resolved, wanted: Revision, owned: Sequence[PodRecord]) -> dict[str, str]:
    """Size of each running store that the change empties, by pod; a store that never started holds nothing."""
    found = {}
    for record in sorted(owned, key=lambda record: record.name):
        store = record.container(names.STORE)
        if not record.deleting and store and store.started and _replaces(record, resolved, wanted):
            found[record.name] = record.store_size or "unknown size"
    return found


def _waiting_for_kit(
    resolved: Resolved, wanted: Revision, owned: Sequence[PodRecord], hold: Hold | None
) -> list[tuple[PodRecord, PullRecord | None]]:
    """Pods that are to change to another kit in place and whose nodes do not have it yet, with the pull if one runs.

    Where no kit runs, as when its first image could not be had, there is nothing to keep and nothing waits.
    """
    image = resolved.profile.kit.image
    found = []
    for record in owned:
        kit = record.container(names.KIT)
        stays = record.deleting or not _behind(record, wanted) or (hold is not None and record.name in hold.pods)
        if stays or _replaces(record, resolved, wanted) or record.kit_image == image or not (kit and kit.started):
            continue
        pull = next((pull for pull in record.pulls if pull.name == pull_name(image)), None)
        if pull is None or not pull.present:
            found.append((record, pull))
    return found


def _disrupt(
    resolved: Resolved,
    wanted: Revision,
    owned: Sequence[PodRecord],
    agents: Mapping[str, Agents],
    later: Set[str],
) -> list[Action]:
    """One step that costs a serving engine at most: pods that do not serve come first and are free.

    The pods called ``later`` have no turn yet.
    """
    live = sorted((pod for pod in owned if not pod.deleting), key=lambda pod: (_may_serve(pod, agents), pod.ordinal))
    free = [pod for pod in live if _behind(pod, wanted) and pod.name not in later]
    if not free:
        return []
    first = free[0]
    action = _delete(first) if _replaces(first, resolved, wanted) else _patch(first, resolved, wanted)
    if not _may_serve(first, agents):
        return [action]
    # A replica whose old pod still ends holds its GPUs: it counts as down although a new pod may wait for them.
    serving = {pod.ordinal for pod in live if _serves(pod, agents)} - {pod.ordinal for pod in owned if pod.deleting}
    down = set(range(resolved.spec.replicas)) - serving | {first.ordinal}
    return [action] if len(down) <= resolved.spec.rollout.max_unavailable else []


def _serves(pod: PodRecord, agents: Mapping[str, Agents]) -> bool:
    """Whether the engine serves what its pod carries, beyond doubt.

    Readiness alone lags by seconds behind a new launch document, long enough to restart every replica at once.
    """
    answer = agents.get(pod.uid, Agents()).engine
    return pod.ready and answer is not None and answer.serves(pod.launch_revision)


def _may_serve(pod: PodRecord, agents: Mapping[str, Agents]) -> bool:
    """Whether a step on this pod may cost requests; an agent that does not answer counts as serving."""
    answer = agents.get(pod.uid, Agents()).engine
    return pod.ready and (answer is None or answer.state == SERVING)


def _delete(pod: PodRecord) -> DeletePod:
    return DeletePod(pod.name, pod.uid, pod.resource_version)


def _patch(pod: PodRecord, resolved: Resolved, wanted: Revision) -> PatchPod:
    labels = names.pod_labels(pod.deployment, pod.ordinal, pod.attempt)
    image = resolved.profile.kit.image
    other_kit = image if _behind(pod, wanted) and pod.kit_image != image else None
    return PatchPod(pod.name, pod.uid, pod.resource_version, labels, annotations(resolved, wanted), other_kit)


def _pull(pod: PodRecord, resolved: Resolved) -> PullImage:
    return PullImage(pod.name, pod.uid, pod.resource_version, kit_pull(resolved))
