"""The operator as a real process against a real control plane: every change that a user or an accident makes."""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import POD_MONITOR_CRD
from localcluster.controlplane import ControlPlane
from nodeagent import NODE, NodeAgent, Refused
from operatorprocess import OperatorProcess, grant, kubeconfig, revoke
from product import ROOT, install_crds
from series import Series
from stack import MERGE, NATIVE, Stack, eventually
from umbra_operator.cluster import CHILDREN
from umbra_operator.handlers import TASKS
from umbra_operator.render import names

pytestmark = pytest.mark.apiserver

COLLECTED = 90.0
"""Seconds for the garbage collector: one that has just met the kind needs half a minute."""


@pytest.fixture(scope="module")
def node(crds: ControlPlane) -> Iterator[NodeAgent]:
    """A node for the pods of this module."""
    with NodeAgent(crds) as agent:
        yield agent


class Operators:
    """Starts and stops the operator; one runs at a time."""

    def __init__(self, config: Path, folder: Path) -> None:
        self._config, self._folder, self._runs = config, folder, 0
        self.running = self._start({})

    def restart(self, **variables: str) -> None:
        self.running.stop()
        self.running = self._start(variables)

    def tail(self) -> str:
        """The end of the log of the process that runs now."""
        return self.running.log.read_text()[-4000:]

    def _start(self, variables: dict[str, str]) -> OperatorProcess:
        self._runs += 1
        return OperatorProcess(self._config, self._folder / f"operator-{self._runs}.log", variables)


@pytest.fixture(scope="module")
def operators(crds: ControlPlane, node: NodeAgent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operators]:
    """The operator, with the chart's rights and no more."""
    folder = tmp_path_factory.mktemp("operator")
    grant(crds)
    operators = Operators(kubeconfig(crds, folder / "kubeconfig"), folder)
    yield operators
    operators.running.stop()


@pytest.fixture
def stack(operators: Operators, node: NodeAgent, crds: ControlPlane, namespace: str) -> Iterator[Stack]:
    """A namespace where the operator works; at the end it must still run and the node must have had no trouble."""
    stack = Stack(crds, namespace)
    yield stack
    assert operators.running.alive, operators.tail()
    assert "unexpected; trying again" not in operators.tail(), operators.tail()
    assert node.problems == []
    for body in stack.api("GET", stack.path(""))["items"]:
        stack.api("DELETE", stack.path(body["metadata"]["name"]))
    crds.kubectl("delete", "k3p", stack.profile, "--ignore-not-found")


@pytest.fixture
def serving(stack: Stack) -> Stack:
    """One replica that serves."""
    stack.add_profile()
    stack.add()
    eventually(stack.ready, "the first replica is ready")
    return stack


def test_from_nothing_to_ready(serving: Stack) -> None:
    found = serving.conditions()
    steps = ("ConfigValid", "PreflightPassed", "StoreReady", "EngineReady", "Available", "Ready")
    assert {kind: found[kind]["status"] for kind in steps} == dict.fromkeys(steps, "True")
    assert not {"Reconciling", "Stalled"} & set(found)
    status = serving.get()["status"]
    (pod,) = status["pods"]
    assert (pod["name"], pod["ready"], pod["revision"], pod["epoch"][:5]) == (
        "k3-0-0",
        True,
        status["revision"],
        "epoch",
    )
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    (service,) = serving.children("services")
    assert service["spec"]["selector"] == {"umbra.dev/deployment": "k3"}
    line = serving.control_plane.kubectl("-n", serving.namespace, "get", "k3", "--no-headers").split()
    assert line[:5] == ["k3", "True", "Serving", "1", "1"]


def test_a_log_line_has_its_object_and_reconcile_as_fields(serving: Stack, operators: Operators) -> None:
    serving.add("other")
    eventually(lambda: serving.ready("other"), "the second one is ready")
    lines = [json.loads(line) for line in operators.running.log.read_text().splitlines()]
    mine = [line for line in lines if line.get("namespace") == serving.namespace]
    reconciles = {line["reconcileID"]: (line["controller"], line["name"]) for line in mine}
    assert set(reconciles.values()) == {("k3deployment", "k3"), ("k3deployment", "other")}
    assert {line["name"]: line["msg"] for line in mine if "creating pod" in line["msg"]} == {
        "k3": "creating pod k3-0-0",
        "other": "creating pod other-0-0",
    }
    assert all((line["controller"], line["name"]) == reconciles[line["reconcileID"]] for line in mine)
    assert "reconcileID" not in next(line for line in lines if "serves all namespaces" in line["msg"])


def test_a_steady_state_and_a_restart_of_the_operator_write_nothing(serving: Stack, operators: Operators) -> None:
    time.sleep(1)
    before, writes = serving.versions(), operators.running.writes()
    time.sleep(15)
    assert serving.versions() == before
    assert operators.running.writes() == writes
    operators.restart()
    eventually(lambda: operators.running.answers("/readyz") == 200, "the next one has listed everything")
    time.sleep(4)
    assert operators.running.writes() == 0
    assert serving.versions() == before


