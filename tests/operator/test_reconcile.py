"""One pass against the real API server, where what the operator remembers is not what is there any more."""

from collections.abc import AsyncIterator

import pytest

from builders import deployment, profile, stored
from localcluster.controlplane import ControlPlane
from umbra_operator import errors
from umbra_operator.cluster import DEPLOYMENTS, PODS, SERVICES, KubeCluster
from umbra_operator.observe import Memory
from umbra_operator.poll import Poller
from umbra_operator.reconcile import LOOK_AGAIN_SECONDS, Reconciler

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def door(crds: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeCluster]:
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    connected = await KubeCluster.connect()
    yield connected
    await connected.close()


def reconciler(door: KubeCluster, memory: Memory) -> Reconciler:
    memory.put_profile(stored(profile(), "p1"))
    return Reconciler(door, memory, Poller(memory.pods, lambda _: None))


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


async def test_an_object_that_is_gone_needs_nothing(door: KubeCluster, namespace: str) -> None:
    assert await reconciler(door, Memory()).reconcile((namespace, "k3")) is None
