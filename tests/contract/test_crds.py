"""The CRDs as the real API server and kubectl show them."""

import json
from pathlib import Path

import pytest
import yaml

from builders import deployment
from localcluster.controlplane import ControlPlane
from localstack.apionly import PLACEHOLDER
from product import CRDS, ROOT, create, refusal
from umbra_operator.api.v1alpha1 import KINDS, Kind

pytestmark = pytest.mark.apiserver

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
LIMIT_BYTES = 128 * 1024


@pytest.mark.parametrize("path", CRDS, ids=lambda path: path.name)
def test_a_crd_is_small(path: Path) -> None:
    """kubectl apply keeps a copy in an annotation of at most 256 KiB."""
    assert path.stat().st_size < LIMIT_BYTES


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_schema_is_structural_and_nothing_in_it_is_dropped(crds: ControlPlane, kind: Kind) -> None:
    name = f"{kind.plural}.umbra.dev"
    stored = json.loads(crds.kubectl("get", f"crd/{name}", "-o", "json"))
    states = {condition["type"]: condition["status"] for condition in stored["status"]["conditions"]}
    assert states["Established"] == states["NamesAccepted"] == "True"
    assert states.get("NonStructuralSchema", "False") == "False"
    written = {body["metadata"]["name"]: body for body in (yaml.safe_load(path.read_text()) for path in CRDS)}
    assert stored["spec"]["versions"][0]["schema"] == written[name]["spec"]["versions"][0]["schema"]


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("k3", "K3Deployment runs Kimi K3 on SGLang"),
        ("k3.spec.cache.dram.size", "Bytes that the store may use on the node"),
        ("k3.spec.parallelism.decodeContext", "must divide tensor"),
        ("k3.status.conditions", "Observations"),
        ("k3p.spec.requirements.memlock", "Memory that a container must be able to lock"),
    ],
)
def test_kubectl_explains_each_field(crds: ControlPlane, field: str, sentence: str) -> None:
    text = " ".join(crds.kubectl("explain", field).split())
    assert sentence in text


def test_every_field_has_a_sentence() -> None:
    def walk(node: dict[str, object], path: str) -> list[str]:
        children = node.get("properties", {})
        assert isinstance(children, dict)
        silent = [] if node.get("description") else [path]
        for name, child in children.items():
            silent += walk(child, f"{path}.{name}")
        items = node.get("items")
        if isinstance(items, dict) and "properties" in items:
            silent += walk(items, f"{path}[]")
        return silent

    for path in CRDS:
        schema = yaml.safe_load(path.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        for part in ("spec", "status"):
            if part in schema["properties"]:
                assert walk(schema["properties"][part], part) == []


def test_scale_reads_and_writes_replicas_and_gives_the_selector(crds: ControlPlane, namespace: str) -> None:
    create(crds, deployment(namespace=namespace))
    status = {"status": {"replicas": 1, "selector": "umbra.dev/deployment=k3"}}
    crds.kubectl("-n", namespace, "patch", "k3/k3", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    crds.kubectl("-n", namespace, "scale", "k3/k3", "--replicas=4")
    path = f"/apis/umbra.dev/v1alpha1/namespaces/{namespace}/k3deployments/k3/scale"
    scale = json.loads(crds.kubectl("get", f"--raw={path}"))
    assert scale["spec"]["replicas"] == 4
    assert scale["status"] == {"replicas": 1, "selector": "umbra.dev/deployment=k3"}


@pytest.mark.parametrize("how", [("--server-side",), ()])
def test_a_manifest_without_replicas_leaves_an_autoscalers_number_alone(
    crds: ControlPlane, namespace: str, how: tuple[str, ...]
) -> None:
    manifest = json.dumps(deployment(namespace=namespace, replicas=None))
    edited = json.dumps(deployment(namespace=namespace, replicas=None, cache__dram__size="2Gi"))
    crds.kubectl("apply", *how, "-f", "-", stdin=manifest)
    crds.kubectl("-n", namespace, "scale", "k3/k3", "--replicas=4")
    crds.kubectl("apply", *how, "-f", "-", stdin=edited)
    spec = json.loads(crds.kubectl("-n", namespace, "get", "k3/k3", "-o", "json"))["spec"]
    assert (spec["replicas"], spec["cache"]["dram"]["size"]) == (4, "2Gi")


def test_columns_say_what_one_looks_for_first(crds: ControlPlane, namespace: str) -> None:
    create(crds, deployment(namespace=namespace))
    heading, line = crds.kubectl("-n", namespace, "get", "k3").splitlines()
    assert heading.split() == ["NAME", "READY", "REASON", "REPLICAS", "SERVING", "PROFILE", "STORE", "AGE"]
    assert line.split()[:4] == ["k3", "1", "local-v1", "1Gi"], "what is not known yet is empty"
    assert "k3deployment.umbra.dev/k3" in crds.kubectl("-n", namespace, "get", "umbra", "-o", "name").split()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_valid(crds: ControlPlane, path: Path) -> None:
    text = path.read_text()
    bodies = [body for body in yaml.safe_load_all(text.replace(PLACEHOLDER, "0" * 64)) if body]
    assert bodies
    for body in bodies:
        assert refusal(crds, body) is None
    if PLACEHOLDER in text:
        unfilled = [refusal(crds, body) or "" for body in yaml.safe_load_all(text) if body]
        assert any("write the digest of an image that you have tested" in said for said in unfilled)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
