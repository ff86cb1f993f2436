"""The story on one screen: observe, plan, apply, status."""

import contextlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from umbra_operator import errors, events, metrics
from umbra_operator.api.base import API_VERSION
from umbra_operator.cluster import CHILDREN, DEPLOYMENTS, POD_MONITORS, PODS, SECRETS, Cluster
from umbra_operator.conditions import Reason
from umbra_operator.observe import Memory
from umbra_operator.overrides import Override, effective, look_again_seconds, overrides
from umbra_operator.plan import (
    Action,
    Apply,
    CreatePod,
    CreateSecret,
    DeletePod,
    Finding,
    PatchPod,
    Plan,
    Prune,
    PullImage,
    plan,
    taken,
)
from umbra_operator.poll import Poller
from umbra_operator.records import ChildRecord, DeploymentRecord, Key, Observed, controller_uid
from umbra_operator.render import names
from umbra_operator.render.children import IMMUTABLE
from umbra_operator.status import status

logger = logging.getLogger(__name__)

STATUS_SECONDS = 2.0
"""Between two statuses of a deployment where the later one only tells how a start goes on."""
LOOK_AGAIN_SECONDS = 5.0
"""Until the next look at an object that is in the way and not watched."""
ADMIN_KEY_BYTES = 32
"""Random bytes in an admin key."""


