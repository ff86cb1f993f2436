"""The chart's roles are exactly what the operator uses: nothing is denied, and nothing is granted that is not used."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from audit import Audit, Right, granted
from builders import NOW, POD_MONITOR_CRD
from localcluster.controlplane import ControlPlane
from nodeagent import STRATEGIC
from operatorprocess import LEASE, SYSTEM, OperatorProcess, grant, kubeconfig, revoke
from stack import MERGE, Stack, eventually
from umbra_operator.cluster import CHILDREN
from umbra_operator.render import names

pytestmark = pytest.mark.apiserver

NOT_AUDITED = {Right("update", "umbra.dev", "k3deployments/finalizers")}
"""Asked by the API server's admission of owner references, on behalf of a request that is something else."""
BY_HAND: dict[str, dict[str, Any]] = {
    "Service": {"spec": {"selector": {names.LABEL_DEPLOYMENT: "other"}}},
    "ServiceAccount": {"automountServiceAccountToken": True},
    "NetworkPolicy": {"spec": {"ingress": []}},
    "PodDisruptionBudget": {"spec": {"minAvailable": 0}},
    "PodMonitor": {"spec": {"podMetricsEndpoints": []}},
}
"""What somebody changes by hand in each kind that is applied."""


@pytest.fixture
def pod_monitors(crds: ControlPlane) -> Iterator[None]:
    """The optional kind is served."""
    name = "crd/podmonitors.monitoring.coreos.com"
    crds.kubectl("create", "-f", "-", stdin=json.dumps(POD_MONITOR_CRD))
    crds.kubectl("wait", "--for=condition=Established", name, "--timeout=20s")
    yield
    crds.kubectl("delete", name, "--timeout=20s")


@pytest.mark.parametrize(
    "everywhere", [True, pytest.param(False, marks=pytest.mark.nightly)], ids=["all namespaces", "one namespace"]
)
@pytest.mark.usefixtures("pod_monitors")
def test_nothing_is_denied_and_nothing_granted_is_unused(
    everywhere: bool, crds: ControlPlane, namespace: str, audit: Audit, tmp_path: Path
) -> None:
    namespaces = () if everywhere else (namespace,)
    grant(crds, namespaces)
    crds.kubectl("-n", SYSTEM, "delete", "lease", LEASE, "--ignore-not-found")
    stack, mark = Stack(crds, namespace), audit.mark()
    _hold_names(stack)
    variables = {"UMBRA_NAMESPACES": ",".join(namespaces), "UMBRA_RESYNC_SECONDS": "10"}
    operator = OperatorProcess(kubeconfig(crds, tmp_path / "kubeconfig"), tmp_path / "operator.log", variables)
    try:
        _use_all(stack)
    finally:
        operator.stop()
        revoke(crds)
    used, denied = audit.since(mark)
    assert denied == []
    assert granted(namespaces) - used == NOT_AUDITED
    assert used <= granted(namespaces)


def _hold_names(stack: Stack) -> None:
    """Somebody else's objects under every name that the deployment needs."""
    labels = {names.LABEL_DEPLOYMENT: "k3"}
    for kind, spec in {
        "Service": {"ports": [{"port": 1}]},
        "NetworkPolicy": {"podSelector": {}},
        "PodMonitor": {},
    }.items():
        group = CHILDREN[kind].prefix.removeprefix("/apis/").removeprefix("/api/")
        body = {"apiVersion": group, "kind": kind, "metadata": {"name": "k3", "labels": labels}, "spec": spec}
        stack.api("POST", CHILDREN[kind].path(stack.namespace), body)
    spec = {"containers": [{"name": "a", "image": "example.test/a"}], "schedulerName": "nobody"}
    stack.api("POST", f"/api/v1/namespaces/{stack.namespace}/pods", {"metadata": {"name": "k3-0-0"}, "spec": spec})


def _use_all(stack: Stack) -> None:
    """Everything that the operator does for a user, without a node: nothing of it waits for a pod that runs."""
    api = stack.api

    def path(kind: str) -> str:
        return f"{CHILDREN[kind].path(stack.namespace)}/k3"

    def told(what: str) -> bool:
        found = stack.conditions().get("ConfigValid", {})
        return found.get("reason") == "NameConflict" and what in found["message"]

    stack.add_profile(devices={"deviceClassName": "gpu.amd.com"})
    stack.add(replicas=2)
    eventually(lambda: told("exists and belongs to something else"), "an object in the way is told")
    for kind in ("Service", "NetworkPolicy", "PodMonitor"):
        api("DELETE", path(kind))
    eventually(lambda: told("pod 'k3-0-0'"), "the pod in the way is told")
    api("DELETE", f"/api/v1/namespaces/{stack.namespace}/pods/k3-0-0?gracePeriodSeconds=0")
    eventually(lambda: len(stack.pods()) == 2, "both pods are made")

    before = stack.pods()["k3-0-0"]["metadata"]["annotations"]
    stack.edit({"engine.contextLength": 8192})
    eventually(lambda: stack.pods()["k3-0-0"]["metadata"]["annotations"] != before, "the launch document is patched")
    _change_kit(stack)
    wanted = {kind: _at(api("GET", path(kind)), wrong) for kind, wrong in BY_HAND.items()}
    for kind, wrong in BY_HAND.items():
        api("PATCH", path(kind), wrong, MERGE)
    for kind, wrong in BY_HAND.items():
        eventually(
            lambda kind=kind, wrong=wrong: _at(api("GET", path(kind)), wrong) == wanted[kind], f"{kind} is mended"
        )
    template = api("GET", path("ResourceClaimTemplate"))["metadata"]["uid"]
    stack.edit({"parallelism": {"tensor": 1}, "serviceAccountName": "default", "replicas": 1})

    def replaced() -> bool:
        found = stack.child("ResourceClaimTemplate")
        return found is not None and found["metadata"]["uid"] != template

    eventually(replaced, "the claim template is replaced")
    for kind in ("ServiceAccount", "PodDisruptionBudget"):
        eventually(lambda kind=kind: stack.child(kind) is None, f"the {kind} is pruned")
    api("DELETE", stack.path("k3"))


def _change_kit(stack: Stack) -> None:
    """Another profile with another kit, for a pod whose kit runs by the word of its status."""
    pod = f"/api/v1/namespaces/{stack.namespace}/pods/k3-0-0"
    kit = {"name": names.KIT, "image": "i", "imageID": "i", "restartCount": 0, "ready": True, "started": True}
    running = {**kit, "state": {"running": {"startedAt": NOW}}}
    stack.api("PATCH", f"{pod}/status", {"status": {"initContainerStatuses": [running]}}, STRATEGIC)
    stack.profile = f"{stack.namespace}-v2"
    stack.add_profile(devices={"deviceClassName": "gpu.amd.com"}, kit__image="example.test/kit:2")
    stack.edit({"profileRef.name": stack.profile})
    eventually(lambda: "ephemeralContainers" in stack.api("GET", pod)["spec"], "the image is asked for")


def _at(body: dict[str, Any], wrong: dict[str, Any]) -> Any:
    """The value in `body` where `wrong` has its one leaf."""
    ((key, value),) = wrong.items()
    return _at(body.get(key, {}), value) if isinstance(value, dict) else body.get(key)
