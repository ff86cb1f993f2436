"""Rendered objects: golden files, the official model, and the real API server's opinion."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client.models import (
    V1NetworkPolicy,
    V1Pod,
    V1PodDisruptionBudget,
    V1ResourceClaimTemplate,
    V1Service,
    V1ServiceAccount,
)

from builders import NAME, NAMESPACE, deployment_spec, profile_spec
from localcluster.controlplane import ControlPlane
from product import ROOT
from umbra_linker.settings import Settings as LinkerSettings
from umbra_operator import cluster
from umbra_operator.render import names, store
from umbra_operator.render.children import Facts, children
from umbra_operator.render.engine import launch_document
from umbra_operator.render.pods import pod
from umbra_operator.render.resolve import Resolved, resolve
from umbra_operator.render.revision import Revision

GOLDEN = Path(__file__).parent / "golden"
UID = "00000000-0000-0000-0000-000000000001"

FULL = deployment_spec(
    model__source={"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "weights"}},
    parallelism={"tensor": 8},
    speculation={"type": "DSPARK", "dspark": {"draft": "draft"}},
    engine={"memoryFractionPercent": 85, "env": [{"name": "HSA_NO_SCRATCH_RECLAIM", "value": "1"}]},
    resources={"engine": {"cpu": "16", "memory": "64Gi"}, "store": {"cpu": "500m", "memory": "8Gi"}},
    placement={
        "nodeSelector": {"gpu": "mi355x"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
        "priorityClassName": "system-cluster-critical",
        "schedulerName": "default-scheduler",
    },
    podMetadata={"labels": {"team": "a"}, "annotations": {"note": "b"}},
    imagePullSecrets=["pull"],
    auth={"apiKeySecretRef": {"name": "users", "key": "token"}},
    replicas=3,
    network={
        "from": [
            {"podSelector": {"matchLabels": {"app": "gateway"}}, "namespaceSelector": {}},
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        ],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
    },
)
FULL_PROFILE = profile_spec(
    devices={"resourceName": "amd.com/gpu"},
    hostMounts=[{"name": "m" * 58, "hostPath": "/opt/tools", "mountPath": "/tools"}],
    requirements={"memlock": "1Gi"},
    store={"image": "example.test/store", "python": "/opt/python", "env": [{"name": "A", "value": "b"}]},
)
CASES: dict[str, Resolved] = {
    "small": resolve(deployment_spec(), profile_spec()),
    "full": resolve(FULL, FULL_PROFILE),
    "dra": resolve(deployment_spec(), profile_spec(devices={"deviceClassName": "gpu.amd.com"})),
}


FACTS = Facts("umbra-system", pod_monitors=True)
CHILDREN = {
    kind: body for case in ("dra", "full") for kind, body in children(CASES[case], NAME, NAMESPACE, UID, FACTS).items()
}
MODELS = {
    "ServiceAccount": V1ServiceAccount,
    "ResourceClaimTemplate": V1ResourceClaimTemplate,
    "Service": V1Service,
    "NetworkPolicy": V1NetworkPolicy,
    "PodDisruptionBudget": V1PodDisruptionBudget,
}


def rendered(resolved: Resolved, namespace: str = NAMESPACE) -> dict[str, Any]:
    return pod(resolved, Revision("launch000000", "pod000000000", "live00000000"), NAME, namespace, UID, 0, 0)


def containers(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in [*body["spec"]["initContainers"], *body["spec"]["containers"]]}


@pytest.mark.parametrize(
    ("file", "body"),
    [
        ("pod.yaml", rendered(CASES["small"])),
        ("pod-full.yaml", rendered(CASES["full"])),
        ("pod-dra.yaml", rendered(CASES["dra"])),
        *((f"{kind.lower()}.yaml", body) for kind, body in CHILDREN.items()),
    ],
)
def test_golden(file: str, body: dict[str, Any]) -> None:
    """`UMBRA_UPDATE_GOLDEN=1` writes the files anew."""
    text = yaml.safe_dump(json.loads(json.dumps(body)), sort_keys=False, width=120)
    if os.environ.get("UMBRA_UPDATE_GOLDEN"):
        (GOLDEN / file).write_text(text)
    assert (GOLDEN / file).read_text() == text


@pytest.mark.parametrize("case", CASES)
def test_the_official_model_takes_the_pod_whole(case: str) -> None:
    body = rendered(CASES[case])
    assert V1Pod.model_validate(body).model_dump(by_alias=True, exclude_none=True) == body, (
        "a field that the model does not know would be lost"
    )


@pytest.mark.parametrize("kind", MODELS)
def test_the_official_model_takes_every_child_whole(kind: str) -> None:
    body = CHILDREN[kind]
    assert MODELS[kind].model_validate(body).model_dump(by_alias=True, exclude_none=True) == body


def test_every_child_has_a_golden_file_and_a_place_in_the_api() -> None:
    assert set(CHILDREN) == set(cluster.CHILDREN) == {*MODELS, "PodMonitor"}


@pytest.mark.apiserver
@pytest.mark.parametrize("kind", MODELS)
def test_the_api_server_takes_every_child(control_plane: ControlPlane, namespace: str, kind: str) -> None:
    case = "dra" if kind == "ResourceClaimTemplate" else "full"
    body = children(CASES[case], NAME, namespace, UID, FACTS)[kind]
    create = ["create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"]
    accepted = json.loads(control_plane.kubectl(*create, stdin=json.dumps(body)))
    for name, value in body.get("spec", {}).items():
        # A Service gets more: its address, and defaults of its port.
        assert kind == "Service" or accepted["spec"][name] == value


def test_who_reaches_what() -> None:
    def rules(operator: str | None = "umbra-system", **network: Any) -> dict[int, Any]:
        spec = deployment_spec(network=network) if network else deployment_spec()
        policy = children(resolve(spec, profile_spec()), NAME, NAMESPACE, UID, Facts(operator))["NetworkPolicy"]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        found = policy["spec"]["ingress"]
        return {port["port"]: rule.get("from", "everyone") for rule in found for port in rule["ports"]}

    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "umbra-system"}}}
    peer = {"podSelector": {"matchLabels": {"app": "a"}}}
    agents = {9600: [operator], 9601: [operator]}
    assert rules() == {30000: "everyone", **agents}
    assert rules(**{"from": []}) == agents, "no rule, no one"
    assert rules(**{"from": [peer]}) == {30000: [peer], **agents}
    assert rules(metricsFrom=[peer]) == {30000: "everyone", 9600: [operator, peer], 9601: [operator, peer]}
    assert rules(operator=None) == dict.fromkeys((30000, 9600, 9601), "everyone")


@pytest.mark.apiserver
@pytest.mark.parametrize("case", CASES)
def test_the_api_server_takes_the_pod(control_plane: ControlPlane, namespace: str, case: str) -> None:
    body = rendered(CASES[case], namespace)
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", body["spec"]["serviceAccountName"])
    create = ["create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"]
    accepted = json.loads(control_plane.kubectl(*create, stdin=json.dumps(body)))
    sent, kept = containers(body), containers(accepted)
    assert list(kept) == list(sent) == [names.KIT, names.PREFLIGHT, names.STORE, names.ENGINE]
    for name, container in sent.items():
        assert kept[name]["command"] == container["command"]
        assert kept[name].get("restartPolicy") == container.get("restartPolicy")


def test_without_devices_nothing_is_privileged_and_no_gpu_is_requested() -> None:
    for container in containers(rendered(CASES["small"])).values():
        assert "privileged" not in container["securityContext"]
        assert not [name for name in container["resources"].get("limits", {}) if "gpu" in name]


def test_with_devices_engine_and_preflight_get_the_gpus_and_the_store_reaches_them_privileged() -> None:
    found = containers(rendered(CASES["full"]))
    gpus = {name: container["resources"].get("limits", {}).get("amd.com/gpu") for name, container in found.items()}
    assert gpus == {"kit": None, "preflight": "8", "store": None, "engine": "8"}
    privileged = {name for name, container in found.items() if container["securityContext"].get("privileged")}
    assert privileged == {"store"}


def test_with_dra_three_containers_share_one_claim_and_nothing_is_privileged() -> None:
    body = rendered(CASES["dra"])
    found = containers(body)
    claims = {name: container["resources"].get("claims") for name, container in found.items()}
    shared = [{"name": "gpus"}]
    assert claims == {"kit": None, "preflight": shared, "store": shared, "engine": shared}
    assert not [name for name, container in found.items() if container["securityContext"].get("privileged")]
    assert body["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": NAME}]


def test_the_environment_of_the_store_in_exact_bytes() -> None:
    spec = deployment_spec(cache__dram__size="1160Gi", cache__watermarks={"highPercent": 99, "lowPercent": 7})
    assert store.environment(resolve(spec, profile_spec())) == {
        "UMBP_DRAM_CAPACITY": "1245540515840",
        "UMBP_DRAM_HIGH_WM": "0.99",
        "UMBP_DRAM_LOW_WM": "0.07",
        "HSA_USERPTR_FOR_PAGED_MEM": "0",
        "MORI_GLOBAL_LOG_LEVEL": "info",
    }


def test_huge_pages_take_the_place_of_ordinary_memory_in_whole_pages() -> None:
    spec = deployment_spec(cache__dram={"size": "1100Mi", "hugepages": "1Gi"})
    found = containers(rendered(resolve(spec, profile_spec())))["store"]["resources"]
    assert found["requests"] == found["limits"]
    assert (found["limits"]["hugepages-1Gi"], found["limits"]["memory"]) == (str(2 * 2**30), str(16 * 2**30))
    (needs,) = [e["value"] for e in containers(rendered(resolve(spec, profile_spec())))["preflight"]["env"][1:]]
    assert json.loads(needs)["memoryBytes"] == 16 * 2**30, "the scheduler counts huge pages"


def test_the_check_of_the_nodes_memory_asks_the_scheduler_for_no_more_than_the_engine() -> None:
    """Else a node that is too small would leave the pod pending without the check's sentence."""
    profile = profile_spec(requirements={"memoryHeadroom": "4Ti"})
    found = containers(rendered(resolve(deployment_spec(), profile)))
    assert found["preflight"]["resources"] == found["engine"]["resources"]


