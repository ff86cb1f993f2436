"""`make up` again, on a cluster that runs and holds a user's own objects."""

import base64
import gzip
import json
from collections.abc import Sequence

import pytest

import localstack.__main__ as command
from figures import Figure
from localcluster.cluster import Cluster
from localcluster.progress import Progress
from localstack import product, profile
from localstack.product import NAME, NAMESPACE, RELEASE, SYSTEM_NAMESPACE, Stack

pytestmark = [pytest.mark.kubelet, pytest.mark.engine, pytest.mark.timeout(900)]

OLD, UNUSED, OTHER = "local-old-v1", "local-unused-v1", "other"


def test_make_up_again_proves_a_restore_and_keeps_what_a_user_runs(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = stack.cluster
    body = json.loads(cluster.kubectl("get", "k3profile", stack.profile_name, "-o", "json"))
    for name in (OLD, UNUSED):
        metadata = {"name": name, "labels": {profile.LABEL: "true"}}
        product.apply(cluster, {**{key: body[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata})
    other = profile.deployment(OTHER, OLD, stack.environment)
    product.apply(cluster, {**other, "spec": {**other["spec"], "replicas": 0}}, "default")
    leave_unfinished(cluster)
    engine_before = stack.pods()[0]["metadata"]["uid"]
    figures: dict[str, float] = {}

    def keep(_: str, found: Sequence[Figure]) -> None:
        figures.update({each.name: each.value for each in found})

    monkeypatch.setattr(command, "report", keep)
    monkeypatch.setenv("UMBRA_CLUSTER", cluster.layout.directory.name.removeprefix("cluster-"))
    try:
        command.up(Progress())
        summary = capsys.readouterr().out
        left = cluster.kubectl("get", "k3profiles", "-o", "jsonpath={.items[*].metadata.name}").split()
    finally:
        cluster.kubectl("-n", "default", "delete", "k3deployment", OTHER, "--wait=true")
        cluster.kubectl("delete", "k3profile", OLD, UNUSED, "--ignore-not-found")
    assert OLD in left
    assert UNUSED not in left
    assert stack.pods()[0]["metadata"]["uid"] == engine_before
    assert "cached tokens 320 from the device, 320 from the store" in summary
    assert f"kubectl -n {NAMESPACE} describe k3 {NAME}" in summary
    assert str(cluster.kubeconfig) in summary
    assert set(figures) == {"up_s", "cr_to_ready_s", "engine_boot_s", "restore_request_s"}
    assert figures["restore_request_s"] <= figures["up_s"]


def leave_unfinished(cluster: Cluster) -> None:
    """What a killed Helm leaves: the Secret of a release that is being upgraded, whose text is packed three times."""
    namespace = ("-n", SYSTEM_NAMESPACE)
    listed = json.loads(cluster.kubectl(*namespace, "get", "secrets", "-l", f"owner=helm,name={RELEASE}", "-o", "json"))
    last = max(listed["items"], key=lambda secret: int(secret["metadata"]["labels"]["version"]))
    release = json.loads(gzip.decompress(base64.b64decode(base64.b64decode(last["data"]["release"]))))
    release["version"] += 1
    release["info"]["status"] = "pending-upgrade"
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
    labels = {**last["metadata"]["labels"], "status": "pending-upgrade", "version": str(release["version"])}
    name = f"sh.helm.release.v1.{RELEASE}.v{release['version']}"
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}, "type": last["type"]}
    cluster.kubectl(*namespace, "create", "-f", "-", stdin=json.dumps({**secret, "data": {"release": packed}}))
