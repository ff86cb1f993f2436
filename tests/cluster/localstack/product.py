"""Puts the product on a running local cluster and waits until it serves."""

import base64
import json
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cpuengine import Environment
from localcluster import images
from localcluster.cluster import Cluster
from localcluster.errors import ClusterError
from localcluster.layout import Layout
from localcluster.progress import Progress
from umbra_images import definitions

from . import profile
from .engine import Engine
from .store import Store

RELEASE = "umbra"
SYSTEM_NAMESPACE = "umbra-system"
NAMESPACE = "umbra-demo"
NAME = "demo"
READY_SECONDS = 420.0
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Stack:
    """The product on a cluster."""

    cluster: Cluster
    environment: Environment
    profile_name: str

    def get(self, *arguments: str) -> dict[str, Any]:
        """An object of the demo's namespace, as kubectl prints it."""
        body: dict[str, Any] = json.loads(self.cluster.kubectl("-n", NAMESPACE, "get", *arguments, "-o", "json"))
        return body

    def conditions(self, name: str = NAME) -> dict[str, dict[str, Any]]:
        """Conditions of a K3Deployment by type."""
        status = self.get("k3deployment", name).get("status") or {}
        return {condition["type"]: condition for condition in status.get("conditions") or ()}

    def pods(self, name: str = NAME) -> list[dict[str, Any]]:
        """Pods of a K3Deployment."""
        items: list[dict[str, Any]] = self.get("pods", "-l", f"umbra.dev/deployment={name}")["items"]
        return items