def test_writes_are_counted_for_their_deployment_until_it_is_gone(serving: Stack, operators: Operators) -> None:
    """Somebody takes a label away again and again, and the operator gives it back each time."""
    serving.add("other")
    eventually(lambda: serving.ready("other"), "the second one is ready")

    def writes(name: str) -> float:
        return operators.running.metric(
            "umbra_deployment_writes_total", f'namespace="{serving.namespace}"', f'name="{name}"'
        )

    def labelled() -> bool:
        return names.LABEL_ATTEMPT in serving.pods()["k3-0-0"]["metadata"]["labels"]

    before = writes("k3"), writes("other")
    assert min(before) > 0
    every = operators.running.metric("rest_client_requests_total")
    for _ in range(5):
        patch = {"metadata": {"labels": {names.LABEL_ATTEMPT: None}}}
        serving.api("PATCH", f"/api/v1/namespaces/{serving.namespace}/pods/k3-0-0", patch, MERGE)
        eventually(labelled, "the label is given back")
    assert writes("k3") >= before[0] + 5
    assert writes("other") == before[1]
    assert writes("k3") - before[0] <= operators.running.metric("rest_client_requests_total") - every
    serving.api("DELETE", serving.path("k3"))
    eventually(lambda: writes("k3") == 0, "its series ends")
    assert writes("other") == before[1]


def test_a_rank_that_differs_is_named_and_numbers_that_move_write_nothing(
    serving: Stack, node: NodeAgent, operators: Operators
) -> None:
    series = Series()
    ((uid),) = [pod["metadata"]["uid"] for pod in serving.pods().values()]

    def say() -> None:
        series.step()
        node.say(uid, series.engine())

    say()
    eventually(serving.says("CacheEffective", "True", "Effective"), "the engine is measured")
    writes = operators.running.writes()
    deadline = time.monotonic() + 13  # another question and answer
    while time.monotonic() < deadline:
        say()
        time.sleep(0.2)
    assert operators.running.writes() == writes
    series.ranks["reporting"] = "0-1"  # the profile's tensor size is 2
    series.ranks["treeCore"] = {"rust": "0", "python": "1"}
    say()
    eventually(serving.says("RanksConsistent", "False", "TreeCoresDiffer"), "the rank is named")
    assert "rank 1 has python" in serving.conditions()["RanksConsistent"]["message"]
    assert serving.conditions()["Ready"]["reason"] == "TreeCoresDiffer"
    assert serving.get()["status"]["cache"] == {"advice": []}


def test_an_engine_edit_restarts_the_engine_inside_its_pod(serving: Stack) -> None:
    before = serving.pods()["k3-0-0"]["metadata"]
    serving.edit({"engine.contextLength": 8192})
    eventually(serving.says("EngineReady", "False", "EngineRestarting"), "the restart is told")
    eventually(serving.ready, "it is ready again")
    after = serving.pods()["k3-0-0"]["metadata"]
    assert after["uid"] == before["uid"]
    document = json.loads(after["annotations"]["umbra.dev/launch"])
    assert document["argv"][document["argv"].index("--context-length") + 1] == "8192"
    assert (
        document["revision"]
        == after["annotations"]["umbra.dev/revision"]
        != before["annotations"]["umbra.dev/revision"]
    )


def test_a_new_kit_comes_into_the_pod(serving: Stack) -> None:
    before = serving.pods()["k3-0-0"]
    serving.profile = f"{serving.namespace}-v2"
    serving.add_profile(kit__image="example.test/kit:2")
    serving.edit({"profileRef.name": serving.profile})
    eventually(lambda: _kit(serving.pods()["k3-0-0"]) == "example.test/kit:2", "the kit's image is patched")
    eventually(serving.ready, "it is ready again")
    after = serving.pods()["k3-0-0"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [each["image"] for each in after["spec"]["ephemeralContainers"]] == ["example.test/kit:2"]


def _kit(pod: dict[str, Any]) -> str:
    (image,) = [each["image"] for each in pod["spec"]["initContainers"] if each["name"] == names.KIT]
    return str(image)


def test_a_user_sees_events_of_what_happens_and_none_of_what_stays(serving: Stack) -> None:
    def told() -> dict[str, int]:
        path = f"/apis/events.k8s.io/v1/namespaces/{serving.namespace}/events"
        found = [each for each in serving.api("GET", path)["items"] if each["regarding"]["kind"] == "K3Deployment"]
        return dict(Counter(each["reason"] for each in found))

    serving.edit({"engine.contextLength": 8192})
    eventually(lambda: serving.ready() and "EngineRestartAsked" in told(), "the restart is told")
    serving.edit({"rollout.paused": True, "cache.dram.size": "2Gi"})
    eventually(lambda: "RolloutPaused" in told(), "the hold is told")
    serving.edit({"rollout.paused": False})
    eventually(lambda: serving.ready() and "PodReplaced" in told(), "the replacement is told")
    serving.edit({"profileRef.name": "none-v1"})
    eventually(lambda: "ProfileNotFound" in told(), "the missing profile is told")
    time.sleep(6)
    assert {name: times for name, times in told().items() if name not in ("Serving", "NoReplicaServes")} == {
        "EngineRestartAsked": 1,
        "RolloutPaused": 1,
        "PodReplaced": 1,
        "ProfileNotFound": 1,
    }
    described = serving.control_plane.kubectl("-n", serving.namespace, "describe", "k3/k3")
    assert re.search(r"Warning +ProfileNotFound .* umbra.dev/operator +.*none-v1", described)


def test_two_replicas_restart_one_after_the_other(stack: Stack) -> None:
    stack.add_profile()
    stack.add(replicas=2)
    eventually(stack.ready, "both are ready")
    stack.edit({"engine.contextLength": 8192})
    fewest = 2

    def done() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(_is_ready(pod) for pod in stack.pods().values()))
        return stack.ready()

    eventually(done, "both run the new revision")
    assert fewest == 1