def utc_now() -> str:
    """The time for conditions, RFC 3339 in whole seconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _finding(problems: Sequence[errors.Refused | errors.SpecInvalid]) -> Finding | None:
    """The first problem, as it is told to the user."""
    if not problems:
        return None
    first = problems[0]
    return Finding(Reason.WRITE_REFUSED if isinstance(first, errors.Refused) else Reason(first.reason), str(first))


def _patched(actions: Sequence[Action]) -> set[str]:
    """Uids of the pods that get another launch document."""
    return {action.uid for action in actions if isinstance(action, PatchPod)}


def _deleted(actions: Sequence[Action]) -> set[str]:
    """Uids of the pods that are deleted."""
    return {action.uid for action in actions if isinstance(action, DeletePod)}


def _again(tried: Sequence[Action], decided: Plan) -> float | None:
    """In how many seconds there may be something to do of which no event tells."""
    if decided.finding:
        return LOOK_AGAIN_SECONDS if decided.finding.reason is Reason.NAME_CONFLICT else None
    # With maxUnavailable above 1 the next pod may have its turn now; no event tells, since our own patch is known.
    # A pod that is to be patched again did not keep what it was given: somebody else's webhook must not spin us.
    if _patched(tried) & _patched(decided.actions):
        return LOOK_AGAIN_SECONDS
    if _patched(decided.actions) or _deleted(decided.actions) - _deleted(tried):
        return 0.0
    return decided.wait_seconds


class Reconciler:
    """Brings one K3Deployment a step nearer to its spec, and says where it stands."""

    def __init__(
        self,
        cluster: Cluster,
        memory: Memory,
        poller: Poller,
        tell: Callable[[DeploymentRecord, events.Event], None],
        now: Callable[[], str] = utc_now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._memory = memory
        self._poller = poller
        self._tell = tell
        self._now = now
        self._clock = clock
        self._told: dict[Key, float] = {}
        """When the status of each deployment was written last."""

    async def reconcile(self, key: Key) -> float | None:
        """One pass; returns in how many seconds to look again at what no event will tell, or None.

        Raises an UmbraError when the pass must be repeated.
        """
        await self._look_at_strangers(key)
        now = datetime.fromisoformat(self._now()).timestamp()
        seen = self._observe(key, now)
        if seen is None:
            self._told.pop(key, None)
            metrics.forget(*key)
            return None
        observed, in_force = seen
        decided = self._plan(observed, now)
        problems: list[errors.Refused | errors.SpecInvalid] = []
        if tried := decided.actions:
            problems = await self._apply_all(key, tried, observed)
            observed, in_force = self._observe(key, now) or seen
            decided = self._plan(observed, now)
        decided = replace(decided, finding=_finding(problems) or decided.finding)
        if decided.ranks and decided.revision:
            alike = [pod.uid for pod in decided.owned if pod.pod_revision == decided.revision.pod]
            self._poller.judge.expect(alike, decided.ranks)
        wanted = status(
            observed,
            decided,
            self._poller.agents(observed.pods),
            self._now(),
            self._poller.judge.assessment(key),
            in_force,
        )
        due = await self._tell_status(observed, wanted)
        if refused := next((problem for problem in problems if isinstance(problem, errors.Refused)), None):
            raise refused
        waits = (due, _again(tried, decided), look_again_seconds(in_force, now))
        return min((wait for wait in waits if wait is not None), default=None)

    async def _apply_all(
        self, key: Key, actions: Sequence[Action], observed: Observed
    ) -> list[errors.Refused | errors.SpecInvalid]:
        """Applies one after the other; returns why some could not be.

        What is refused holds back nothing else, since without its disruption budget an engine serves all the same. But
        no pod is made beside another's object of our name: it would run with that account, or that claim. And none
        is made that would wait for its admin key.
        """
        problems: list[errors.Refused | errors.SpecInvalid] = []
        for action in actions:
            try:
                await self._apply(key, action)
            except (errors.Refused, errors.SpecInvalid) as error:
                logger.warning("%s", error)
                problems.append(error)
                if isinstance(action, CreateSecret) or (
                    isinstance(action, Apply) and isinstance(error, errors.SpecInvalid)
                ):
                    break
                continue
            if event := events.of_action(action, observed):
                self._tell(observed.deployment, event)
        return problems

    def _observe(self, key: Key, now: float) -> tuple[Observed, tuple[Override, ...]] | None:
        """What is known, with the spec that engines follow, and what in it is not the user's."""
        observed = self._memory.observe(key)
        if observed is None:
            return None
        if (spec := observed.deployment.spec) is None:
            return observed, ()
        deployment, assessment = observed.deployment, self._poller.judge.assessment(key)
        in_force = overrides(spec, deployment.status, assessment, now)
        followed = replace(deployment, spec=effective(spec, in_force))
        return replace(observed, deployment=followed), in_force

    def _plan(self, observed: Observed, now: float) -> Plan:
        return plan(observed, self._poller.agents(observed.pods), now)

    async def _look_at_strangers(self, key: Key) -> None:
        """Reads again what is in the way: it is not watched, and may be gone by now."""
        deployment = self._memory.deployments.get(key)
        for held in self._memory.children_of(key) if deployment else ():
            if deployment and held.owner_uid != deployment.uid:
                await self._read_child(key, held.kind)

    async def _read_child(self, key: Key, kind: str) -> ChildRecord | None:
        try:
            self._memory.put_child(kind, await self._cluster.get(CHILDREN[kind], *key))
        except errors.Missing:
            self._memory.drop_child(key, kind)
        return self._memory.child(key, kind)

    async def _apply(self, key: Key, action: Action) -> None:
        namespace, _ = key
        match action:
            case CreatePod(manifest):
                logger.info("creating pod %s", manifest["metadata"]["name"])
                self._memory.put_pod(await self._create(manifest))
            case CreateSecret(manifest):
                with contextlib.suppress(errors.Conflict):
                    value = {names.ADMIN_KEY: secrets.token_urlsafe(ADMIN_KEY_BYTES)}
                    await self._cluster.create(SECRETS, {**manifest, "stringData": value})
            case DeletePod(pod, uid, version):
                logger.info("deleting pod %s", pod)
                await self._cluster.delete(PODS, namespace, pod, uid, version)
            case PatchPod(pod, uid, version, labels, annotations, kit_image):
                logger.info("giving pod %s launch revision %s", pod, annotations[names.ANNOTATION_REVISION])
                own = {"labels": dict(labels), "annotations": dict(annotations)}
                body: dict[str, Any] = {"metadata": {"uid": uid, "resourceVersion": version, **own}}
                if kit_image:
                    body["spec"] = {"initContainers": [{"name": names.KIT, "image": kit_image}]}
                self._memory.put_pod(await self._cluster.patch(PODS, namespace, pod, body))
                self._poller.hasten(uid)
            case PullImage(pod, uid, version, container):
                logger.info("the node of pod %s is to get image %s", pod, container["image"])
                body = {
                    "metadata": {"uid": uid, "resourceVersion": version},
                    "spec": {"ephemeralContainers": [container]},
                }
                written = await self._cluster.patch(PODS, namespace, pod, body, "ephemeralcontainers")
                self._memory.put_pod(written)
            case Apply(manifest, uid):
                logger.info("applying %s", manifest["kind"])
                await self._apply_child(key, manifest, uid)
            case Prune(kind, child, uid):
                logger.info("removing %s %s", kind, child)
                await self._prune(key, kind, uid)

    async def _apply_child(self, key: Key, manifest: Mapping[str, Any], uid: str | None) -> None:
        """Applies over exactly the object of ``uid``, or creates one: nothing of somebody else is ever applied over."""
        kind, resource = manifest["kind"], CHILDREN[manifest["kind"]]
        try:
            if uid:
                written = await self._apply_over(manifest, uid)
            else:
                written = await self._cluster.create(resource, manifest, names.MANAGER)
        except (errors.Conflict, errors.Refused):
            # Applying over another uid is a conflict when nothing holds the name, and refused when something does.
            held = await self._read_child(key, kind)
            if held and held.owner_uid != controller_uid(manifest["metadata"]):
                raise errors.SpecInvalid(Reason.NAME_CONFLICT, taken(kind, held.name)) from None
            if held is None or uid or kind in IMMUTABLE:
                raise
            # Ours, and not known: an answer was lost, or somebody took the label away by which it is listed.
            written = await self._apply_over(manifest, held.uid)
        except errors.Missing:
            if resource is not POD_MONITORS or await self._cluster.serves(resource):
                raise
            self._memory.facts = replace(self._memory.facts, pod_monitors=False)
            return
        self._memory.put_child(kind, written)

    async def _apply_over(self, manifest: Mapping[str, Any], uid: str) -> dict[str, Any]:
        body = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
        return await self._cluster.apply(CHILDREN[manifest["kind"]], body, names.MANAGER)

    async def _prune(self, key: Key, kind: str, uid: str) -> None:
        """Deletes an object of ours in the version that is there now: its status is written by others."""
        try:
            body = await self._cluster.get(CHILDREN[kind], *key)
            if body["metadata"]["uid"] == uid:
                await self._cluster.delete(CHILDREN[kind], *key, uid, body["metadata"]["resourceVersion"])
        except errors.Missing:
            pass
        self._memory.drop_child(key, kind)

    async def _create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Creates a pod, or finds the one of that name that is ours and was not seen yet, or had its labels taken off.

        Raises SpecInvalid when the name belongs to somebody else's pod.
        """
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        try:
            return await self._cluster.create(PODS, manifest)
        except errors.Refused:
            # One cause is a ServiceAccount deleted by hand, which is not watched: the next pass makes sure of it.
            self._memory.drop_child(
                (namespace, manifest["metadata"]["labels"][names.LABEL_DEPLOYMENT]), "ServiceAccount"
            )
            raise
        except errors.Conflict:
            held = await self._cluster.get(PODS, namespace, name)
        if controller_uid(held["metadata"]) != controller_uid(manifest["metadata"]):
            raise errors.SpecInvalid(Reason.NAME_CONFLICT, taken("pod", name))
        meta, labels = held["metadata"], manifest["metadata"]["labels"]
        if labels.items() <= (meta.get("labels") or {}).items():
            return held
        logger.warning("pod %s had other labels than it was made with; giving them back", name)
        given = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "labels": labels}
        return await self._cluster.patch(PODS, namespace, name, {"metadata": given})

    async def _tell_status(self, observed: Observed, wanted: dict[str, Any]) -> float | None:
        """Writes the status if it changed; returns in how many seconds a change is due that may wait."""
        deployment = observed.deployment
        if wanted == deployment.status:
            return None
        due = self._told.get(deployment.key, -math.inf) + STATUS_SECONDS - self._clock()
        if due > 0 and not events.presses(deployment.status, wanted):
            return due
        await self._write_status(observed, wanted)
        self._told[deployment.key] = self._clock()
        return None

    async def _write_status(self, observed: Observed, wanted: dict[str, Any]) -> None:
        deployment = observed.deployment
        # A status subresource ignores a wrong uid, so only the version keeps this off a new object of the same name.
        meta = {
            "namespace": deployment.namespace,
            "name": deployment.name,
            "uid": deployment.uid,
            "resourceVersion": deployment.resource_version,
        }
        body = {"apiVersion": API_VERSION, "kind": "K3Deployment", "metadata": meta, "status": wanted}
        try:
            written = await self._cluster.apply(DEPLOYMENTS, body, names.MANAGER_STATUS, "status")
        except errors.Missing:
            return
        self._memory.put_deployment(written)
        told = events.of_status(deployment.status.get("conditions") or (), wanted["conditions"])
        for event in (*told, *events.of_overrides(deployment.status, wanted)):
            self._tell(deployment, event)
