"""One pass against the real API server, where what the operator remembers is not what is there any more."""

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from builders import POD_MONITOR_CRD, deployment, profile, stored
from localcluster.controlplane import ControlPlane
from umbra_operator import errors
from umbra_operator.cluster import CHILDREN, DEPLOYMENTS, POD_MONITORS, PODS, SECRETS, SERVICES, KubeCluster, Resource
from umbra_operator.observe import Memory
from umbra_operator.poll import Poller
from umbra_operator.reconcile import ADMIN_KEY_BYTES, LOOK_AGAIN_SECONDS, STATUS_SECONDS, Reconciler
from umbra_operator.render import names
from umbra_operator.render.children import Facts
from umbra_operator.render.pods import GRACE_SECONDS

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def door(crds: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeCluster]:
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    connected = await KubeCluster.connect()
    yield connected
    await connected.close()


def reconciler(door: KubeCluster, memory: Memory) -> Reconciler:
    memory.put_profile(stored(profile(), "p1"))
    return Reconciler(door, memory, Poller(memory.pods, lambda _: None), lambda *_: None)


async def test_the_status_of_a_deleted_object_is_not_written_on_its_successor(
    door: KubeCluster, namespace: str
) -> None:
    memory = Memory()
    old = await door.create(DEPLOYMENTS, deployment(namespace=namespace))
    memory.put_deployment(old)
    meta = old["metadata"]
    await door.delete(DEPLOYMENTS, namespace, "k3", meta["uid"], meta["resourceVersion"])
    await door.create(DEPLOYMENTS, deployment(namespace=namespace))
    with pytest.raises(errors.Conflict):
        await reconciler(door, memory).reconcile((namespace, "k3"))
    assert "status" not in await door.get(DEPLOYMENTS, namespace, "k3")


async def test_a_pod_of_ours_that_was_not_seen_yet_is_found_and_not_made_twice(
    door: KubeCluster, namespace: str
) -> None:
    made = await door.create(DEPLOYMENTS, deployment(namespace=namespace))
    for memory in (Memory(), Memory()):  # the second one remembers no pod
        memory.put_deployment(await door.get(DEPLOYMENTS, namespace, "k3"))
        await reconciler(door, memory).reconcile((namespace, "k3"))
        assert [pod.name for pod in memory.pods()] == ["k3-0-0"]
    assert [pod["metadata"]["name"] async for pod in door.list(PODS, namespace)] == ["k3-0-0"]
    assert (await door.get(DEPLOYMENTS, namespace, "k3"))["status"]["replicas"] == 1
    assert made["metadata"]["uid"]