def test_with_two_allowed_two_restart_at_once_and_not_more(stack: Stack) -> None:
    stack.add_profile()
    stack.add(replicas=4, rollout={"maxUnavailable": 2})
    eventually(stack.ready, "all are ready")
    budget = stack.child("PodDisruptionBudget")
    assert budget
    assert budget["spec"]["minAvailable"] == 2
    stack.edit({"engine.contextLength": 8192})
    fewest = 4

    def done() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(_is_ready(pod) for pod in stack.pods().values()))
        return stack.ready()

    eventually(done, "all run the new revision")
    assert fewest == 2


def _is_ready(pod: dict[str, Any]) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


def test_a_larger_store_replaces_the_pod_under_the_next_attempt(serving: Stack) -> None:
    serving.edit({"cache.dram.size": "2Gi"})
    eventually(lambda: set(serving.pods()) == {"k3-0-1"} and serving.ready(), "the next attempt is ready")
    (pod,) = serving.get()["status"]["pods"]
    assert pod["name"] == "k3-0-1"


def test_a_warm_cache_is_kept_until_its_loss_is_acknowledged(serving: Stack) -> None:
    uid = serving.pods()["k3-0-0"]["metadata"]["uid"]
    serving.edit({"cache.dram.size": "2Gi", "rollout.cacheLoss": "RequireAcknowledgement"})
    eventually(serving.says("Ready", "False", "AcknowledgementRequired"), "the hold is told")
    time.sleep(2)
    assert serving.pods()["k3-0-0"]["metadata"]["uid"] == uid
    assert serving.conditions()["Available"]["status"] == "True"
    found = re.search(r"acknowledgedChange to (\w{12})", serving.conditions()["Ready"]["message"])
    assert found
    serving.edit({"rollout.acknowledgedChange": found[1]})
    eventually(lambda: set(serving.pods()) == {"k3-0-1"} and serving.ready(), "the next attempt is ready")


def test_a_restart_on_request_keeps_the_pod(serving: Stack) -> None:
    before = serving.get()["status"]["pods"][0]
    serving.edit({"restart.id": "monday"})
    eventually(lambda: serving.ready() and serving.get()["status"]["pods"][0]["revision"] != before["revision"], "anew")
    after = serving.get()["status"]["pods"][0]
    assert (after["name"], after["epoch"]) == (before["name"], before["epoch"])


def test_scaling_by_the_scale_subresource(serving: Stack) -> None:
    kubectl = serving.control_plane.kubectl
    kubectl("-n", serving.namespace, "scale", "k3/k3", "--replicas=3")
    eventually(lambda: serving.ready() and len(serving.pods()) == 3, "three are ready")
    kubectl("-n", serving.namespace, "scale", "k3/k3", "--replicas=1")
    eventually(lambda: serving.ready() and set(serving.pods()) == {"k3-0-0"}, "the highest ordinals are gone")
    kubectl("-n", serving.namespace, "scale", "k3/k3", "--replicas=0")
    eventually(lambda: serving.ready() and not serving.pods(), "none is left")
    assert serving.conditions()["Available"]["reason"] == "ScaledToZero"