def install(cluster: Cluster, environment: Environment, progress: Progress) -> Stack:
    """Images, chart and profile; installing again changes only what differs."""
    with progress.step("images", "giving the images to the node"):
        operator, kit = images.operator(), images.kit()
        for image in (operator, kit, images.base()):
            cluster.load(image)
    repository, _, tag = operator.tag.rpartition(":")
    with progress.step("chart", "installing the chart"):
        _forget_unfinished(cluster)
        cluster.helm(
            *("upgrade", "--install", RELEASE, str(images.REPOSITORY / "charts/umbra")),
            *("--namespace", SYSTEM_NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"),
            *("--set", f"image.repository={repository}", "--set-string", f"image.tag={tag}"),
            *("--set", "image.pullPolicy=Never"),
        )
    made = profile.profile(environment, images.base(), kit, definitions.project()["version"])
    apply(cluster, made)
    if not cluster.kubectl("get", "namespace", NAMESPACE, "--ignore-not-found").strip():
        cluster.kubectl("create", "namespace", NAMESPACE)
    return Stack(cluster, environment, made["metadata"]["name"])


def _forget_unfinished(cluster: Cluster) -> None:
    """Removes Helm's record of an installation whose Helm was killed: Helm refuses to go on from there for ever."""
    pending = f"owner=helm,name={RELEASE},status in (pending-install,pending-upgrade,pending-rollback)"
    cluster.kubectl("-n", SYSTEM_NAMESPACE, "delete", "secret", "-l", pending)


def unfinished(kubectl: Callable[..., str], where: Layout, again: str) -> str | None:
    """Why nothing can be asked about deployments, with the command that goes on; None when it can.

    A start may be under way, or was ended before it installed Umbra; kubectl's own words would not say so.
    """
    try:
        kinds = kubectl("get", "crd", "k3deployments.umbra.dev", "--ignore-not-found", "-o", "name")
    except ClusterError:
        return f"The API server does not answer (log: {where.log('apiserver')}): `{again}` goes on from there."
    return None if kinds else f"Umbra is not installed on this cluster yet: `{again}` goes on from there."


def apply(cluster: Cluster, body: dict[str, Any], namespace: str = NAMESPACE) -> None:
    """Applies an object on the server's side."""
    arguments = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    cluster.kubectl("-n", namespace, *arguments, stdin=json.dumps(body))


def engine(stack: Stack, name: str = NAME) -> Engine:
    """The engine behind a deployment's Service, through a loopback port of this machine."""
    address = stack.get("service", name)["spec"]["clusterIP"]
    port = stack.cluster.forward(name, f"{address}:30000")
    (secret,) = stack.get("secrets", "-l", f"umbra.dev/deployment={name}")["items"]
    return Engine(f"http://127.0.0.1:{port}", base64.b64decode(secret["data"]["key"]).decode())


def store(stack: Stack, serving: Engine, name: str = NAME) -> Store:
    """The store beside a deployment's only engine, through the socket in its pod's volume."""
    uid = stack.pods(name)[0]["metadata"]["uid"]
    volumes = stack.cluster.layout.kubelet_root / "pods" / uid / "volumes" / "kubernetes.io~empty-dir"
    sockets = list(volumes.glob("*/umbp.grpc.sock"))
    if len(sockets) != 1:
        raise ClusterError(f"The store of {name} has no socket below {volumes}: see its container's log.")
    return Store(stack.environment, sockets[0], serving.url)


def engine_boot_seconds(stack: Stack, name: str = NAME) -> float:
    """How long the running engine took to start, by its agent's word."""
    status = agent(stack, 9600, name)
    return float(status["readyAt"] - status["startedAt"])


def agent(stack: Stack, port: int, name: str = NAME) -> dict[str, Any]:
    """What the agent at that port of a deployment's first pod says on ``/status``."""
    address = stack.pods(name)[0]["status"]["podIP"]
    local = stack.cluster.forward(f"{name}-agent-{port}", f"{address}:{port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{local}/status", timeout=5) as response:
        status: dict[str, Any] = json.load(response)
    return status


def remove_old_profiles(stack: Stack) -> None:
    """Removes profiles of earlier contents that no deployment of any namespace names any more."""
    kubectl = stack.cluster.kubectl
    made = kubectl("get", "k3profiles", "-l", profile.LABEL, "-o", "jsonpath={.items[*].metadata.name}")
    used = kubectl("get", "k3deployments", "--all-namespaces", "-o", "jsonpath={.items[*].spec.profileRef.name}")
    for name in sorted(set(made.split()) - {stack.profile_name, *used.split()}):
        kubectl("delete", "k3profile", name)


def wait_ready(stack: Stack, progress: Progress, name: str = NAME, seconds: float = READY_SECONDS) -> None:
    """Waits for Ready and tells each condition that changes.

    Raises ClusterError with the condition that is in the way: at once when waiting cannot help, else after ``seconds``.
    """
    seen: dict[str, dict[str, Any]] = {}
    generation = stack.get("k3deployment", name)["metadata"]["generation"]

    def ready() -> bool:
        try:
            conditions = stack.conditions(name)
        except ClusterError as problem:
            # The API server may be busy for a moment; if it is gone, the time runs out.
            progress.note(f"  {problem}")
            return False
        for kind, condition in conditions.items():
            before = seen.get(kind, {})
            changed = any(condition[part] != before.get(part) for part in ("status", "message"))
            if changed and kind not in ("Reconciling", "Stalled", "Ready"):
                progress.note(f"  {kind:16} {condition['status']:8} {condition['message']}")
            seen[kind] = condition
        fresh = {kind: each for kind, each in conditions.items() if each.get("observedGeneration") == generation}
        if fresh.get("Stalled", {}).get("status") == "True":
            raise ClusterError(f"{name} cannot become Ready: {obstacle(conditions)}.")
        return fresh.get("Ready", {}).get("status") == "True"

    with progress.step("ready", "waiting for the deployment to be Ready"):
        wait(ready, seconds, lambda: f"{obstacle(seen)}; see `kubectl -n {NAMESPACE} describe k3 {name}`")


def obstacle(conditions: Mapping[str, Mapping[str, Any]]) -> str:
    """The first condition that is in the way of Ready, in the order in which a start goes through them."""
    for kind in ("ConfigValid", "PreflightPassed", "StoreReady", "EngineReady", "Ready"):
        condition = conditions.get(kind)
        if condition is None:
            return f"the operator has said nothing about {kind} yet"
        if condition["status"] != "True":
            return f"{kind} is {condition['status']} ({condition['reason']}): {condition['message'].rstrip('.')}"
    return "the conditions are those of an earlier generation"


def wait(reached: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    """Asks again and again. Raises ClusterError, with what is the matter, when the time is over."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            raise ClusterError(f"Gave up after {seconds:.0f} s: {what()}.")
        time.sleep(POLL_SECONDS)