async def test_the_admin_key_is_random_made_once_and_goes_with_the_deployment(
    door: KubeCluster, namespace: str
) -> None:
    made = await door.create(DEPLOYMENTS, deployment(namespace=namespace))
    keys = []
    for memory in (Memory(), Memory()):  # the second one remembers no pod, and makes it again
        memory.put_deployment(await door.get(DEPLOYMENTS, namespace, "k3"))
        await reconciler(door, memory).reconcile((namespace, "k3"))
        held = await door.get(SECRETS, namespace, names.admin_key_secret("k3", made["metadata"]["uid"]))
        keys.append(base64.b64decode(held["data"]["key"]))
    assert keys[0] == keys[1]
    assert len(keys[0]) >= ADMIN_KEY_BYTES
    assert [owner["uid"] for owner in held["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]


async def test_no_pod_is_made_that_would_wait_for_its_admin_key(door: KubeCluster, namespace: str) -> None:
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    quota = {"metadata": {"name": "none", "namespace": namespace}, "spec": {"hard": {"count/secrets": "0"}}}
    await door.create(Resource("/api/v1", "resourcequotas"), quota)
    with pytest.raises(errors.Refused, match="quota"):
        await reconciler(door, memory).reconcile((namespace, "k3"))
    assert [pod async for pod in door.list(PODS, namespace)] == []


async def test_a_foreign_service_is_looked_at_again_until_it_is_gone(door: KubeCluster, namespace: str) -> None:
    foreign = {"metadata": {"name": "k3", "namespace": namespace}, "spec": {"ports": [{"port": 1}]}}
    held = (await door.create(SERVICES, foreign))["metadata"]
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    passes = reconciler(door, memory)
    assert await passes.reconcile((namespace, "k3")) == LOOK_AGAIN_SECONDS
    await door.delete(SERVICES, namespace, "k3", held["uid"], held["resourceVersion"])
    assert await passes.reconcile((namespace, "k3")) is None
    assert (await door.get(SERVICES, namespace, "k3"))["metadata"]["uid"] != held["uid"]


async def test_an_account_deleted_by_hand_does_not_keep_pods_from_being_made(door: KubeCluster, namespace: str) -> None:
    key, accounts = (namespace, "k3"), CHILDREN["ServiceAccount"]
    memory = Memory()

    async def delete(resource: Resource, name: str) -> None:
        """By hand, whatever version the scheduler has made of it meanwhile."""
        while True:
            meta = (await door.get(resource, namespace, name))["metadata"]
            try:
                await door.delete(resource, namespace, name, meta["uid"], meta["resourceVersion"])
            except errors.Conflict:
                continue
            if resource is PODS:
                memory.drop_pod({"metadata": meta})
            return

    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    passes = reconciler(door, memory)
    await passes.reconcile(key)
    await delete(PODS, "k3-0-0")
    await delete(accounts, "k3")
    with pytest.raises(errors.Refused, match='serviceaccount "k3" not found'):
        for _ in range(20):  # the API server may still remember the account
            await passes.reconcile(key)
            await delete(PODS, "k3-0-0")
            await asyncio.sleep(0.1)
    await passes.reconcile(key)
    assert (await door.get(accounts, namespace, "k3"))["metadata"]["ownerReferences"]
    assert [pod.name for pod in memory.pods()] == ["k3-0-0"]


async def test_a_deleted_pod_has_its_whole_grace_for_the_drain(door: KubeCluster, namespace: str) -> None:
    """Scaling down sends no grace of its own: the engine drains as long as its launch document says."""
    key = (namespace, "k3")
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    passes = reconciler(door, memory)
    await passes.reconcile(key)
    binding = {"metadata": {"name": "k3-0-0", "namespace": namespace}, "target": {"kind": "Node", "name": "nowhere"}}
    await door.create(Resource("/api/v1", "bindings"), binding)
    memory.put_pod(await door.get(PODS, namespace, "k3-0-0"))
    made = memory.deployments[key]
    await door.apply(DEPLOYMENTS, deployment(namespace=namespace, replicas=0), "test")
    memory.put_deployment(await door.get(DEPLOYMENTS, namespace, "k3"))
    assert memory.deployments[key].generation > made.generation
    await passes.reconcile(key)
    meta = (await door.get(PODS, namespace, "k3-0-0"))["metadata"]
    assert meta["deletionGracePeriodSeconds"] == GRACE_SECONDS
    # No kubelet will ever say that it has ended.
    options = {"gracePeriodSeconds": 0, "apiVersion": "v1", "kind": "DeleteOptions"}
    await door._request("DELETE", PODS, namespace, "k3-0-0", body=options)


async def test_a_misspelt_field_of_an_affinity_is_told(door: KubeCluster, namespace: str) -> None:
    memory = Memory()
    body = deployment(namespace=namespace, placement__affinity={"nodeAffinity": {"required": {}}})
    memory.put_deployment(await door.create(DEPLOYMENTS, body))
    with pytest.raises(errors.Refused, match=r'unknown field "spec.affinity.nodeAffinity.required"'):
        await reconciler(door, memory).reconcile((namespace, "k3"))
    conditions = (await door.get(DEPLOYMENTS, namespace, "k3"))["status"]["conditions"]
    assert {each["reason"] for each in conditions if each["type"] == "Ready"} == {"WriteRefused"}


async def test_a_refused_disruption_budget_holds_back_no_engine(
    door: KubeCluster, namespace: str, crds: ControlPlane
) -> None:
    hard = {"count/poddisruptionbudgets.policy": "0"}
    quota = {"metadata": {"name": "none", "namespace": namespace}, "spec": {"hard": hard}}
    await door.create(Resource("/api/v1", "resourcequotas"), quota)
    crds.kubectl("-n", namespace, "wait", "quota/none", "--for=jsonpath={.status.hard}", "--timeout=30s")
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace, replicas=2)))
    with pytest.raises(errors.Refused, match="exceeded quota"):
        await reconciler(door, memory).reconcile((namespace, "k3"))
    assert {pod["metadata"]["name"] async for pod in door.list(PODS, namespace)} == {"k3-0-0", "k3-1-0"}
    conditions = (await door.get(DEPLOYMENTS, namespace, "k3"))["status"]["conditions"]
    ready = next(each for each in conditions if each["type"] == "Ready")
    assert ready["reason"] == "WriteRefused"
    assert "exceeded quota" in ready["message"]


