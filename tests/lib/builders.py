"""Objects for tests: bodies as the API server sends them, and a cluster in memory that plays kubelet and agents."""

import copy
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from umbra_operator.agents import Agents, EngineAgent, StoreAgent
from umbra_operator.api.base import API_VERSION
from umbra_operator.api.v1alpha1 import K3DeploymentSpec, K3ProfileSpec
from umbra_operator.observe import Memory
from umbra_operator.plan import (
    Action,
    Apply,
    CreatePod,
    CreateSecret,
    DeletePod,
    PatchPod,
    Plan,
    Prune,
    PullImage,
    plan,
)
from umbra_operator.records import Observed
from umbra_operator.render import names

NAMESPACE, NAME, PROFILE = "ns", "k3", "local-v1"
NOW = "2026-12-02T07:00:00Z"

DEPLOYMENT_SPEC: Mapping[str, Any] = {
    "profileRef": {"name": PROFILE},
    "replicas": 1,
    "model": {"servedName": "kimi-k3", "source": {"type": "NodePath", "nodePath": {"root": "weights", "path": "k3"}}},
    "cache": {"dram": {"size": "1Gi"}},
}
PROFILE_SPEC: Mapping[str, Any] = {
    "engine": {
        "image": "example.test/engine@sha256:" + "e" * 64,
        "args": ["--dtype", "bfloat16"],
        "allowedArgs": ["--dtype", "--attention-backend"],
        "allowedEnv": ["HSA_NO_SCRATCH_RECLAIM"],
    },
    "kit": {"image": "example.test/kit@sha256:" + "b" * 64, "version": "0.1.0"},
    "tensor": 2,
    "modelRoots": [{"name": "weights", "path": "/srv/weights"}],
    "versions": {"sglang": ["0.5.23"], "mori": ["1.2.4"]},
}


def _monitor_crd(kind: str) -> dict[str, Any]:
    """The Prometheus Operator's own CRD is 500 KiB; the names are what matters here."""
    one = kind.lower()
    names = {"kind": kind, "listKind": f"{kind}List", "plural": f"{one}s", "singular": one}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{one}s.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
    }


POD_MONITOR_CRD = _monitor_crd("PodMonitor")
SERVICE_MONITOR_CRD = _monitor_crd("ServiceMonitor")


