"""The door to the API against the real server: what each failure becomes, and that nothing is overwritten unseen."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from apiproxy import detour, proxied
from builders import deployment
from faultproxy import Answer, Match
from localcluster import probe
from localcluster.controlplane import ControlPlane
from operatorprocess import grant, kubeconfig
from umbra_operator import cluster, errors
from umbra_operator.cluster import DEPLOYMENTS, PODS, SERVICES, KubeCluster

pytestmark = pytest.mark.apiserver


@pytest.fixture
async def door(crds: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeCluster]:
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    connected = await KubeCluster.connect()
    yield connected
    await connected.close()


def service(namespace: str, name: str = "a", **spec: Any) -> dict[str, Any]:
    ports = {"ports": [{"name": "http", "port": 80}], **spec}
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": ports}


async def test_lists_come_whole_in_pages(
    door: KubeCluster, crds: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "CHUNK", 2)
    for name in "abcde":
        await door.create(SERVICES, service(namespace, name))
    found = [body["metadata"]["name"] async for body in door.list(SERVICES, namespace)]
    assert found == list("abcde")
    everywhere = [body["metadata"]["namespace"] async for body in door.list(SERVICES)]
    assert namespace in everywhere


async def test_what_is_absent_is_missing(door: KubeCluster, namespace: str) -> None:
    with pytest.raises(errors.Missing):
        await door.get(SERVICES, namespace, "a")
    with pytest.raises(errors.Missing):
        await door.delete(PODS, namespace, "a", "uid", "1")


async def test_a_taken_name_is_a_conflict(door: KubeCluster, namespace: str) -> None:
    await door.create(SERVICES, service(namespace))
    with pytest.raises(errors.Conflict, match="already exists"):
        await door.create(SERVICES, service(namespace))


async def test_what_the_server_finds_wrong_is_refused_with_its_sentence(door: KubeCluster, namespace: str) -> None:
    with pytest.raises(errors.Refused, match=r"spec.ports\[0\].port"):
        await door.create(SERVICES, service(namespace, ports=[{"port": 0}]))


async def test_only_the_object_that_was_seen_is_changed_or_deleted(door: KubeCluster, namespace: str) -> None:
    meta = (await door.create(SERVICES, service(namespace)))["metadata"]
    uid, version = meta["uid"], meta["resourceVersion"]
    for wrong in ({"uid": uid, "resourceVersion": "1"}, {"uid": uid[::-1], "resourceVersion": "1"}):
        with pytest.raises(errors.Conflict):
            await door.patch(SERVICES, namespace, "a", {"metadata": {**wrong, "labels": {"a": "b"}}})
        with pytest.raises(errors.Conflict):
            await door.delete(SERVICES, namespace, "a", wrong["uid"], wrong["resourceVersion"])
    right = {"uid": uid, "resourceVersion": version, "labels": {"a": "b"}}
    changed = await door.patch(SERVICES, namespace, "a", {"metadata": right})
    await door.delete(SERVICES, namespace, "a", uid, changed["metadata"]["resourceVersion"])


async def test_applying_the_same_again_writes_nothing(door: KubeCluster, namespace: str) -> None:
    first = await door.apply(SERVICES, service(namespace), "umbra")
    again = await door.apply(SERVICES, service(namespace), "umbra")
    assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]


async def test_the_status_is_applied_to_its_subresource_and_to_no_other_version(
    door: KubeCluster, namespace: str
) -> None:
    made = await door.create(DEPLOYMENTS, deployment(namespace=namespace))
    body = {**deployment(namespace=namespace), "status": {"replicas": 3}}
    del body["spec"]
    written = await door.apply(DEPLOYMENTS, body, "umbra-status", "status")
    assert (written["status"]["replicas"], written["spec"]) == (3, made["spec"])
    body["metadata"] = {**body["metadata"], "resourceVersion": made["metadata"]["resourceVersion"]}
    with pytest.raises(errors.Conflict):
        await door.apply(DEPLOYMENTS, body, "umbra-status", "status")


async def test_what_is_to_be_sent_later_is_not_sent_before_and_no_wait_is_endless(
    crds: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant(crds)
    with proxied(crds) as proxy:
        monkeypatch.setenv("KUBECONFIG", str(detour(kubeconfig(crds, tmp_path / "kubeconfig"), proxy)))
        door = await KubeCluster.connect()
        creates = Match({"create"}, resource="services", namespace=namespace)
        with proxy.failing(Answer(429, retry_after=1), creates, times=1):
            for told in ("injected", "asked to wait"):
                with pytest.raises(errors.ClusterUnavailable, match=told) as caught:
                    await door.create(SERVICES, service(namespace))
                assert 0 < caught.value.seconds <= 1
            assert len(proxy.requests(creates)) == 1
            await door.serves(SERVICES)  # nothing else has to wait
            await asyncio.sleep(1)
            await door.create(SERVICES, service(namespace))
        with proxy.failing(Answer(503, retry_after=3600), creates, times=1):
            with pytest.raises(errors.ClusterUnavailable) as caught:
                await door.create(SERVICES, service(namespace, "b"))
            assert caught.value.seconds == cluster.REQUEST_SECONDS
        await door.close()


async def test_a_server_that_is_not_there_is_unavailable(
    crds: ControlPlane, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = probe.free_ports(1)
    path = tmp_path / "kubeconfig"
    path.write_text(crds.kubeconfig.read_text().replace(crds.url, f"https://127.0.0.1:{port}"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    door = await KubeCluster.connect()
    with pytest.raises(errors.ClusterUnavailable):
        await door.get(SERVICES, "default", "a")
    await door.close()


async def test_no_kubeconfig_is_told_with_the_remedy(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(errors.ClusterUnavailable, match="set KUBECONFIG"):
        await KubeCluster.connect()