def qos(body: dict[str, Any]) -> str:
    """The class that Kubernetes gives to the pod, by its documented rule."""
    amounts = [container["resources"] for container in containers(body).values()]
    equal = all(
        {each.get("requests", {}).get(name) for each in amounts} and each["limits"].get(name)
        for each in amounts
        for name in ("cpu", "memory")
    )
    same = all(each["requests"][name] == each["limits"].get(name) for each in amounts for name in each["requests"])
    return "Guaranteed" if equal and same else "Burstable"


def test_a_pod_is_guaranteed_unless_somebody_takes_the_cpu_limit_away() -> None:
    assert qos(rendered(CASES["small"])) == qos(rendered(CASES["full"])) == "Guaranteed"
    free = rendered(resolve(deployment_spec(), profile_spec(engine__resources={"cpu": "0"})))
    assert qos(free) == "Burstable"
    assert "cpu" not in containers(free)["engine"]["resources"]["requests"]


@pytest.mark.apiserver
def test_the_api_server_calls_the_pod_guaranteed(control_plane: ControlPlane, namespace: str) -> None:
    body = rendered(CASES["small"], namespace)
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", body["spec"]["serviceAccountName"])
    create = ["create", "--dry-run=server", "-o", "jsonpath={.status.qosClass}", "-f", "-"]
    assert control_plane.kubectl(*create, stdin=json.dumps(body)) == "Guaranteed"