async def test_a_foreign_pod_holds_back_only_the_replica_whose_name_it_has(door: KubeCluster, namespace: str) -> None:
    spec = {"containers": [{"name": "a", "image": "example.test/a"}]}
    await door.create(PODS, {"metadata": {"name": "k3-0-0", "namespace": namespace}, "spec": spec})
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace, replicas=2)))
    assert await reconciler(door, memory).reconcile((namespace, "k3")) == LOOK_AGAIN_SECONDS
    assert [pod.name for pod in memory.pods()] == ["k3-1-0"]


async def test_a_launch_document_that_somebody_takes_back_is_not_given_without_a_pause(
    door: KubeCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = (namespace, "k3")
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    passes = reconciler(door, memory)
    await passes.reconcile(key)
    edited = deployment(namespace=namespace, engine__contextLength=4096)
    memory.put_deployment(await door.apply(DEPLOYMENTS, edited, "test"))

    async def reverted(resource: Resource, namespace: str, name: str, body: object) -> object:
        return await door.get(resource, namespace, name)

    monkeypatch.setattr(door, "patch", reverted)
    assert await passes.reconcile(key) == LOOK_AGAIN_SECONDS


async def test_a_child_that_was_replaced_behind_our_back_is_told_and_not_applied_over(
    door: KubeCluster, namespace: str
) -> None:
    key = (namespace, "k3")
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    passes = reconciler(door, memory)
    await passes.reconcile(key)
    ours = (await door.get(SERVICES, namespace, "k3"))["metadata"]
    await door.delete(SERVICES, namespace, "k3", ours["uid"], ours["resourceVersion"])
    theirs = await door.create(
        SERVICES, {"metadata": {"name": "k3", "namespace": namespace}, "spec": {"ports": [{"port": 1}]}}
    )
    held = memory.children_of(key)
    body = {"metadata": {**ours, "annotations": {}}}
    memory.put_child("Service", body)  # an operator with another opinion about the Service would apply it again
    assert held != memory.children_of(key)
    assert await passes.reconcile(key) == LOOK_AGAIN_SECONDS
    now = await door.get(SERVICES, namespace, "k3")
    assert now["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]


async def test_an_edit_while_no_operator_ran_is_undone_and_what_was_added_stays(
    door: KubeCluster, namespace: str
) -> None:
    async def started() -> Memory:
        """What a new operator remembers after its first lists."""
        memory = Memory()
        memory.put_deployment(await door.get(DEPLOYMENTS, namespace, "k3"))
        memory.put_pod(await door.get(PODS, namespace, "k3-0-0"))
        repair = memory.repair()
        for kind in ("ServiceAccount", "Service", "NetworkPolicy"):
            repair.child(kind, await door.get(CHILDREN[kind], namespace, "k3"))
        return memory

    key, first = (namespace, "k3"), Memory()
    first.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    await reconciler(door, first).reconcile(key)
    made = await door.get(SERVICES, namespace, "k3")
    added = {"labels": {"team": "a"}, "annotations": {"note": "b"}}
    edit = {"spec": {"selector": {"app": "other"}, "sessionAffinity": "ClientIP"}, "metadata": added}
    await door.patch(SERVICES, namespace, "k3", edit)
    await reconciler(door, await started()).reconcile(key)
    after = await door.get(SERVICES, namespace, "k3")
    assert after["spec"]["selector"] == made["spec"]["selector"]
    assert after["spec"]["sessionAffinity"] == "ClientIP"
    assert after["metadata"]["labels"] == {**made["metadata"]["labels"], "team": "a"}
    assert after["metadata"]["annotations"] == {**made["metadata"]["annotations"], "note": "b"}
    for memory in (await started(), await started()):
        await reconciler(door, memory).reconcile(key)
    assert await door.get(SERVICES, namespace, "k3") == after


@pytest.mark.parametrize("kind", [kind for kind in CHILDREN if kind not in ("PodMonitor", "ResourceClaimTemplate")])
async def test_a_child_without_its_labels_gets_them_back(door: KubeCluster, namespace: str, kind: str) -> None:
    key = (namespace, "k3")
    memory = Memory()
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace, replicas=2)))
    passes = reconciler(door, memory)
    await passes.reconcile(key)
    patch = {"metadata": {"labels": {names.LABEL_DEPLOYMENT: None, "foreign": "stays"}}}
    bare = await door.patch(CHILDREN[kind], namespace, "k3", patch)
    assert names.LABEL_DEPLOYMENT not in bare["metadata"]["labels"]
    memory.drop_child(key, kind)  # as the list by labels will not have it
    await passes.reconcile(key)
    labels = (await door.get(CHILDREN[kind], namespace, "k3"))["metadata"]["labels"]
    assert (labels[names.LABEL_DEPLOYMENT], labels["foreign"]) == ("k3", "stays")


