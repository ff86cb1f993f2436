"""The operator's memory of the cluster, and the one frozen value that a reconcile looks at."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from umbra_operator.records import (
    ChildRecord,
    DeploymentRecord,
    Key,
    Observed,
    PodRecord,
    ProfileRecord,
    child_record,
    deployment_record,
    pod_record,
    profile_record,
)
from umbra_operator.render.children import Facts


class Memory:
    """Records of everything watched, changed by events and repaired by lists.

    Every ``put`` and ``drop`` returns the keys that the change concerns.
    """

    def __init__(self, facts: Facts | None = None) -> None:
        self.facts = facts or Facts()
        self.deployments: dict[Key, DeploymentRecord] = {}
        self.profiles: dict[str, ProfileRecord] = {}
        self._pods: dict[Key, dict[str, PodRecord]] = defaultdict(dict)
        self._pods_by_uid: dict[str, PodRecord] = {}
        """The same pods: whoever takes the labels off one tells another deployment's name, or none."""
        self._children: dict[Key, dict[str, ChildRecord]] = defaultdict(dict)
        self._told: set[str] = set()
        """Uids of which something was told since the last repair began."""

    def put_deployment(self, body: Mapping[str, Any]) -> set[Key]:
        """A K3Deployment was added or changed; seeing the operator's own status again concerns nobody."""
        record = deployment_record(body)
        self._told.add(record.uid)
        old = self.deployments.get(record.key)
        self.deployments[record.key] = record
        same = (
            old is not None
            and (old.uid, old.generation, old.deleting) == (record.uid, record.generation, record.deleting)
            and old.status == record.status
        )
        return set() if same else {record.key}

    def drop_deployment(self, key: Key, uid: str) -> set[Key]:
        """A K3Deployment is gone; another one of that name may have been seen before."""
        self._told.add(uid)
        if key not in self.deployments or self.deployments[key].uid != uid:
            return set()
        del self.deployments[key]
        return {key}

    def put_profile(self, body: Mapping[str, Any]) -> set[Key]:
        """A K3Profile was added or changed."""
        record = profile_record(body)
        self._told.add(record.uid)
        if self.profiles.get(record.name) == record:
            return set()
        self.profiles[record.name] = record
        return self._users(record.name)

    def drop_profile(self, name: str, uid: str) -> set[Key]:
        """A K3Profile is gone; another one of that name may have been seen before."""
        self._told.add(uid)
        if name not in self.profiles or self.profiles[name].uid != uid:
            return set()
        del self.profiles[name]
        return self._users(name)

    def put_pod(self, body: Mapping[str, Any]) -> set[Key]:
        """A pod was added or changed; with other labels it is another deployment's, or nobody's."""
        uid, record = body["metadata"]["uid"], pod_record(body)
        known = self._pods_by_uid.get(uid)
        changed = self.forget_pod(known) if known and (record is None or record.key != known.key) else set()
        if record is None:
            return changed
        self._told.add(uid)
        if self._pods_by_uid.get(uid) == record:
            return set()
        before = self._pods[record.key].get(record.name)
        if before and before.uid != uid:
            del self._pods_by_uid[before.uid]
        self._pods[record.key][record.name] = self._pods_by_uid[uid] = record
        return changed | {record.key}

    def drop_pod(self, body: Mapping[str, Any]) -> set[Key]:
        """A pod is gone; another one of that name may have been seen before."""
        uid = body["metadata"]["uid"]
        self._told.add(uid)
        known = self._pods_by_uid.get(uid)
        return self.forget_pod(known) if known else set()

    def forget_pod(self, pod: PodRecord) -> set[Key]:
        """A pod is known to be gone."""
        del self._pods_by_uid[pod.uid]
        del self._pods[pod.key][pod.name]
        if not self._pods[pod.key]:
            del self._pods[pod.key]
        return {pod.key}

    def put_child(self, kind: str, body: Mapping[str, Any]) -> set[Key]:
        """A child was read or written."""
        record = child_record(kind, body)
        self._told.add(record.uid)
        same = self._children[record.key].get(kind) == record
        self._children[record.key][kind] = record
        return set() if same else {record.key}

    def see_child(self, kind: str, body: Mapping[str, Any]) -> set[Key]:
        """A child was listed; where it holds something else than after the last write, it is to be applied again.

        One that is seen for the first time may have been edited while no operator ran.
        """
        record = child_record(kind, body)
        known = self.child(record.key, kind)
        changed = self.put_child(kind, body)
        same = known and (known.uid, known.owner_uid) == (record.uid, record.owner_uid)
        if known.live != record.live if known and same else record.touched:
            self._children[record.key][kind] = replace(record, content=None)
        return changed

    def child(self, key: Key, kind: str) -> ChildRecord | None:
        """What is remembered of one child."""
        return self._children.get(key, {}).get(kind)

    def drop_child(self, key: Key, kind: str) -> None:
        """A child is known to be absent."""
        known = self._children.get(key, {}).pop(kind, None)
        if known:
            self._told.add(known.uid)

    def children_of(self, key: Key) -> tuple[ChildRecord, ...]:
        """What is remembered of a deployment's children."""
        return tuple(self._children.get(key, {}).values())

    def children(self) -> Iterable[ChildRecord]:
        """Every child of every deployment."""
        return (child for children in self._children.values() for child in children.values())

    def pods(self) -> Iterable[PodRecord]:
        """Every pod of every deployment."""
        return self._pods_by_uid.values()

    def observe(self, key: Key) -> Observed | None:
        """One frozen value of all that concerns ``key``; None when the deployment is gone."""
        deployment = self.deployments.get(key)
        if deployment is None:
            # Its pods stay until they are gone: a new deployment of the name must know theirs.
            self._children.pop(key, None)
            return None
        profile = self.profiles.get(deployment.spec.profile_ref.name) if deployment.spec else None
        pods = tuple(self._pods.get(key, {}).values())
        return Observed(deployment, profile, pods, self.children_of(key), self.facts)

    def repair(self) -> "Repair":
        """Begins a repair by full lists, which the caller asks the API server for from now on."""
        return Repair(self)

    def _users(self, profile: str) -> set[Key]:
        return {
            key for key, record in self.deployments.items() if record.spec and record.spec.profile_ref.name == profile
        }


