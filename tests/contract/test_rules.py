"""Every rule of the API against the real API server: what it accepts, what it refuses, and with which sentence."""

import copy
import json
from typing import Any

import pytest
import yaml

from builders import DEPLOYMENT_SPEC, PROFILE_SPEC, deployment, profile
from localcluster.controlplane import ControlPlane
from localcluster.errors import ClusterError
from product import CRDS, create, refusal
from umbra_operator.api.v1alpha1 import KINDS
from umbra_operator.codegen.crd import structural

pytestmark = pytest.mark.apiserver

DSPARK = {"type": "DSPARK", "dspark": {"draft": "draft"}}
PVC = {"claimName": "weights"}
BLOCK = {"cidr": "fd00::/8", "except": ["fd00:1::/32"]}
NODE = {"root": "weights", "path": "k3"}

ACCEPTED: dict[str, dict[str, Any]] = {
    "smallest": {},
    "DCP divides TP": {"parallelism": {"tensor": 8, "decodeContext": 4}},
    "DCP alone": {"parallelism": {"decodeContext": 3}},
    "DSPARK": {"speculation": DSPARK},
    "DSPARK and DCP 1": {"speculation": DSPARK, "parallelism": {"tensor": 8, "decodeContext": 1}},
    "DCP and no speculation": {"speculation": {"type": "None"}, "parallelism": {"tensor": 8, "decodeContext": 8}},
    "DCP and a chunk of one page": {
        "parallelism": {"tensor": 8, "decodeContext": 8},
        "engine__chunkedPrefillSize": 512,
    },
    "claim": {"model__source": {"type": "PersistentVolumeClaim", "persistentVolumeClaim": PVC}},
    "claim with a path": {
        "model__source": {"type": "PersistentVolumeClaim", "persistentVolumeClaim": {**PVC, "path": "a/b..c"}}
    },
    "watermarks": {"cache__watermarks": {"highPercent": 2, "lowPercent": 1}},
    "peers": {"network__from": [{"podSelector": {}}, {"namespaceSelector": {}, "podSelector": {}}, {"ipBlock": BLOCK}]},
    "affinity": {"placement__affinity": {"nodeAffinity": {"a": [1]}}},
    "huge pages": {"cache__dram": {"size": "1Gi", "hugepages": "2Mi", "numaNodes": [0, 1]}},
    "touch and rewriting": {"cache__policy": {"touch": {"mode": "Auto"}, "rewriteMissing": "Enabled"}},
    "neither": {"cache__policy": {"touch": {"mode": "Off"}, "rewriteMissing": "Disabled"}},
    "no touch": {"cache__policy": {"touch": {"mode": "Off"}}},
    "touch unset": {"cache__policy": {"touch": {"intervalSeconds": 60}, "rewriteMissing": "Enabled"}},
    "no peers": {"network__from": [], "network__metricsFrom": []},
    "sizes": {"cache__dram__size": "1160Gi"},
    "the largest store": {"cache__dram__size": "128Ti"},
}
MEMBER, DRAFT = "set exactly the member that type names", "set dspark when type is DSPARK, and only then"
RELATIVE, DIVIDE = "path must be relative and must not contain '..'", "decodeContext must divide tensor"
ORDER, TOGETHER = "highPercent must be greater than lowPercent", "DSPARK cannot be combined with"
CHUNK = "engine.chunkedPrefillSize must be at least 64 tokens times parallelism.decodeContext"
PEER, RANGE = "set either ipBlock, or podSelector and namespaceSelector", "cidr must be a range such as 10.0.0.0/8"
TOUCH = "rewriteMissing needs touch"
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "DCP does not divide TP": ({"parallelism": {"tensor": 8, "decodeContext": 3}}, DIVIDE),
    "DSPARK and DCP": ({"speculation": DSPARK, "parallelism": {"tensor": 8, "decodeContext": 2}}, TOGETHER),
    "DCP and a short chunk": (
        {"parallelism": {"tensor": 8, "decodeContext": 8}, "engine__chunkedPrefillSize": 511},
        CHUNK,
    ),
    "DSPARK without settings": ({"speculation": {"type": "DSPARK"}}, DRAFT),
    "settings without DSPARK": ({"speculation": {"dspark": {"draft": "draft"}}}, DRAFT),
    "two sources": ({"model__source": {"type": "NodePath", "nodePath": NODE, "persistentVolumeClaim": PVC}}, MEMBER),
    "no source": ({"model__source": {"type": "PersistentVolumeClaim"}}, MEMBER),
    "the other source": ({"model__source": {"type": "NodePath", "persistentVolumeClaim": PVC}}, MEMBER),
    "absolute path": ({"model__source__nodePath__path": "/etc"}, RELATIVE),
    "path that leaves": ({"model__source__nodePath__path": "a/../../b"}, RELATIVE),
    "claim path that leaves": (
        {"model__source": {"type": "PersistentVolumeClaim", "persistentVolumeClaim": {**PVC, "path": ".."}}},
        RELATIVE,
    ),
    "draft that leaves": ({"speculation": {"type": "DSPARK", "dspark": {"draft": "../x"}}}, RELATIVE),
    "equal watermarks": ({"cache__watermarks": {"highPercent": 70, "lowPercent": 70}}, ORDER),
    "crossed watermarks": ({"cache__watermarks": {"highPercent": 60, "lowPercent": 70}}, ORDER),
    "rewriting without touch": ({"cache__policy": {"touch": {"mode": "Off"}, "rewriteMissing": "Enabled"}}, TOUCH),
    "no such policy": ({"cache__policy": {"checkpoints": "Few"}}, "spec.cache.policy.checkpoints"),
    "fraction of a size": ({"cache__dram__size": "1.5Ti"}, "spec.cache.dram.size"),
    "more than any node has": ({"cache__dram__size": "129Ti"}, "must be at most 128Ti"),
    "unknown field": ({"cache__dram__sizes": "1Gi"}, "unknown field"),
    "peer without a member": ({"network__from": [{}]}, PEER),
    "peer with all": ({"network__metricsFrom": [{"podSelector": {}, "ipBlock": BLOCK}]}, PEER),
    "no range": ({"network__from": [{"ipBlock": {"cidr": "10.0.0.0"}}]}, RANGE),
    "a NUMA node twice": ({"cache__dram__numaNodes": [1, 1]}, "Duplicate value"),
    "no change id": ({"rollout__acknowledgedChange": "yes"}, "spec.rollout.acknowledgedChange"),
    "no replica may be down": ({"rollout__maxUnavailable": 0}, "spec.rollout.maxUnavailable"),
    "another role": ({"role": "Prefill"}, "spec.role"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(crds: ControlPlane, case: str) -> None:
    assert refusal(crds, deployment(namespace="default", **ACCEPTED[case])) is None


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_its_sentence(crds: ControlPlane, case: str) -> None:
    edits, sentence = REFUSED[case]
    assert sentence in (refusal(crds, deployment(namespace="default", **edits)) or "accepted")


OFFER = "set resourceName for a device plugin, deviceClassName for DRA, or both"
LETTER = "must begin with a letter"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("a" * 40, None), ("a" * 41, "at most 40 characters"), ("k3-a", None), ("1a", LETTER), ("a.b", LETTER)],
)
def test_names_of_deployments(crds: ControlPlane, name: str, sentence: str | None) -> None:
    found = refusal(crds, deployment(name, "default"))
    assert (found is None) if sentence is None else sentence in (found or "accepted")


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("mi355x-tp8-v1", True), ("a-v10", True), ("mi355x", False), ("a-v", False), ("a-v1-beta", False)],
)
def test_names_of_profiles_end_in_a_version(crds: ControlPlane, name: str, accepted: bool) -> None:
    found = refusal(crds, profile(name))
    assert (found is None) if accepted else "must end in a content version such as -v1" in (found or "accepted")