def test_the_store_has_time_to_register_a_large_tier() -> None:
    spec = deployment_spec(cache__dram__size="1160Gi")
    seconds = store.startup_seconds(resolve(spec, profile_spec()))
    assert seconds > 3 * 599
    probe = containers(rendered(resolve(spec, profile_spec())))["store"]["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= seconds - probe["periodSeconds"]


@pytest.mark.parametrize("case", CASES)
def test_no_engine_starts_before_the_store_s_startup_probe_has_passed(case: str) -> None:
    """The kubelet starts init containers one by one, and a sidecar's successor once its startup probe has passed."""
    spec = rendered(CASES[case])["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["kit", "preflight", "store"]
    store_container = spec["initContainers"][-1]
    assert store_container["restartPolicy"] == "Always"
    assert store_container["startupProbe"]["httpGet"]["path"] == "/ready"
    assert [each["name"] for each in spec["containers"]] == ["engine"]


def test_the_launch_document_is_what_the_agent_reads() -> None:
    document = json.loads(launch_document(CASES["small"], "abc"))
    assert set(document) == {"revision", "kit", "argv", "env", "port", "drainTimeoutSeconds", "live"}
    assert (document["revision"], document["kit"], document["port"]) == ("abc", "0.1.0", 30000)
    assert document["argv"][:3] == ["python3", "-m", "sglang.launch_server"]
    config = json.loads(document["argv"][-1])
    assert config["linker_extra_config"] == {
        "standalone_address": "unix:///run/umbp/umbp.grpc.sock",
        "standalone_auto_start": False,
        "umbra": {"keyLayout": "Auto"},
    }
    # The policy thins checkpoints only where it knows how much the store holds.
    assert LinkerSettings().updated(document["live"]).store_bytes == CASES["small"].store_bytes > 0


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_quotes_and_dollars_reach_the_engine_as_they_are(text: str) -> None:
    """No shell stands between: a served name may hold what a shell would read."""
    spec = deployment_spec(model__servedName=text)
    arguments = json.loads(launch_document(resolve(spec, profile_spec()), "abc"))["argv"]
    assert arguments[arguments.index("--served-model-name") + 1] == text


def test_derived_names_fit_at_the_limits_of_their_parts() -> None:
    longest = pod(CASES["dra"], Revision("a", "b", "c"), "a" * 40, NAMESPACE, UID, 63, 10**12)
    assert len(longest["metadata"]["name"]) <= 63
    assert all(len(value) <= 63 for value in longest["metadata"]["labels"].values())
    assert len(longest["spec"]["serviceAccountName"]) == len(
        longest["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    )


def test_no_label_of_a_user_enters_a_selector() -> None:
    """A selector that a user can change is one that another edit can make unmatched, or immutable by accident."""
    own = {"umbra.dev/deployment": NAME}
    assert CHILDREN["Service"]["spec"]["selector"] == own
    assert CHILDREN["NetworkPolicy"]["spec"]["podSelector"] == {"matchLabels": own}
    for kind in ("PodDisruptionBudget", "PodMonitor"):
        assert CHILDREN[kind]["spec"]["selector"] == {"matchLabels": own}


def test_pods_of_two_replicas_differ_only_in_name_and_labels() -> None:
    one, two = (pod(CASES["small"], Revision("a", "b", "c"), NAME, NAMESPACE, UID, ordinal, 0) for ordinal in (0, 1))
    assert one["spec"] == two["spec"]
    assert one["metadata"]["annotations"] == two["metadata"]["annotations"]


def test_the_page_of_objects_names_every_kind_and_port() -> None:
    page = (ROOT / "docs/reference/objects.md").read_text()
    table = page.split("| Kind |")[1].split("\n\n")[0]
    named = set(re.findall(r"^\| (\w+) \| `NAME", table, re.MULTILINE))
    assert named == {"Pod", "Secret", *cluster.CHILDREN}
    ports = {
        (str(port["containerPort"]), port["name"])
        for each in containers(rendered(CASES["small"])).values()
        for port in each.get("ports", ())
    }
    assert set(re.findall(r"^\| (\d+) \| `([\w-]+)`", page, re.MULTILINE)) == ports
