"""The chart, rendered by the real Helm."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubernetes.aio.client.models import V1Deployment

from localcluster.controlplane import ControlPlane
from product import CHART, CRDS, IMAGE, ROOT, helm, template
from umbra_operator.api.v1alpha1 import K3ProfileSpec
from umbra_operator.codegen.chartvalues import VALUES

TAG = {"image.repository": "example.test/umbra-operator", "image.tag": "0.1.0"}
PROFILE = {
    "profiles.create": True,
    "profiles.engineImage": f"example.test/engine@sha256:{'1' * 64}",
    "profiles.kitImage": f"example.test/kit@sha256:{'2' * 64}",
}
MATRIX: dict[str, dict[str, Any]] = {
    "digest": IMAGE,
    "tag": TAG,
    "one namespace": {**IMAGE, "namespaces": ["a"]},
    "two namespaces": {**IMAGE, "namespaces": ["a", "b"]},
    "placed": {
        **IMAGE,
        "nodeSelector": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "imagePullSecrets": [{"name": "pull"}],
        "affinity": {"nodeAffinity": {}},
        "logLevel": "DEBUG",
    },
    "without CRDs": {**IMAGE, "crds.install": False},
    "with alerts": {**IMAGE, "prometheusRule.create": True, "prometheusRule.labels": {"release": "prometheus"}},
    "with the alert about GPUs": {**IMAGE, "prometheusRule.create": True, "prometheusRule.gpus": True},
    "scraped": {**IMAGE, "podMonitor.create": True, "podMonitor.labels": {"release": "prometheus"}},
    "scraped through a Service": {
        **IMAGE,
        "serviceMonitor.create": True,
        "serviceMonitor.labels": {"release": "prometheus"},
    },
    "with a profile": {**IMAGE, **PROFILE},
    "with dashboards": {**IMAGE, "dashboards.create": True},
    "without a policy": {**IMAGE, "networkPolicy.create": False},
    "scraped from one namespace": {**IMAGE, "networkPolicy.metricsFrom": [{"namespaceSelector": {}}]},
}

MONITORS = {"podMonitor": "PodMonitor", "serviceMonitor": "ServiceMonitor"}
CALLS: dict[tuple[str, str], set[str]] = {
    # What the code asks of the API server: kopf lists and watches, reconcile.py and resync.py call cluster.py.
    ("umbra.dev", "k3profiles"): {"list", "watch"},
    ("umbra.dev", "k3deployments"): {"list", "watch"},
    ("umbra.dev", "k3deployments/status"): {"patch"},  # reconcile._write_status
    ("umbra.dev", "k3deployments/finalizers"): {"update"},  # blockOwnerDeletion in names.owner
    ("", "pods"): {"get", "list", "watch", "create", "patch", "delete"},  # reconcile._apply, _create
    ("", "pods/ephemeralcontainers"): {"patch"},  # reconcile._apply
    ("", "secrets"): {"create"},  # reconcile._apply; a right to read them would be one to read everybody's
    ("events.k8s.io", "events"): {"create"},  # recorder.send
    # reconcile._apply_child and _read_child; listed by resync.Lists; three kinds are pruned
    ("", "services"): {"get", "list", "create", "patch"},
    ("networking.k8s.io", "networkpolicies"): {"get", "list", "create", "patch"},
    ("monitoring.coreos.com", "podmonitors"): {"get", "list", "create", "patch"},
    ("resource.k8s.io", "resourceclaimtemplates"): {"get", "list", "create", "delete"},
    ("", "serviceaccounts"): {"get", "list", "create", "patch", "delete"},
    ("policy", "poddisruptionbudgets"): {"get", "list", "create", "patch", "delete"},
    ("apiextensions.k8s.io", "customresourcedefinitions"): {"list", "watch"},  # kopf
}


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [body for body in objects if body["kind"] == kind]


@pytest.mark.parametrize("case", MATRIX)
def test_lint(case: str) -> None:
    values = [f"--set-json={name}={json.dumps(value)}" for name, value in MATRIX[case].items()]
    result = helm("lint", "--strict", str(CHART), *values)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("case", MATRIX)
def test_the_official_model_takes_the_deployment_whole(case: str) -> None:
    (body,) = of_kind(template(MATRIX[case]), "Deployment")
    assert V1Deployment.model_validate(body).model_dump(by_alias=True, exclude_none=True) == body
    (container,) = body["spec"]["template"]["spec"]["containers"]
    wanted = "example.test/umbra-operator" + (":0.1.0" if case == "tag" else f"@{IMAGE['image.digest']}")
    assert container["image"] == wanted


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "image.repository is not set: name the operator's image"),
        ({"image.repository": "a"}, "set image.digest (best) or image.tag"),
        ({**TAG, "image.digest": "sha256:short"}, "/image/digest"),
        ({**IMAGE, "namespace": ["a"]}, "namespace"),
        ({**IMAGE, "namespaces": ["A_b"]}, "/namespaces/0"),
        ({**TAG, "image.tag": "a b"}, "/image/tag"),
        ({**TAG, "image.tag": "v1@sha256:short"}, "/image/tag"),
        ({**TAG, "image.repository": "example.test/operator:v1"}, "/image/repository"),
        ({**IMAGE, "replicas": None}, "missing property 'replicas'"),
        ({**IMAGE, "networkPolicy": None}, "missing property 'networkPolicy'"),
        ({**IMAGE, "image.pullPolicy": None}, "missing property 'pullPolicy'"),
        ({**IMAGE, "podMonitor.create": True, "serviceMonitor.create": True}, "not both: Prometheus would scrape"),
        ({**IMAGE, "serviceMonitor.create": "yes"}, "/serviceMonitor/create"),
        ({**IMAGE, "serviceMonitor.labels": {"release": 1}}, "/serviceMonitor/labels/release"),
        ({**IMAGE, **PROFILE, "profiles.kitImage": ""}, "set profiles.engineImage and profiles.kitImage"),
        ({**IMAGE, **PROFILE, "profiles.engineImage": "example.test/engine:latest"}, "/profiles/engineImage"),
    ],
)
def test_what_is_missing_or_wrong_is_said(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        template(values)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["resources", "namespaces", "affinity", "tolerations", "prometheusRule.labels"])
def test_a_map_or_a_list_may_be_taken_away(name: str) -> None:
    objects = template({**IMAGE, "prometheusRule.create": True, name: None})
    (body,) = of_kind(objects, "Deployment")
    assert body["spec"]["template"]["spec"]["affinity"]
    assert ("resources" in name) is (not body["spec"]["template"]["spec"]["containers"][0]["resources"])


def test_a_port_of_the_registry_is_no_tag() -> None:
    (body,) = of_kind(template({**TAG, "image.repository": "registry.example.test:5000/umbra/operator"}), "Deployment")
    (container,) = body["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.test:5000/umbra/operator:0.1.0"


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_labels_of_yours_take_none_of_the_chart_s_away(monitor: str) -> None:
    yours = {"app.kubernetes.io/name": "prometheus", "release": "prometheus"}
    kinds = {"prometheusRule": "PrometheusRule", monitor: MONITORS[monitor], "dashboards": "ConfigMap"}
    switches = {f"{name}.{value}": given for name in kinds for value, given in (("create", True), ("labels", yours))}
    objects = template({**IMAGE, **switches})
    for kind in kinds.values():
        for body in of_kind(objects, kind):
            labels = body["metadata"]["labels"]
            assert (labels["app.kubernetes.io/name"], labels["release"]) == ("umbra-operator", "prometheus")


@pytest.mark.parametrize("monitor", ["podMonitor", "serviceMonitor"])
def test_the_longest_name_of_a_release_leaves_every_name_and_label_valid(monitor: str) -> None:
    release = "r" * 53  # Helm takes no longer one.
    values = [f"--set-json={name}={json.dumps(value)}" for name, value in IMAGE.items()]
    switches = [f"--set={name}.create=true" for name in ("prometheusRule", monitor, "dashboards")]
    result = helm("template", release, str(CHART), *values, *switches)
    assert result.returncode == 0, result.stderr
    for body in filter(None, yaml.safe_load_all(result.stdout)):
        # Names of these kinds become labels or parts of hosts' names.
        most = 63 if body["kind"] in ("Deployment", "Service", "ServiceAccount") else 253
        assert len(body["metadata"]["name"]) <= most
        assert all(len(value) <= 63 for value in body["metadata"].get("labels", {}).values())


@pytest.mark.parametrize("namespaces", [[], ["a"], ["a", "b"]])
def test_rights_reach_exactly_the_namespaces_that_are_served(namespaces: list[str]) -> None:
    objects = template({**IMAGE, "namespaces": namespaces})
    bindings = [binding for binding in of_kind(objects, "RoleBinding") if binding["roleRef"]["kind"] == "ClusterRole"]
    assert [binding["metadata"]["namespace"] for binding in bindings] == namespaces
    wide = {binding["roleRef"]["name"] for binding in of_kind(objects, "ClusterRoleBinding")}
    assert ("umbra-operator-workloads" in wide) is (not namespaces)
    (body,) = of_kind(objects, "Deployment")
    env = {entry["name"]: entry.get("value") for entry in body["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert env["UMBRA_NAMESPACES"] == ",".join(namespaces)


def verbs(objects: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, str], set[str]]]:
    for role in of_kind(objects, "ClusterRole"):
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    yield (group, resource), set(rule["verbs"])


def test_rights_are_exactly_what_the_code_calls() -> None:
    assert dict(verbs(template(IMAGE))) == CALLS
    # kopf looks whether the namespaces that it was told are there.
    assert dict(verbs(template(MATRIX["one namespace"]))) == {**CALLS, ("", "namespaces"): {"list", "watch"}}


def test_the_lease_is_the_only_right_in_the_operator_s_own_namespace() -> None:
    objects = template(IMAGE)
    (role,) = of_kind(objects, "Role")
    (binding,) = of_kind(objects, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert {body["metadata"]["namespace"] for body in (role, binding)} == {"umbra-system"}
    (body,) = of_kind(objects, "Deployment")
    env = {entry["name"]: entry.get("value") for entry in body["spec"]["template"]["spec"]["containers"][0]["env"]}
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    named = {**lease, "resourceNames": [env["UMBRA_LEASE_NAME"]], "verbs": ["get", "patch"]}
    assert role["rules"] == [{**lease, "verbs": ["create"]}, named]


@pytest.mark.parametrize("case", MATRIX)
def test_nothing_of_ours_stands_in_the_way_of_anybody_s_requests(case: str) -> None:
    """No webhook, policy of admission or API service: an operator that is away refuses nobody anything."""
    groups = {body["apiVersion"].split("/")[0] for body in template(MATRIX[case])}
    assert not groups & {"admissionregistration.k8s.io", "apiregistration.k8s.io"}


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_budget_keeps_one_of_several_operators(replicas: int) -> None:
    objects = template({**IMAGE, "replicas": replicas})
    (body,) = of_kind(objects, "Deployment")
    assert body["spec"]["replicas"] == replicas
    assert body["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
    assert len(of_kind(objects, "PodDisruptionBudget")) == (replicas > 1)


def test_the_pod_monitor_finds_the_operators_and_their_port() -> None:
    objects = template(MATRIX["scraped"])
    (monitor,) = of_kind(objects, "PodMonitor")
    (body,) = of_kind(objects, "Deployment")
    pod = body["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    # Series about a K3Deployment carry its namespace, which must not become `exported_namespace`.
    assert endpoint["honorLabels"] is True
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert of_kind(template(IMAGE), "PodMonitor") == []


def test_the_service_monitor_finds_the_operators_through_a_service_that_has_no_address() -> None:
    objects = template(MATRIX["scraped through a Service"])
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (service,) = of_kind(objects, "Service")
    (body,) = of_kind(objects, "Deployment")
    pod = body["spec"]["template"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert service["spec"]["clusterIP"] == "None"
    (endpoint,), (port,) = monitor["spec"]["endpoints"], service["spec"]["ports"]
    assert endpoint == {"port": port["name"], "path": "/metrics", "honorLabels": True}
    assert port["targetPort"] in {each["name"] for each in pod["spec"]["containers"][0]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert of_kind(template(IMAGE), "ServiceMonitor") == of_kind(template(IMAGE), "Service") == []


def test_crds_are_the_generated_ones_and_are_kept() -> None:
    charted = {body["metadata"]["name"]: body for body in of_kind(template(IMAGE), "CustomResourceDefinition")}
    for path in CRDS:
        body = yaml.safe_load(path.read_text())
        mine = charted.pop(body["metadata"]["name"])
        assert mine["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert mine == body
    assert charted == {}
    assert of_kind(template(MATRIX["without CRDs"]), "CustomResourceDefinition") == []


@pytest.mark.apiserver
def test_the_api_server_takes_every_object(crds: ControlPlane) -> None:
    for body in template({**IMAGE, "crds.install": False}):
        if body["metadata"].get("namespace"):
            body["metadata"]["namespace"] = "default"
        apply = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-f", "-"]
        crds.kubectl(*apply, stdin=json.dumps(body))


def test_the_profile_is_the_example_with_its_images_and_folder() -> None:
    served = ["--api-versions", "umbra.dev/v1alpha1/K3Profile"]
    folder = {"profiles.modelRoot": "/srv/weights"}
    (body,) = of_kind(template({**IMAGE, **PROFILE, **folder}, *served), "K3Profile")
    example = yaml.safe_load((ROOT / "examples/mi355x-tp8-v1.yaml").read_text())["spec"]
    example["engine"]["image"] = PROFILE["profiles.engineImage"]
    example["kit"]["image"] = PROFILE["profiles.kitImage"]
    example["modelRoots"] = [{"name": "models", "path": "/srv/weights"}]
    assert body["spec"] == example
    assert body["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    K3ProfileSpec.model_validate(body["spec"])
    (other,) = of_kind(template({**IMAGE, **PROFILE}, *served), "K3Profile")
    assert other["metadata"]["name"] != body["metadata"]["name"]


def test_a_policy_lets_only_the_metrics_port_be_reached() -> None:
    (policy,) = of_kind(template(MATRIX["scraped from one namespace"]), "NetworkPolicy")
    (rule,) = policy["spec"]["ingress"]
    assert rule == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [{"namespaceSelector": {}}]}
    assert of_kind(template(MATRIX["without a policy"]), "NetworkPolicy") == []


def test_every_value_is_used() -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for value in VALUES:
        in_image = value.name.replace("image.", "$image.")
        assert f".Values.{value.name}" in text or in_image in text, value.name