def test_the_longest_name_of_a_host_mount_makes_a_volume_and_a_longer_one_is_refused(crds: ControlPlane) -> None:
    for length, accepted in ((58, True), (59, False)):
        mount = {"name": "m" * length, "hostPath": "/a", "mountPath": "/b"}
        assert (refusal(crds, profile(hostMounts=[mount])) is None) is accepted


def test_devices_are_offered_in_one_way_at_least(crds: ControlPlane) -> None:
    assert OFFER in (refusal(crds, profile(devices={})) or "accepted")
    for devices in ({"resourceName": "a"}, {"deviceClassName": "a"}, {"resourceName": "a", "deviceClassName": "b"}):
        assert refusal(crds, profile(devices=devices)) is None


IMAGE = "image must be NAME, NAME:TAG or NAME@sha256:DIGEST"
DIGEST = "@sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize("part", ["engine", "store", "kit"])
def test_an_image_is_one_that_can_be_pulled(crds: ControlPlane, part: str) -> None:
    for name in ("sglang", "127.0.0.1:5000/a/b_c.d-e:v1.0", f"Registry.example/a__b{DIGEST}", f"a:t{DIGEST}"):
        assert refusal(crds, profile(**{f"{part}__image": name})) is None, name
    for name in (
        "a@sha256:REPLACE-WITH-DIGEST",
        f"a{DIGEST}0",
        "a b",
        "https://a/b",
        "a/B",
        "/a",
        "a:",
        f"a{DIGEST}:t",
    ):
        assert IMAGE in (refusal(crds, profile(**{f"{part}__image": name})) or "accepted"), name