def test_without_its_profile_an_engine_goes_on_and_a_late_profile_is_found(stack: Stack) -> None:
    stack.add()
    eventually(stack.says("ConfigValid", "False", "ProfileNotFound"), "the missing profile is told")
    assert "Stalled" in stack.conditions()
    assert stack.pods() == {}
    stack.add_profile()
    eventually(stack.ready, "the late profile is used")
    before = stack.pods()["k3-0-0"]["metadata"]
    stack.api("DELETE", f"/apis/umbra.dev/v1alpha1/k3profiles/{stack.profile}")
    eventually(stack.says("ConfigValid", "False", "ProfileNotFound"), "the deleted profile is told")
    stack.edit({"engine.contextLength": 8192})
    time.sleep(1)
    after = stack.pods()["k3-0-0"]["metadata"]
    assert (after["uid"], after["resourceVersion"]) == (before["uid"], before["resourceVersion"])
    assert stack.conditions()["Available"]["status"] == "True"


def test_a_relabelled_pod_gets_its_labels_back_and_its_engine_goes_on(serving: Stack) -> None:
    serving.edit({"cache.dram.size": "2Gi"})
    eventually(lambda: set(serving.pods()) == {"k3-0-1"} and serving.ready(), "the second pod of this replica serves")
    before, path = serving.pods()["k3-0-1"]["metadata"], f"/api/v1/namespaces/{serving.namespace}/pods/k3-0-1"
    serving.api("PATCH", path, {"metadata": {"labels": {names.LABEL_DEPLOYMENT: "other"}}}, MERGE)
    eventually(lambda: serving.pods()["k3-0-1"]["metadata"]["labels"] == before["labels"], "the label is back")
    taken = {"labels": {names.LABEL_ORDINAL: "7"}, "annotations": {names.ANNOTATION_POD_REVISION: None}}
    serving.api("PATCH", path, {"metadata": taken}, MERGE)

    def restored() -> bool:
        found = serving.pods()["k3-0-1"]["metadata"]
        return (found["labels"], found["annotations"]) == (before["labels"], before["annotations"])

    eventually(restored, "ordinal and revision are back")
    eventually(serving.ready, "nothing was lost")
    assert {name: pod["metadata"]["uid"] for name, pod in serving.pods().items()} == {"k3-0-1": before["uid"]}


def test_deletion_takes_every_child_along(serving: Stack) -> None:
    serving.api("DELETE", serving.path("k3"))
    eventually(lambda: not serving.pods() and not serving.children("services"), "the children are gone", COLLECTED)
    with pytest.raises(Refused, match="404"):
        serving.get()


def test_deletion_in_the_foreground_ends_although_no_operator_runs(serving: Stack, operators: Operators) -> None:
    operators.running.stop()
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
    serving.api("DELETE", serving.path("k3"), options)
    eventually(lambda: serving.gone() and not serving.everything(), "all is gone", COLLECTED)
    operators.restart()


def test_a_namespace_with_a_running_deployment_can_be_deleted(
    stack: Stack, operators: Operators, crds: ControlPlane
) -> None:
    doomed = Stack(crds, f"{stack.namespace}-doomed")
    crds.kubectl("create", "namespace", doomed.namespace)
    doomed.profile = stack.profile
    stack.add_profile()
    doomed.add(replicas=2)
    eventually(doomed.ready, "both are ready")
    before = operators.running.writes()
    crds.kubectl("delete", "namespace", doomed.namespace, "--wait=false")
    there = ["get", "namespace", doomed.namespace, "--ignore-not-found"]
    eventually(lambda: not crds.kubectl(*there).strip(), "the namespace is gone", COLLECTED)
    assert operators.running.writes() - before < 40, "what is refused there is tried less and less"


def test_deleting_one_of_two_deployments_leaves_the_other_as_it_is(serving: Stack) -> None:
    serving.add("other")
    eventually(lambda: serving.ready("other"), "the second one is ready")
    eventually(serving.ready, "the first one is ready")

    def mine() -> dict[str, str]:
        bodies = [
            body for body in serving.everything() if body["metadata"]["labels"][names.LABEL_DEPLOYMENT] == "other"
        ]
        return {
            each["metadata"]["uid"]: each["metadata"]["resourceVersion"] for each in [*bodies, serving.get("other")]
        }

    before = mine()
    serving.api("DELETE", serving.path("k3"))
    eventually(lambda: serving.gone() and len(serving.everything()) == len(before) - 1, "the first is gone", COLLECTED)
    assert mine() == before


def test_more_objects_than_kopf_has_tasks_are_all_looked_at(stack: Stack, operators: Operators) -> None:
    operators.running.stop()
    every = [f"k{number}" for number in range(TASKS + 6)]
    for name in every:
        stack.add(name)
    operators.restart()

    def told() -> int:
        bodies = stack.api("GET", stack.path(""))["items"]
        return sum(
            body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"] for body in bodies
        )

    eventually(lambda: told() == len(every), "each one has its status", 40)


def test_a_new_object_of_the_same_name_starts_afresh(serving: Stack) -> None:
    old = serving.pods()["k3-0-0"]["metadata"]["uid"]
    serving.api("DELETE", serving.path("k3"))
    serving.add()
    eventually(
        lambda: serving.ready() and old not in {p["metadata"]["uid"] for p in serving.pods().values()}, "anew", 40
    )