async def test_a_cluster_that_loses_an_optional_kind_is_served_without_it(door: KubeCluster, namespace: str) -> None:
    memory = Memory(Facts(pod_monitors=True))
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    passes = reconciler(door, memory)
    await passes.reconcile((namespace, "k3"))
    assert memory.facts == Facts()
    assert [pod.name for pod in memory.pods()] == ["k3-0-0"]


async def test_a_pod_monitor_where_the_cluster_has_the_kind(
    door: KubeCluster, crds: ControlPlane, namespace: str
) -> None:
    assert await door.serves(POD_MONITORS) is False
    crds.kubectl("create", "-f", "-", stdin=json.dumps(POD_MONITOR_CRD))
    try:
        crds.kubectl("wait", "--for=condition=Established", "crd/podmonitors.monitoring.coreos.com", "--timeout=20s")
        assert await door.serves(POD_MONITORS)
        memory = Memory(Facts(pod_monitors=True))
        memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
        await reconciler(door, memory).reconcile((namespace, "k3"))
        body = await door.get(POD_MONITORS, namespace, "k3")
        assert [each["port"] for each in body["spec"]["podMetricsEndpoints"]] == ["http", "agent", "store-agent"]
    finally:
        crds.kubectl("delete", "crd", "podmonitors.monitoring.coreos.com")


async def test_the_stages_of_a_start_are_told_together(door: KubeCluster, namespace: str) -> None:
    key, memory, seconds = (namespace, "k3"), Memory(), 0.0
    memory.put_profile(stored(profile(), "p1"))
    passes = Reconciler(door, memory, Poller(memory.pods, lambda _: None), lambda *_: None, clock=lambda: seconds)
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace)))
    assert await passes.reconcile(key) is None
    written = memory.deployments[key].resource_version
    binding = {"metadata": {"name": "k3-0-0", "namespace": namespace}, "target": {"kind": "Node", "name": "nowhere"}}
    await door.create(Resource("/api/v1", "bindings"), binding)
    memory.put_pod(await door.get(PODS, namespace, "k3-0-0"))
    seconds = 0.5
    assert await passes.reconcile(key) == STATUS_SECONDS - 0.5
    assert memory.deployments[key].resource_version == written
    seconds = STATUS_SECONDS
    assert await passes.reconcile(key) is None
    assert memory.deployments[key].status["pods"][0]["node"] == "nowhere"
    # No kubelet will ever say that it has ended.
    options = {"gracePeriodSeconds": 0, "apiVersion": "v1", "kind": "DeleteOptions"}
    await door._request("DELETE", PODS, namespace, "k3-0-0", body=options)