class Repair:
    """Full lists on their way into the memory, object by object, while events go on.

    What was told meanwhile is newer than any list that was asked for before it, so the list does not change that.
    Of two repairs of one memory only the later counts.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._told: set[str] = set()
        memory._told = self._told
        self._listed: set[str] = set()
        self._changed: set[Key] = set()
        self._kept: set[tuple[str, str | None]] = set()

    def keep(self, kind: str, namespace: str | None) -> None:
        """No list of this kind arrived, in one namespace or, with None, in any: what is remembered of it stays."""
        self._kept.add((kind, namespace))

    def deployment(self, body: Mapping[str, Any]) -> None:
        """A list has this K3Deployment."""
        self._take(body, self._memory.put_deployment)

    def profile(self, body: Mapping[str, Any]) -> None:
        """A list has this K3Profile."""
        self._take(body, self._memory.put_profile)

    def pod(self, body: Mapping[str, Any]) -> None:
        """A list has this pod."""
        self._take(body, self._memory.put_pod)

    def child(self, kind: str, body: Mapping[str, Any]) -> None:
        """A list has this child; children are not watched, so what was done to one by hand is found only here."""
        self._take(body, partial(self._memory.see_child, kind))

    def finish(self) -> set[Key]:
        """Every list is through: what none of them had is gone. Returns the keys where memory and cluster differed."""
        memory = self._memory
        known = self._listed | self._told

        def gone(kind: str, uid: str, namespace: str | None = None) -> bool:
            return uid not in known and not {(kind, namespace), (kind, None)} & self._kept

        for record in [*memory.deployments.values()]:
            if gone("K3Deployment", record.uid, record.key[0]):
                self._changed |= memory.drop_deployment(record.key, record.uid)
        for profile in [*memory.profiles.values()]:
            if gone("K3Profile", profile.uid):
                self._changed |= memory.drop_profile(profile.name, profile.uid)
        for pod in [*memory.pods()]:
            if gone("Pod", pod.uid, pod.key[0]):
                self._changed |= memory.forget_pod(pod)
        for child in [*memory.children()]:
            if gone(child.kind, child.uid, child.key[0]):
                memory.drop_child(child.key, child.kind)
                self._changed.add(child.key)
        return self._changed

    def _take(self, body: Mapping[str, Any], put: Callable[[Mapping[str, Any]], set[Key]]) -> None:
        uid = body["metadata"]["uid"]
        self._listed.add(uid)
        if uid in self._told:
            return
        self._changed |= put(body)
        self._told.discard(uid)