FOREIGN: dict[str, dict[str, Any]] = {
    "Service": {"spec": {"ports": [{"port": 1}]}},
    "ServiceAccount": {},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 1}},
    "ResourceClaimTemplate": {"spec": {"spec": {}}},
}


@pytest.fixture
def gpus(stack: Stack) -> Iterator[Callable[[int], None]]:
    """Sets how many GPUs a DRA driver offers on the node; no driver runs, its objects are written by hand."""
    base, written = "/apis/resource.k8s.io/v1", 0

    def offer(count: int) -> None:
        nonlocal written
        written += 1
        pool = {"name": NODE, "generation": written, "resourceSliceCount": 1}
        devices = [{"name": f"gpu-{number}"} for number in range(count)]
        spec = {"driver": "gpu.amd.com", "nodeName": NODE, "pool": pool, "devices": devices}
        stack.api("POST", f"{base}/resourceslices", {"metadata": {"name": f"gpus-{written}"}, "spec": spec})
        if written > 1:
            stack.api("DELETE", f"{base}/resourceslices/gpus-{written - 1}")

    chosen = {"cel": {"expression": "device.driver == 'gpu.amd.com'"}}
    stack.api("POST", f"{base}/deviceclasses", {"metadata": {"name": "gpu.amd.com"}, "spec": {"selectors": [chosen]}})
    yield offer
    stack.api("DELETE", f"{base}/deviceclasses/gpu.amd.com")
    if written:
        stack.api("DELETE", f"{base}/resourceslices/gpus-{written}")


def test_the_real_scheduler_gives_each_replica_gpus_of_its_own_by_dra(
    stack: Stack, gpus: Callable[[int], None]
) -> None:
    gpus(3)
    stack.add_profile(devices={"deviceClassName": "gpu.amd.com"})
    stack.add(replicas=2)  # of two ranks each
    eventually(stack.says("Available", "True", "Serving"), "one replica got its GPUs")
    eventually(stack.says("PreflightPassed", "Unknown", "Unschedulable"), "the other one's lack is told")
    assert "cannot allocate all claims" in stack.conditions()["PreflightPassed"]["message"]
    gpus(4)
    eventually(stack.ready, "both have theirs", 40)

    def allocated() -> list[str]:
        claims = stack.api("GET", f"/apis/resource.k8s.io/v1/namespaces/{stack.namespace}/resourceclaims")["items"]
        results = [claim["status"]["allocation"]["devices"]["results"] for claim in claims]
        return sorted(result["device"] for each in results for result in each)

    assert allocated() == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]
    uids = {pod["metadata"]["uid"] for pod in stack.pods().values()}
    stack.edit({"engine.contextLength": 8192})
    eventually(stack.ready, "an edit of the engine keeps pods and claims")
    assert {pod["metadata"]["uid"] for pod in stack.pods().values()} == uids
    stack.edit({"parallelism": {"tensor": 4}, "replicas": 1})
    eventually(lambda: stack.ready() and len(allocated()) == 4, "a wider engine has a claim of four", 40)
    assert set(stack.pods()) == {"k3-0-1"}


@pytest.mark.parametrize("kind", NATIVE)
def test_a_foreign_object_is_told_never_touched_and_out_of_the_way_when_it_is_gone(stack: Stack, kind: str) -> None:
    path = CHILDREN[kind].path(stack.namespace)
    before = stack.api("POST", path, {"metadata": {"name": "k3"}, **FOREIGN[kind]})
    stack.add_profile(devices={"deviceClassName": "none"} if kind == "ResourceClaimTemplate" else None)
    stack.add(replicas=2)
    eventually(stack.says("ConfigValid", "False", "NameConflict"), "the conflict is told")
    assert f"{kind} 'k3' exists" in stack.conditions()["Ready"]["message"]
    now = stack.child(kind)
    assert now
    assert now["metadata"]["uid"] == before["metadata"]["uid"]
    assert "ownerReferences" not in now["metadata"]
    assert stack.pods() == {}
    stack.api("DELETE", f"{path}/k3")
    eventually(stack.says("ConfigValid", "True", "Valid"), "the name is free")


def test_a_drain_leaves_one_of_two_and_takes_the_only_one(stack: Stack) -> None:
    stack.add_profile()
    stack.add(replicas=2)
    eventually(stack.ready, "both are ready")

    def evict(name: str) -> int:
        path = f"/api/v1/namespaces/{stack.namespace}/pods/{name}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        try:
            stack.api("POST", path, body)
        except Refused as error:
            return error.status
        return 201

    def allowed() -> int:
        budget = stack.child("PodDisruptionBudget")
        return int((budget or {}).get("status", {}).get("disruptionsAllowed", 0))

    eventually(lambda: allowed() == 1, "the disruption controller has counted")
    assert [evict("k3-0-0"), evict("k3-1-0")] == [201, 429]
    eventually(lambda: stack.ready() and set(stack.pods()) == {"k3-0-1", "k3-1-0"}, "the evicted one is there again")
    stack.edit({"replicas": 1})
    eventually(lambda: stack.ready() and stack.child("PodDisruptionBudget") is None, "no budget at one")
    assert stack.conditions()["DisruptionProtected"]["reason"] == "NoBudget"
    assert evict("k3-0-1") == 201