async def test_an_object_that_is_gone_needs_nothing(door: KubeCluster, namespace: str) -> None:
    assert await reconciler(door, Memory()).reconcile((namespace, "k3")) is None


async def passed(passes: Reconciler, door: KubeCluster, memory: Memory, namespace: str) -> float | None:
    """One pass that knows every pod as it is: others write to pods too, of which a watch would tell an operator."""
    for _ in range(5):
        try:
            return await passes.reconcile((namespace, "k3"))
        except errors.Conflict:
            async for pod in door.list(PODS, namespace):
                memory.put_pod(pod)
    raise AssertionError("somebody writes to the pods again and again")


async def test_a_pod_that_the_node_ends_goes_when_its_successor_is_there(door: KubeCluster, namespace: str) -> None:
    memory = Memory()
    recovery = {"maxRestarts": 1}
    memory.put_deployment(await door.create(DEPLOYMENTS, deployment(namespace=namespace, recovery=recovery)))
    # A status may wait for its turn; here it never does.
    passes = Reconciler(
        door, memory, Poller(memory.pods, lambda _: None), lambda *_: None, clock=itertools.count(0, 60).__next__
    )
    memory.put_profile(stored(profile(), "p1"))
    await passed(passes, door, memory, namespace)

    async def ends(name: str) -> None:
        evicted = {
            "phase": "Failed",
            "reason": "Evicted",
            "message": "low on memory",
            "startTime": "2026-12-02T07:00:00Z",
        }
        kind = "application/strategic-merge-patch+json"
        body = {"status": evicted}
        memory.put_pod(await door._request("PATCH", PODS, namespace, name, "status", body=body, content_type=kind))

    await ends("k3-0-0")
    assert await passed(passes, door, memory, namespace) == 0.0, "the ended one is to go now"
    status = (await door.get(DEPLOYMENTS, namespace, "k3"))["status"]
    assert [pod["name"] for pod in status["pods"]] == ["k3-0-1"]
    await passed(passes, door, memory, namespace)
    (left,) = [pod async for pod in door.list(PODS, namespace)]
    assert left["metadata"]["name"] == "k3-0-1"
    memory.forget_pod(next(pod for pod in memory.pods() if pod.name == "k3-0-0"))
    await ends("k3-0-1")
    assert await passed(passes, door, memory, namespace) is None
    conditions = (await door.get(DEPLOYMENTS, namespace, "k3"))["status"]["conditions"]
    assert "RecoveryStopped" in [condition["reason"] for condition in conditions]


async def test_what_act_changed_reaches_the_pods_and_goes_when_the_user_says_advise(
    door: KubeCluster, namespace: str
) -> None:
    memory = Memory()
    body = deployment(namespace=namespace, autonomy="Act", cache__policy={"touch": {"mode": "Off"}})
    made = await door.create(DEPLOYMENTS, body)
    # As an operator left it that ended since: this one has measured nothing.
    times = {"since": "2026-12-02T07:00:00Z", "expiresAt": "2126-12-02T07:00:00Z"}
    override = {"setting": "cache.policy.touch.mode", "value": "Auto", "message": "it was told", **times}
    made["status"] = {"overrides": [override]}
    memory.put_deployment(made)
    passes = reconciler(door, memory)

    async def reconciled() -> tuple[str, Any]:
        await passed(passes, door, memory, namespace)
        pod, held = await door.get(PODS, namespace, "k3-0-0"), await door.get(DEPLOYMENTS, namespace, "k3")
        live = json.loads(pod["metadata"]["annotations"][names.ANNOTATION_LAUNCH])["live"]
        assert held["spec"]["cache"]["policy"] == {"touch": {"mode": "Off"}}, "the spec is the user's"
        return live["touch"], held["status"].get("overrides")

    assert await reconciled() == ("Auto", [override])
    kind, advise = "application/merge-patch+json", {"spec": {"autonomy": "Advise"}}
    memory.put_deployment(await door._request("PATCH", DEPLOYMENTS, namespace, "k3", body=advise, content_type=kind))
    assert await reconciled() == ("Off", None)
