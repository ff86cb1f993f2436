"""The operator's memory of the cluster, and the one frozen value that a reconcile looks at."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
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
        self._children: dict[Key, dict[str, ChildRecord]] = defaultdict(dict)

    def put_deployment(self, body: Mapping[str, Any]) -> set[Key]:
        """A K3Deployment was added or changed; seeing the operator's own status again concerns nobody."""
        record = deployment_record(body)
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
        if key not in self.deployments or self.deployments[key].uid != uid:
            return set()
        del self.deployments[key]
        return {key}

    def put_profile(self, body: Mapping[str, Any]) -> set[Key]:
        """A K3Profile was added or changed."""
        record = profile_record(body)
        if self.profiles.get(record.name) == record:
            return set()
        self.profiles[record.name] = record
        return self._users(record.name)

    def drop_profile(self, name: str, uid: str) -> set[Key]:
        """A K3Profile is gone; another one of that name may have been seen before."""
        if name not in self.profiles or self.profiles[name].uid != uid:
            return set()
        del self.profiles[name]
        return self._users(name)

    def put_pod(self, body: Mapping[str, Any]) -> set[Key]:
        """A pod was added or changed."""
        record = pod_record(body)
        if record is None:
            return set()
        if self._pods[record.key].get(record.name) == record:
            return set()
        self._pods[record.key][record.name] = record
        return {record.key}

    def drop_pod(self, body: Mapping[str, Any]) -> set[Key]:
        """A pod is gone; another one of that name may have been seen before."""
        record = pod_record(body)
        known = self._pods.get(record.key, {}).get(record.name) if record else None
        if record is None or known is None or known.uid != record.uid:
            return set()
        del self._pods[record.key][record.name]
        return {record.key}

    def put_child(self, kind: str, body: Mapping[str, Any]) -> ChildRecord:
        """A child was read or written."""
        record = child_record(kind, body)
        self._children[record.key][kind] = record
        return record

    def drop_child(self, key: Key, kind: str) -> None:
        """A child is known to be absent."""
        self._children.get(key, {}).pop(kind, None)

    def children_of(self, key: Key) -> tuple[ChildRecord, ...]:
        """What is remembered of a deployment's children."""
        return tuple(self._children.get(key, {}).values())

    def pods(self) -> Iterable[PodRecord]:
        """Every pod of every deployment."""
        return (pod for pods in self._pods.values() for pod in pods.values())

    def observe(self, key: Key) -> Observed | None:
        """One frozen value of all that concerns ``key``; None when the deployment is gone."""
        deployment = self.deployments.get(key)
        if deployment is None:
            self._pods.pop(key, None)
            self._children.pop(key, None)
            return None
        profile = self.profiles.get(deployment.spec.profile_ref.name) if deployment.spec else None
        pods = tuple(self._pods.get(key, {}).values())
        return Observed(deployment, profile, pods, self.children_of(key), self.facts)

    def repair(
        self,
        deployments: Iterable[Mapping[str, Any]],
        profiles: Iterable[Mapping[str, Any]],
        pods: Iterable[Mapping[str, Any]],
        children: Iterable[tuple[str, Mapping[str, Any]]] = (),
    ) -> set[Key]:
        """Replaces everything by full lists; returns the keys where memory and cluster differed.

        ``children`` are (kind, object): they are not watched, so one that was deleted by hand comes back after this.
        """
        before = (dict(self.deployments), dict(self.profiles), {key: dict(pods) for key, pods in self._pods.items()})
        self.deployments.clear()
        self.profiles.clear()
        self._pods.clear()
        self._children.clear()
        for body in deployments:
            self.put_deployment(body)
        for body in profiles:
            self.put_profile(body)
        for body in pods:
            self.put_pod(body)
        for kind, body in children:
            self.put_child(kind, body)
        changed = {key for key in self.deployments if before[0].get(key) != self.deployments[key]}
        changed |= set(before[0]) - set(self.deployments)
        changed |= {key for key in self._pods | before[2] if self._pods.get(key, {}) != before[2].get(key, {})}
        for name in self.profiles | before[1]:
            if self.profiles.get(name) != before[1].get(name):
                changed |= self._users(name)
        return changed

    def _users(self, profile: str) -> set[Key]:
        return {
            key for key, record in self.deployments.items() if record.spec and record.spec.profile_ref.name == profile
        }