def test_an_autoscaler_keeps_the_number_between_its_bounds(serving: Stack) -> None:
    """Without metrics it scales to its bounds only, which takes every step: scale, selector, ready replicas."""
    path = f"/apis/autoscaling/v2/namespaces/{serving.namespace}/horizontalpodautoscalers"
    page = (ROOT / "docs/howto/scale.md").read_text()
    body = yaml.safe_load(page.split("```yaml")[1].split("```")[0])
    body["spec"]["minReplicas"] = 2
    serving.api("POST", path, body)
    eventually(lambda: serving.ready() and len(serving.pods()) == 2, "it scales up to its minimum", 60)
    serving.edit({"engine.contextLength": 8192})
    eventually(serving.ready, "an edit of something else leaves the number alone")
    assert serving.get()["spec"]["replicas"] == 2
    serving.api("PATCH", f"{path}/k3", {"spec": {"minReplicas": 1, "maxReplicas": 1}}, MERGE)
    eventually(lambda: serving.ready() and set(serving.pods()) == {"k3-0-0"}, "it scales down to its maximum", 60)
    found = serving.api("GET", f"{path}/k3")["status"]["conditions"]
    assert {each["type"]: each["status"] for each in found}["AbleToScale"] == "True"


def test_restored_objects_of_an_owner_that_is_gone_are_collected_and_made_anew(serving: Stack) -> None:
    backup = [body for kind in NATIVE if (body := serving.child(kind))]
    pod = serving.pods()["k3-0-0"]
    serving.api("DELETE", serving.path("k3"))
    eventually(lambda: serving.gone() and not serving.everything(), "all is gone", COLLECTED)
    old = pod["metadata"]["uid"]
    for body in backup:
        serving.api("POST", CHILDREN[body["kind"]].path(serving.namespace), restored(body))
    pod["spec"] |= {"serviceAccountName": "default"}  # ours may be collected before the pod is admitted
    serving.api("POST", f"/api/v1/namespaces/{serving.namespace}/pods", restored(pod))
    serving.add()
    eventually(lambda: serving.ready() and all(map(ours(serving), serving.everything())), "all of it is ours", 60)
    assert old not in {each["metadata"]["uid"] for each in serving.pods().values()}


def restored(body: dict[str, Any]) -> dict[str, Any]:
    """As a backup tool writes it: without what the server gives, with the old owner."""
    kept = ("name", "labels", "annotations", "ownerReferences")
    spec = {
        key: value for key, value in body.get("spec", {}).items() if key not in ("clusterIP", "clusterIPs", "nodeName")
    }
    found = {**body, "metadata": {key: value for key, value in body["metadata"].items() if key in kept}}
    return {**found, "spec": spec} if spec else found


def ours(stack: Stack) -> Callable[[dict[str, Any]], bool]:
    uid = stack.get()["metadata"]["uid"]
    return lambda body: [owner["uid"] for owner in body["metadata"].get("ownerReferences", ())] == [uid]