def edited(base: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with the values at dotted paths replaced; None removes one."""
    out = copy.deepcopy(dict(base))
    for path, value in edits.items():
        *parents, last = path.split(".")
        node = out
        for part in parents:
            node = node.setdefault(part, {})
        if value is None:
            node.pop(last, None)
        else:
            node[last] = copy.deepcopy(value)
    return out


def deployment_spec(**edits: Any) -> K3DeploymentSpec:
    """A parsed spec; keywords are dotted paths with ``__`` for the dot."""
    return K3DeploymentSpec.model_validate(edited(DEPLOYMENT_SPEC, _paths(edits)))


def profile_spec(**edits: Any) -> K3ProfileSpec:
    """A parsed profile; keywords as in ``deployment_spec``."""
    return K3ProfileSpec.model_validate(edited(PROFILE_SPEC, _paths(edits)))


def deployment(name: str = NAME, namespace: str = NAMESPACE, **edits: Any) -> dict[str, Any]:
    """A K3Deployment to create; keywords as in ``deployment_spec``."""
    return {
        "apiVersion": API_VERSION,
        "kind": "K3Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": edited(DEPLOYMENT_SPEC, _paths(edits)),
    }


def profile(name: str = PROFILE, **edits: Any) -> dict[str, Any]:
    """A K3Profile to create; keywords as in ``deployment_spec``."""
    return {
        "apiVersion": API_VERSION,
        "kind": "K3Profile",
        "metadata": {"name": name},
        "spec": edited(PROFILE_SPEC, _paths(edits)),
    }


def stored(body: dict[str, Any], uid: str, generation: int = 1) -> dict[str, Any]:
    """The body as the API server would send it."""
    meta = {**body["metadata"], "uid": uid, "generation": generation, "resourceVersion": "1"}
    return {**body, "metadata": meta}


def serving(revision: str | None) -> Agents:
    """Answers of the agents of a pod whose engine serves at ``revision``."""
    return Agents(
        engine=EngineAgent(revision=revision, wanted_revision=revision, state="serving", restarts=0, problem=None),
        store=StoreAgent(epoch="e1", state="ready", problem=None),
    )


def _paths(edits: Mapping[str, Any]) -> dict[str, Any]:
    return {path.replace("__", "."): value for path, value in edits.items()}


class World:
    """A cluster in memory: applies actions, and on demand plays API server, kubelet and agents for each pod."""

    def __init__(self, spec: Mapping[str, Any] | None = None, profile_body: Mapping[str, Any] | None = None) -> None:
        self.memory = Memory()
        self.now = datetime.fromisoformat(NOW).timestamp()
        self.agents: dict[str, Agents] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self._count = 0
        self._generation = 0
        self.edit(spec or DEPLOYMENT_SPEC)
        self.memory.put_profile(stored(profile(), "p1") if profile_body is None else profile_body)

    def edit(self, spec: Mapping[str, Any], status: Mapping[str, Any] | None = None) -> None:
        """Replaces the spec, and the status by the given one or none."""
        self._generation += 1
        self.spec = dict(spec)
        body = {**deployment(), "spec": dict(spec), "status": status or {}}
        self.memory.put_deployment(stored(body, "d1", self._generation))

    def observe(self) -> Observed:
        """What the operator sees."""
        observed = self.memory.observe((NAMESPACE, NAME))
        assert observed is not None
        return observed

    def plan(self) -> Plan:
        """What the operator would do now."""
        return plan(self.observe(), self.agents, self.now)

    def apply(self, action: Action) -> None:
        """Does what the action says, as the API server would."""
        match action:
            case CreatePod(manifest):
                assert manifest["metadata"]["name"] not in self.bodies, "the API server would say AlreadyExists"
                self.add(copy.deepcopy(dict(manifest)))
            case CreateSecret():
                pass  # Nothing that is planned rests on it.
            case DeletePod(name, uid, version):
                body = self._exactly(name, uid, version)
                body["metadata"]["deletionTimestamp"] = NOW
                self._put(body)
            case PatchPod(name, uid, version, labels, annotations, kit_image):
                body = self._exactly(name, uid, version)
                body["metadata"]["labels"].update(labels)
                body["metadata"]["annotations"].update(annotations)
                if kit_image:
                    (kit,) = [each for each in body["spec"]["initContainers"] if each["name"] == names.KIT]
                    kit["image"] = kit_image
                self._put(body)
            case PullImage(name, uid, version, container):
                body = self._exactly(name, uid, version)
                body["spec"].setdefault("ephemeralContainers", []).append(dict(container))
                self._put(body)
            case Apply(manifest, uid):
                held = {child.kind: child.uid for child in self.observe().children}
                assert held.get(manifest["kind"]) == uid, "the API server would say Conflict"
                self._count += 1
                meta = {**manifest["metadata"], "uid": uid or f"c{self._count}"}
                self.memory.put_child(manifest["kind"], {**manifest, "metadata": meta})
            case Prune(kind, _, uid):
                assert {child.kind: child.uid for child in self.observe().children}[kind] == uid
                self.memory.drop_child((NAMESPACE, NAME), kind)

    def add(self, body: dict[str, Any], **status: Any) -> dict[str, Any]:
        """A pod appears."""
        self._count += 1
        body["metadata"].setdefault("uid", f"u{self._count}")
        body.setdefault("status", {"phase": "Pending"}).update(status)
        self._put(body)
        return body

    def apply_all(self, actions: Sequence[Action] | None = None) -> None:
        """Does what is planned, or only these actions."""
        for action in self.plan().actions if actions is None else actions:
            self.apply(action)

    def settle(self, name: str) -> None:
        """The kubelet and the agents of a pod come to where its spec and launch document send them."""
        body = self.bodies[name]
        if "deletionTimestamp" in body["metadata"]:
            del self.bodies[name]
            self.memory.drop_pod(body)
            return
        if body["status"]["phase"] in ("Failed", "Succeeded"):
            return
        containers = [
            {"name": names.KIT, "ready": True, "started": True, "state": {"running": {}}},
            {"name": names.PREFLIGHT, "ready": True, "started": False, "state": {"terminated": {"exitCode": 0}}},
            {"name": names.STORE, "ready": True, "started": True, "state": {"running": {}}},
            {"name": names.ENGINE, "ready": True, "started": True, "state": {"running": {}}},
        ]
        body["status"] = {
            "phase": "Running",
            "podIP": "192.0.2.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": containers,
            "ephemeralContainerStatuses": [
                {"name": asked["name"], "imageID": "i", "state": {"terminated": {"exitCode": 0}}}
                for asked in body["spec"].get("ephemeralContainers", ())
            ],
        }
        self._put(body)
        self.agents[body["metadata"]["uid"]] = serving(body["metadata"]["annotations"].get(names.ANNOTATION_REVISION))

    def settle_all(self) -> None:
        """Every pod comes to rest."""
        for name in list(self.bodies):
            self.settle(name)

    def run(self, rounds: int = 60) -> None:
        """Plans, applies and lets every pod settle until there is nothing to do. Fails when that takes too long."""
        for _ in range(rounds):
            actions = self.plan().actions
            self.apply_all(actions)
            self.settle_all()
            if not actions and not self.plan().actions:
                return
        raise AssertionError(f"no fixed point after {rounds} rounds: {self.plan().actions}")

    def _exactly(self, name: str, uid: str, version: str) -> dict[str, Any]:
        body = self.bodies[name]
        assert (body["metadata"]["uid"], body["metadata"]["resourceVersion"]) == (uid, version)
        return body

    def _put(self, body: dict[str, Any]) -> None:
        self._count += 1
        body["metadata"]["resourceVersion"] = str(self._count)
        self.bodies[body["metadata"]["name"]] = body
        self.memory.put_pod(body)
