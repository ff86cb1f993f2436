"""The administrator's patch: merged as the API server merges, and kept from what Umbra needs."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import NAME, NAMESPACE, deployment_spec, profile_spec
from localcluster.controlplane import ControlPlane
from umbra_operator.conditions import Reason
from umbra_operator.errors import SpecInvalid
from umbra_operator.render import podpatch
from umbra_operator.render.pods import pod
from umbra_operator.render.resolve import resolve
from umbra_operator.render.revision import Revision

ENGINE: dict[str, Any] = {"name": "engine"}


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{**ENGINE, **fields}]}}


MERGED: dict[str, dict[str, Any]] = {
    "a label and an annotation": {"metadata": {"labels": {"team": "b"}, "annotations": {"note": "c"}}},
    "a field": {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}},
    "a field removed": {"spec": {"enableServiceLinks": None}},
    "another container": {"spec": {"containers": [{"name": "sidecar", "image": "example.test/s"}]}},
    "a variable and a mount": {
        "spec": {
            "containers": [
                {
                    **ENGINE,
                    "env": [{"name": "RCCL_DEBUG", "value": "1"}],
                    "volumeMounts": [{"name": "ib", "mountPath": "/dev/infiniband"}],
                }
            ],
            "volumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}],
        }
    },
    "a volume": {"spec": {"volumes": [{"name": "ib", "hostPath": {"path": "/dev/infiniband"}}]}},
    "a list that is replaced": container(securityContext={"capabilities": {"add": ["SYS_ADMIN"]}}),
    "a resource": container(resources={"limits": {"example.test/rdma": "1"}, "requests": {"example.test/rdma": "1"}}),
    "two containers": {
        "spec": {
            "containers": [{**ENGINE, "tty": True}],
            "initContainers": [{"name": "store", "securityContext": {"privileged": True}}],
        }
    },
    "addresses": {"spec": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}},
    "tolerations": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "status": {"status": {}},
    "metadata.name": {"metadata": {"name": "x"}},
    "metadata.ownerReferences": {"metadata": {"ownerReferences": []}},
    "metadata.labels.umbra.dev/ordinal": {"metadata": {"labels": {"umbra.dev/ordinal": "7"}}},
    "metadata.annotations.umbra.dev/launch": {"metadata": {"annotations": {"umbra.dev/launch": None}}},
    "spec.restartPolicy": {"spec": {"restartPolicy": "Never"}},
    "spec.shareProcessNamespace": {"spec": {"shareProcessNamespace": False}},
    "spec.serviceAccountName": {"spec": {"serviceAccountName": "admin"}},
    "spec (it is not an object)": {"spec": []},
    "metadata.labels (it is not an object)": {"metadata": {"labels": None}},
    "spec.containers (it is not a list)": {"spec": {"containers": None}},
    "spec.volumes[sockets]": {"spec": {"volumes": [{"name": "sockets", "hostPath": {"path": "/"}}]}},
    "spec.resourceClaims[gpus]": {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimName": "x"}]}},
    "spec.containers[engine].image": container(image="x"),
    "spec.containers[engine].livenessProbe": container(livenessProbe={"httpGet": {"path": "/health"}}),
    "spec.containers[0].env (it is not a list)": container(env=None),
    "spec.containers[engine].env[PYTHONPATH]": container(env=[{"name": "PYTHONPATH", "value": "/x"}]),
    "spec.containers[engine].volumeMounts[/umbra]": container(volumeMounts=[{"name": "x", "mountPath": "/umbra"}]),
    "spec.containers[engine].volumeMounts[/x]": container(volumeMounts=[{"name": "kit", "mountPath": "/x"}]),
    "spec.initContainers[store].env[UMBP_DRAM_CAPACITY]": {
        "spec": {"initContainers": [{"name": "store", "env": [{"name": "UMBP_DRAM_CAPACITY", "value": "1"}]}]}
    },
    "spec.containers[0].$patch": container(**{"$patch": "delete"}),
    "spec.containers[0] (it names no name)": {"spec": {"containers": [{"image": "x"}]}},
}


def rendered(patch: dict[str, Any]) -> dict[str, Any]:
    resolved = resolve(deployment_spec(), profile_spec(podPatch=patch))
    return pod(resolved, Revision("a", "b", "c"), NAME, NAMESPACE, "uid", 0, 0)


@pytest.mark.parametrize("path", REFUSED)
def test_what_umbra_needs_is_refused_by_its_path(path: str) -> None:
    with pytest.raises(SpecInvalid) as caught:
        rendered(REFUSED[path])
    assert caught.value.reason == Reason.POD_PATCH_REFUSED
    assert f"remove {path};" in str(caught.value)


def test_the_patch_comes_last_and_its_source_stays_as_it_is() -> None:
    patch = container(securityContext={"privileged": True, "runAsUser": None})
    before = copy.deepcopy(patch)
    engine = rendered(patch)["spec"]["containers"][0]
    assert engine["securityContext"] == {
        "privileged": True,
        "capabilities": {"add": ["IPC_LOCK", "SYS_PTRACE"]},
    }
    assert patch == before


PLACES = ["metadata", "spec", "labels", "containers", "initContainers", "volumes", "env", "volumeMounts"]
FIELDS = ["name", "mountPath", "image", "$patch", "x"]
VALUES = ["engine", "store", "kit", "sockets", "/umbra", "PYTHONPATH", "umbra.dev/ordinal"]
WORDS = st.sampled_from([*PLACES, *FIELDS, *VALUES])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), JSON, max_size=2))
def test_whatever_is_written_is_refused_or_leaves_what_umbra_needs(patch: dict[str, Any]) -> None:
    plain = rendered({})
    try:
        found = rendered(patch)
    except SpecInvalid:
        return
    assert found["metadata"]["ownerReferences"] == plain["metadata"]["ownerReferences"]
    assert found["metadata"]["annotations"].items() >= plain["metadata"]["annotations"].items()
    for kind in ("initContainers", "containers"):
        own = {each["name"]: each for each in found["spec"][kind]}
        assert list(own)[: len(plain["spec"][kind])] == [each["name"] for each in plain["spec"][kind]]
        for each in plain["spec"][kind]:
            assert (own[each["name"]]["image"], own[each["name"]]["command"]) == (each["image"], each["command"])
            assert [
                mount for mount in each.get("volumeMounts", ()) if mount not in own[each["name"]]["volumeMounts"]
            ] == []


def by_name(node: Any) -> Any:
    """Lists of named things as mappings: their order is the API server's business."""
    if isinstance(node, dict):
        return {key: by_name(value) for key, value in node.items()}
    if isinstance(node, list):
        for key in ("name", "mountPath", "ip", "containerPort"):
            if node and all(isinstance(each, dict) and key in each for each in node):
                return {str(each[key]): by_name(each) for each in node}
        return [by_name(each) for each in node]
    return node


@pytest.mark.apiserver
@pytest.mark.parametrize("case", MERGED)
def test_the_api_server_merges_alike(control_plane: ControlPlane, namespace: str, case: str) -> None:
    """A PodTemplate holds what a pod holds, and can be patched."""

    def stored(body: dict[str, Any]) -> Any:
        template = {"metadata": body["metadata"], "spec": body["spec"]}
        for owned in ("name", "namespace", "ownerReferences"):
            template["metadata"] = {k: v for k, v in template["metadata"].items() if k != owned}
        whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": template}
        run = ("-n", namespace, "apply", "--server-side", "--force-conflicts", "-o", "json", "-f", "-")
        return json.loads(control_plane.kubectl(*run, stdin=json.dumps(whole)))["template"]

    ours = stored(rendered(MERGED[case]))
    control_plane.kubectl("-n", namespace, "delete", "podtemplate/t")
    stored(rendered({}))
    patch = json.dumps({"template": MERGED[case]})
    run = ("-n", namespace, "patch", "podtemplate/t", "--type=strategic", "-o", "json", "-p", patch)
    theirs = json.loads(control_plane.kubectl(*run))["template"]
    assert podpatch.refused(MERGED[case]) is None
    assert by_name(ours) == by_name(theirs)