def test_orphans_are_left_alone_until_they_are_handed_over_and_then_nothing_restarts(serving: Stack) -> None:
    before = serving.pods()["k3-0-0"]["metadata"]
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan"}
    serving.api("DELETE", serving.path("k3"), options)
    eventually(serving.gone, "the pods are orphans")
    assert "ownerReferences" not in serving.pods()["k3-0-0"]["metadata"]
    serving.add()
    eventually(serving.says("ConfigValid", "False", "NameConflict"), "the conflict is told")
    time.sleep(2)
    assert serving.pods()["k3-0-0"]["metadata"]["uid"] == before["uid"]
    uid = serving.get()["metadata"]["uid"]
    owner = {"apiVersion": "umbra.dev/v1alpha1", "kind": "K3Deployment", "name": "k3", "uid": uid}
    patch = {"metadata": {"ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}]}}
    for kind in NATIVE:
        if serving.child(kind):
            serving.api("PATCH", f"{CHILDREN[kind].path(serving.namespace)}/k3", patch, MERGE)
    serving.api("PATCH", f"/api/v1/namespaces/{serving.namespace}/pods/k3-0-0", patch, MERGE)
    eventually(serving.ready, "it serves under its new owner")
    after = serving.pods()
    assert {name: pod["metadata"]["uid"] for name, pod in after.items()} == {"k3-0-0": before["uid"]}
    assert after["k3-0-0"]["metadata"]["annotations"] == before["annotations"]


def test_a_replace_is_an_edit(serving: Stack) -> None:
    before = serving.pods()["k3-0-0"]["metadata"]["uid"]
    body = serving.get()
    body["spec"]["engine"] = {"contextLength": 8192}
    serving.control_plane.kubectl("replace", "-f", "-", stdin=json.dumps(body))
    eventually(serving.ready, "it is ready again")
    pod = serving.pods()["k3-0-0"]
    assert pod["metadata"]["uid"] == before
    assert '"--context-length","8192"' in pod["metadata"]["annotations"]["umbra.dev/launch"]


def test_every_child_is_there_ours_and_taken_along(stack: Stack) -> None:
    stack.add_profile()
    stack.add(replicas=2)
    eventually(stack.ready, "both are ready")
    uid = stack.get()["metadata"]["uid"]
    usual = [kind for kind in NATIVE if kind != "ResourceClaimTemplate"]
    for kind in usual:
        body = stack.child(kind)
        assert body
        assert [owner["uid"] for owner in body["metadata"]["ownerReferences"]] == [uid]
    assert {pod["spec"]["serviceAccountName"] for pod in stack.pods().values()} == {"k3"}
    stack.api("DELETE", stack.path("k3"))
    eventually(lambda: not any(stack.child(kind) for kind in NATIVE), "the garbage collector takes them", COLLECTED)


def test_a_foreign_pod_is_told_and_never_touched(stack: Stack) -> None:
    path = f"/api/v1/namespaces/{stack.namespace}/pods"
    foreign = {"metadata": {"name": "k3-0-0"}, "spec": {"containers": [{"name": "a", "image": "example.test/a"}]}}
    before = stack.api("POST", path, {**foreign, "spec": {**foreign["spec"], "schedulerName": "nobody"}})
    stack.add_profile()
    stack.add()
    eventually(stack.says("ConfigValid", "False", "NameConflict"), "the conflict is told")
    assert "pod 'k3-0-0' exists" in stack.conditions()["Ready"]["message"]
    assert stack.api("GET", f"{path}/k3-0-0")["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_children_deleted_or_edited_by_hand_come_back_with_the_next_resync(
    serving: Stack, operators: Operators
) -> None:
    operators.restart(UMBRA_RESYNC_SECONDS="10")
    eventually(lambda: operators.running.answers("/readyz") == 200, "the operator has listed everything")
    services = f"/api/v1/namespaces/{serving.namespace}/services/k3"
    policies = f"{CHILDREN['NetworkPolicy'].path(serving.namespace)}/k3"
    serving.api("DELETE", services)
    serving.api("PATCH", policies, {"spec": {"ingress": []}}, MERGE)
    eventually(lambda: len(serving.children("services")) == 1, "the Service is back")
    eventually(lambda: len(serving.api("GET", policies)["spec"].get("ingress", ())) == 2, "the policy is as it was")
    before = serving.versions()
    time.sleep(11)
    assert serving.versions() == before
    operators.restart()


def test_one_broken_object_does_not_stop_another_and_a_refusal_is_told(stack: Stack) -> None:
    stack.add_profile()
    stack.add("broken", placement={"tolerations": [{"operator": "Exists", "key": "k", "value": "not allowed"}]})
    stack.add("well")
    eventually(lambda: stack.ready("well"), "the other one is ready")
    eventually(stack.says("ConfigValid", "False", "WriteRefused", "broken"), "the refusal is told")
    assert "value must be empty" in stack.conditions("broken")["Ready"]["message"]


def test_a_webhook_that_is_down_is_told_and_nothing_else_waits_for_it(stack: Stack) -> None:
    base, name = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", f"{stack.namespace}.test"
    hook = {
        "name": "down.example.test",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stack.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    stack.api("POST", base, {"metadata": {"name": name}, "webhooks": [hook]})
    try:
        stack.add_profile()
        stack.add()
        eventually(stack.says("ConfigValid", "False", "WriteRefused"), "the webhook is told")
        assert 'failed calling webhook "down.example.test"' in stack.conditions()["ConfigValid"]["message"]
        assert stack.child("Service") is not None
    finally:
        stack.api("DELETE", f"{base}/{name}")
    eventually(stack.ready, "it is ready once the webhook is gone", 40)


def test_revoked_rights_and_their_return(serving: Stack, operators: Operators) -> None:
    revoke(serving.control_plane)
    try:
        serving.edit({"replicas": 2})
        time.sleep(4)
        assert operators.running.alive
        operators.restart()  # now its lists and watches are refused as well
        time.sleep(16)
        assert operators.running.alive
        assert len(serving.pods()) == 1
    finally:
        grant(serving.control_plane)
    eventually(lambda: serving.ready() and len(serving.pods()) == 2, "it goes on where it stood", 45)


def test_a_missing_kind_and_its_return(serving: Stack, operators: Operators) -> None:
    crds = serving.control_plane
    before = serving.pods()["k3-0-0"]["metadata"]["uid"]
    crds.kubectl("delete", "crd", "k3profiles.umbra.dev", "--timeout=20s")
    try:
        eventually(serving.says("ConfigValid", "False", "ProfileNotFound"), "the lost profile is told")
    finally:
        install_crds(crds)
    serving.add_profile()
    eventually(serving.ready, "the profile is back", 45)
    assert serving.pods()["k3-0-0"]["metadata"]["uid"] == before
    assert operators.running.alive


def test_crds_older_than_the_operator_are_told_and_stop_nothing(serving: Stack, operators: Operators) -> None:
    crds, uid = serving.control_plane, serving.pods()["k3-0-0"]["metadata"]["uid"]
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/podMetadata"
    patch = json.dumps([{"op": "remove", "path": path}])
    crds.kubectl("patch", "crd", "k3deployments.umbra.dev", "--type=json", "-p", patch)
    try:
        served = "/openapi/v3/apis/umbra.dev/v1alpha1"
        eventually(lambda: "podMetadata" not in crds.kubectl("get", "--raw", served), "the older schema is served")
        operators.restart()
        eventually(serving.says("SchemaCurrent", "False", "CRDOutdated"), "the older CRD is told")
        assert "K3Deployment spec.podMetadata; apply the CRDs" in serving.conditions()["SchemaCurrent"]["message"]
        assert operators.running.metric("umbra_operator_crd_lacking_fields") == 1
        assert operators.running.log.read_text().count("CRDOutdated: ") == 1
        assert serving.conditions()["Ready"]["status"] == "True"
        assert serving.pods()["k3-0-0"]["metadata"]["uid"] == uid
        serving.edit({"engine.contextLength": 8192})
        eventually(serving.ready, "edits go on")
    finally:
        install_crds(crds)
    eventually(lambda: "SchemaCurrent" not in serving.conditions(), "the new CRD is found without a restart", 40)
    assert operators.running.metric("umbra_operator_crd_lacking_fields") == 0


def test_an_optional_kind_that_comes_goes_and_comes_again(serving: Stack, operators: Operators) -> None:
    """The operator looks for it when it starts; losing it in the middle stops nothing."""
    crds, name = serving.control_plane, "crd/podmonitors.monitoring.coreos.com"

    def add() -> None:
        crds.kubectl("create", "-f", "-", stdin=json.dumps(POD_MONITOR_CRD))
        crds.kubectl("wait", "--for=condition=Established", name, "--timeout=20s")
        operators.restart()

    def monitored() -> bool:
        return serving.child("PodMonitor") is not None

    add()
    try:
        eventually(monitored, "the PodMonitor is made with the chart's rights")
        crds.kubectl("delete", name, "--timeout=20s")
        serving.edit({"replicas": 2, "engine.contextLength": 8192})
        eventually(lambda: serving.ready() and len(serving.pods()) == 2, "edits go on without the kind")
        assert operators.running.alive
        add()
        eventually(monitored, "it is made again")
        serving.edit({"replicas": 1})
        eventually(serving.ready, "one is ready")
    finally:
        crds.kubectl("delete", name, "--ignore-not-found", "--timeout=20s")
        operators.restart()


def test_one_namespace_with_rights_there_and_nowhere_else(serving: Stack, operators: Operators) -> None:
    revoke(serving.control_plane)
    grant(serving.control_plane, [serving.namespace])
    try:
        operators.restart(UMBRA_NAMESPACES=serving.namespace)
        serving.edit({"engine.contextLength": 8192, "replicas": 2})
        eventually(lambda: serving.ready() and len(serving.pods()) == 2, "both serve")
        serving.edit({"profileRef.name": "none-v1"})
        eventually(serving.says("ConfigValid", "False", "ProfileNotFound"), "the missing profile is told")
        serving.edit({"profileRef.name": serving.profile})
        eventually(serving.ready, "it is ready again")
        assert "forbidden" not in operators.tail()
        operators.restart(UMBRA_NAMESPACES=f"{serving.namespace},not-granted")
        serving.edit({"engine.contextLength": 4096})
        eventually(serving.ready, "a namespace without rights does not hold up the other")
        assert operators.running.answers("/readyz") == 200
        assert 'namespace \\"not-granted\\"; the rest goes on' in operators.running.log.read_text()
        child = serving.child("Service")
        assert child is not None
        serving.api("DELETE", f"{CHILDREN['Service'].path(serving.namespace)}/k3")
        eventually(lambda: serving.child("Service") is not None, "its children are still repaired", 35)
    finally:
        grant(serving.control_plane)
        operators.restart()


def test_it_ends_at_once_when_told(operators: Operators) -> None:
    time.sleep(3)
    assert operators.running.stop() < 2
    assert "Traceback" not in operators.tail()
    operators.restart()