def test_a_profile_is_immutable_and_its_labels_are_not(crds: ControlPlane) -> None:
    create(crds, profile("frozen-v1"))
    try:
        with pytest.raises(ClusterError, match="spec is immutable; create a profile with the next version"):
            crds.kubectl("patch", "k3p/frozen-v1", "--type=merge", "-p", '{"spec":{"tensor":4}}')
        crds.kubectl("label", "k3p/frozen-v1", "tested=yes")
    finally:
        crds.kubectl("delete", "k3p/frozen-v1")


def test_every_rule_stands_in_a_table() -> None:
    """A new rule has a new sentence, and the tables above quote every sentence."""
    quoted = [sentence for _, sentence in REFUSED.values()]
    quoted += [OFFER, IMAGE, LETTER, "at most 40 characters", "must end in a content version"]
    quoted += ["spec is immutable", "role is immutable"]
    for kind in KINDS:
        messages = {rule["message"] for rule in [*kind.rules, *rules(structural(kind.spec))]}
        for message in messages:
            assert any(sentence in message for sentence in quoted), f"{kind.kind}: no case for {message!r}"


def rules(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rule in a schema."""
    found = list(node.get("x-kubernetes-validations", ()))
    inner = [node[key] for key in ("items", "additionalProperties") if key in node]
    for child in [*node.get("properties", {}).values(), *inner]:
        if isinstance(child, dict):
            found += rules(child)
    return found


# What follows is about objects that were stored before a rule existed.


@pytest.fixture(scope="module")
def before() -> Any:
    """An API server of its own, whose CRD begins without rules."""
    with ControlPlane() as running:
        yield running


def lax(crd: dict[str, Any]) -> dict[str, Any]:
    """The CRD without any rule, and with a second role, as an older or newer release may have had it."""

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: strip(value) for key, value in node.items() if key != "x-kubernetes-validations"}
        return [strip(each) for each in node] if isinstance(node, list) else node

    out: dict[str, Any] = strip(copy.deepcopy(crd))
    return out


INVALID: dict[str, dict[str, Any]] = {
    "dspark-dcp": {"speculation": DSPARK, "parallelism": {"tensor": 8, "decodeContext": 2}},
    "dcp-tp": {"parallelism": {"tensor": 8, "decodeContext": 3}},
    "dcp-chunk": {"parallelism": {"tensor": 8, "decodeContext": 8}, "engine__chunkedPrefillSize": 64},
    "watermarks": {"cache__watermarks": {"highPercent": 60, "lowPercent": 70}},
    "peer": {"network__from": [{}]},
    "range": {"network__from": [{"ipBlock": {"cidr": "10.0.0.0"}}]},
    "draft": {"speculation": {"dspark": {"draft": "draft"}}},
    "path": {"model__source__nodePath__path": "../k3"},
    "size": {"cache__dram__size": "129Ti"},
}
CURES: dict[str, dict[str, Any]] = {
    "dspark-dcp": {"spec": {"parallelism": {"decodeContext": 1}}},
    "dcp-tp": {"spec": {"parallelism": {"decodeContext": 4}}},
    "dcp-chunk": {"spec": {"engine": {"chunkedPrefillSize": 512}}},
    "watermarks": {"spec": {"cache": {"watermarks": {"highPercent": 80}}}},
    "peer": {"spec": {"network": {"from": [{"podSelector": {}}]}}},
    "range": {"spec": {"network": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}}},
    "draft": {"spec": {"speculation": None}},
    "path": {"spec": {"model": {"source": {"nodePath": {"path": "k3"}}}}},
    "size": {"spec": {"cache": {"dram": {"size": "128Ti"}}}},
}


def test_an_object_older_than_a_rule_can_be_told_about_scaled_edited_fixed_and_deleted(before: ControlPlane) -> None:
    crd = yaml.safe_load(CRDS[0].read_text())
    name = f"crd/{crd['metadata']['name']}"
    before.kubectl("create", "-f", "-", stdin=json.dumps(lax(crd)))
    before.kubectl("wait", "--for=condition=Established", name, "--timeout=30s")
    for case, edits in INVALID.items():
        create(before, deployment(case, "default", **edits))
        create(before, deployment(f"{case}-2", "default", **edits))
    before.kubectl("replace", "-f", str(CRDS[0]))
    # The new schema reaches the serving handlers a moment later; a new invalid object tells when.
    for _ in range(100):
        if all(refusal(before, deployment("new", "default", **edits)) for edits in INVALID.values()):
            break
    for case, edits in INVALID.items():
        assert refusal(before, deployment("new", "default", **edits)), f"{case}: a new one is refused"
        told = json.dumps({"status": {"observedGeneration": 1}})
        before.kubectl("patch", f"k3/{case}", "--subresource=status", "--type=merge", "-p", told)
        before.kubectl("scale", f"k3/{case}", "--replicas=3")
        patch = {"spec": {"engine": {"contextLength": 4096}}}
        before.kubectl("patch", f"k3/{case}", "--type=merge", "-p", json.dumps(patch))
        before.kubectl("patch", f"k3/{case}", "--type=merge", "-p", json.dumps(CURES[case]))
        with pytest.raises(ClusterError):
            broken = {"spec": {"parallelism": None, "speculation": None, **deployment(**edits)["spec"]}}
            before.kubectl("patch", f"k3/{case}", "--type=merge", "-p", json.dumps(broken))
        # The garbage collector takes its finalizer off by an update of the object, which is still invalid.
        before.kubectl("delete", f"k3/{case}-2", "--cascade=foreground", "--wait=false")
        collected = json.dumps({"metadata": {"finalizers": None}})
        before.kubectl("patch", f"k3/{case}-2", "--type=merge", "-p", collected)
        assert not before.kubectl("get", f"k3/{case}-2", "--ignore-not-found")


def test_the_role_is_immutable(before: ControlPlane) -> None:
    """Today there is one role only, so the CRD gets a second one here to show that the rule holds."""
    crd = yaml.safe_load(CRDS[0].read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["role"]["enum"] = ["Unified", "Prefill"]
    before.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(crd))
    for _ in range(100):
        if refusal(before, deployment("role", "default", role="Prefill")) is None:
            break
    create(before, deployment("role", "default"))
    with pytest.raises(ClusterError, match="role is immutable; create another object"):
        before.kubectl("patch", "k3/role", "--type=merge", "-p", '{"spec":{"role":"Prefill"}}')
    before.kubectl("patch", "k3/role", "--type=merge", "-p", '{"spec":{"replicas":2}}')


def test_defaults_are_stored_and_say_nothing_that_a_profile_may_say(crds: ControlPlane) -> None:
    stored = create(crds, deployment(namespace="default"), "--dry-run=server")["spec"]
    rollout = {"strategy": "InPlace", "maxUnavailable": 1, "paused": False, "cacheLoss": "Allow"}
    cache = {"dram": {"size": "1Gi", "hugepages": "None"}}
    assert stored == {
        **DEPLOYMENT_SPEC,
        "role": "Unified",
        "autonomy": "Advise",
        "rollout": rollout,
        "cache": cache,
        "toolchain": {"treeCore": "Auto"},
    }
    kept = create(crds, profile(), "--dry-run=server")["spec"]
    assert kept["engine"] == {**PROFILE_SPEC["engine"], "python": "python3", "shmSize": "16Gi"}
