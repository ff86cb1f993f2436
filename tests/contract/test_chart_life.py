"""The chart's life on a real API server: install, upgrade, rollback, uninstall and install again, beside a deployment.

There is no node, so the operator of the chart's Deployment does not run; one with its account runs beside it.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builders import POD_MONITOR_CRD, SERVICE_MONITOR_CRD
from localcluster.controlplane import ControlPlane
from operatorprocess import SYSTEM, OperatorProcess, kubeconfig
from product import CHART, CRDS, IMAGE, helm
from stack import Stack, eventually

pytestmark = pytest.mark.apiserver

RELEASE, CRD, NEWER_FIELD = "umbra", "k3deployments.umbra.dev", "imagePullSecrets"
SELECTED = ["-l", "app.kubernetes.io/name=umbra-operator"]


class Site:
    """An API server whose operator's namespace enforces the restricted Pod Security Standard, and Helm."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self.control_plane = control_plane
        control_plane.kubectl("create", "namespace", SYSTEM)
        control_plane.kubectl("label", "namespace", SYSTEM, "pod-security.kubernetes.io/enforce=restricted")

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        result = self.try_helm(*arguments, values=values)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def try_helm(
        self, *arguments: str, values: Mapping[str, Any] | None = None, namespace: str = SYSTEM
    ) -> subprocess.CompletedProcess[str]:
        given = [f"--set-json={name}={json.dumps(value)}" for name, value in (values or {}).items()]
        where = ["--namespace", namespace, "--kubeconfig", str(self.control_plane.kubeconfig)]
        return helm(*arguments, *given, *where)

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.control_plane.kubectl("-n", SYSTEM, "get", *arguments, "-o", "json"))
        return found

    def names(self, kind: str) -> set[str]:
        return {body["metadata"]["name"] for body in self.get(kind)["items"]}

    def has_newer_field(self) -> bool:
        schema = self.get("crd", CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        return NEWER_FIELD in schema["properties"]["spec"]["properties"]


@pytest.fixture
def site() -> Iterator[Site]:
    """One of its own: the session's API server has the CRDs already, which are not Helm's there."""
    with ControlPlane(controllers=True) as control_plane:
        yield Site(control_plane)


@pytest.fixture
def previous(tmp_path: Path) -> Path:
    """The chart as an older release would have it: another version, and a field less in a CRD."""
    chart = tmp_path / "previous"
    shutil.copytree(CHART, chart)
    meta = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**meta, "version": "0.0.9", "appVersion": "0.0.9"}))
    path = chart / f"files/crds/umbra.dev_{CRD.partition('.')[0]}.yaml"
    crd = yaml.safe_load(path.read_text())
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"] = "Older."
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][NEWER_FIELD]
    path.write_text(yaml.safe_dump(crd))
    return chart


def pods(stack: Stack) -> dict[str, tuple[str, Any, Any]]:
    """What makes a pod the same one as before; its status is the scheduler's."""
    return {
        name: (body["metadata"]["uid"], body["metadata"]["annotations"], body["spec"])
        for name, body in stack.pods().items()
    }


def test_a_deployment_and_its_pods_outlive_every_step_of_the_chart(site: Site, previous: Path, tmp_path: Path) -> None:
    crds = site.control_plane
    crds.kubectl("create", "namespace", "serving")
    stack = Stack(crds, "serving")

    def operator() -> OperatorProcess:
        return OperatorProcess(kubeconfig(crds, tmp_path / "kubeconfig"), tmp_path / "operator.log")

    site.helm("install", RELEASE, str(previous), values=IMAGE)
    crds.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "crd/k3profiles.umbra.dev", "--timeout=20s")
    _operators_are_admitted_and_protected(site)
    assert not site.has_newer_field()
    older = operator()
    try:
        stack.add_profile()
        stack.add(replicas=2)
        eventually(lambda: len(stack.pods()) == 2, "two pods")
        eventually(stack.says("SchemaCurrent", "False", "CRDOutdated"), "the older CRD is told")
    finally:
        older.stop()
    before = pods(stack)

    site.helm("upgrade", RELEASE, str(CHART), values=IMAGE)
    assert site.has_newer_field()
    newer = operator()
    try:
        eventually(lambda: "SchemaCurrent" not in stack.conditions(), "the newer CRD is seen")
        assert pods(stack) == before
        site.helm("rollback", RELEASE, "1")
        assert not site.has_newer_field()
        site.helm("uninstall", RELEASE)
    finally:
        newer.stop()
    assert site.names("deployments") == site.names("serviceaccounts") - {"default"} == set()
    assert site.names("clusterroles").isdisjoint({"umbra-operator", "umbra-operator-workloads"})
    assert {CRD, "k3profiles.umbra.dev"} <= site.names("crds")
    assert (stack.get()["spec"]["replicas"], site.names("k3profiles")) == (2, {stack.profile})
    assert pods(stack) == before

    site.helm("install", RELEASE, str(CHART), values=IMAGE)
    assert site.has_newer_field()
    again = operator()
    try:
        eventually(lambda: "SchemaCurrent" not in stack.conditions(), "an operator works again")
        stack.edit({"replicas": 1})
        eventually(lambda: len(stack.pods()) == 1, "it does what is asked")
    finally:
        again.stop()
    assert pods(stack).items() <= before.items()


def test_releases_share_a_cluster_when_each_serves_its_own(site: Site, previous: Path) -> None:
    for name in ("a", "b", "other"):
        site.control_plane.kubectl("create", "namespace", name)
    second = {**IMAGE, "crds.install": False}

    def refused(release: str, values: Mapping[str, Any]) -> str:
        result = site.try_helm("install", release, str(CHART), values=values, namespace="other")
        assert result.returncode != 0
        return result.stderr

    site.helm("install", "first", str(CHART), values={**IMAGE, "namespaces": ["a"]})
    _crds_that_someone_applied_are_changed_all_the_same(site, "first", previous)
    assert "umbra-workloads" in refused("second", {**second, "namespaces": ["a", "b"]})
    result = site.try_helm("install", "second", str(CHART), values={**second, "namespaces": ["b"]}, namespace="other")
    assert result.returncode == 0, result.stderr
    # CRDs stay when they are left out later, and are taken up again.
    site.helm("upgrade", "first", str(CHART), values={**second, "namespaces": ["a"]})
    assert {CRD, "k3profiles.umbra.dev"} <= site.names("crds")
    site.helm("upgrade", "first", str(CHART), values=IMAGE)
    assert "umbra-workloads" in refused("third", second)


def test_the_profile_comes_with_an_upgrade_and_each_content_stays(site: Site) -> None:
    def values(engine: str) -> dict[str, Any]:
        images = {"profiles.engineImage": f"example.test/engine@sha256:{engine * 64}"}
        return {**IMAGE, "profiles.create": True, "profiles.kitImage": f"example.test/kit@sha256:{'b' * 64}", **images}

    notes = site.helm("install", RELEASE, str(CHART), values=values("1"))
    assert "Run the same command again with `helm upgrade`" in notes
    site.control_plane.kubectl("wait", "--for=condition=Established", "crd/k3profiles.umbra.dev", "--timeout=20s")
    assert site.names("k3profiles") == set()
    site.helm("upgrade", RELEASE, str(CHART), values=values("1"))
    (first,) = site.names("k3profiles")
    site.helm("upgrade", RELEASE, str(CHART), values=values("1"))
    site.helm("upgrade", RELEASE, str(CHART), values=values("2"))
    site.helm("uninstall", RELEASE)
    profiles = {body["metadata"]["name"]: body["spec"] for body in site.get("k3profiles")["items"]}
    assert len(profiles) == 2
    assert profiles[first]["engine"]["image"].endswith("1" * 64)


def test_a_service_monitor_takes_the_place_of_the_pod_monitor(site: Site) -> None:
    for crd in (POD_MONITOR_CRD, SERVICE_MONITOR_CRD):
        site.control_plane.kubectl("create", "-f", "-", stdin=json.dumps(crd))
        site.control_plane.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}")
    site.helm("install", RELEASE, str(CHART), values={**IMAGE, "podMonitor.create": True})
    assert (len(site.names("podmonitors")), site.names("services")) == (1, set())
    site.helm("upgrade", RELEASE, str(CHART), values={**IMAGE, "serviceMonitor.create": True})
    assert site.names("podmonitors") == set()
    (monitor,) = site.get("servicemonitors")["items"]
    chosen = ",".join(f"{name}={value}" for name, value in monitor["spec"]["selector"]["matchLabels"].items())
    (service,) = site.get("services", "-l", chosen)["items"]
    (endpoint,) = monitor["spec"]["endpoints"]

    def pods() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = site.get("pods", *SELECTED)["items"]
        return found

    eventually(lambda: len(pods()) == 2, "the pods of two operators")
    for number, pod in enumerate(pods(), 1):
        # A kubelet's part. Neither is ready: one is scraped all the same.
        status = {"phase": "Running", "podIP": f"10.9.8.{number}", "podIPs": [{"ip": f"10.9.8.{number}"}]}
        patch = ("patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", json.dumps({"status": status}))
        site.control_plane.kubectl("-n", SYSTEM, *patch)

    def scraped() -> set[str]:
        slices = site.get("endpointslices", "-l", f"kubernetes.io/service-name={service['metadata']['name']}")["items"]
        return {
            f"{address}:{port['port']}"
            for each in slices
            for port in each["ports"] or ()
            if port["name"] == endpoint["port"]
            for target in each["endpoints"] or ()
            if target["conditions"]["ready"]
            for address in target["addresses"]
        }

    eventually(lambda: scraped() == {"10.9.8.1:8080", "10.9.8.2:8080"}, "both operators can be scraped")
    site.helm("uninstall", RELEASE)
    assert site.names("servicemonitors") == site.names("services") == set()


def _operators_are_admitted_and_protected(site: Site) -> None:
    """The restricted standard admits both pods; the controller counts them under the budget."""
    eventually(lambda: len(site.get("pods", *SELECTED)["items"]) == 2, "the pods of two operators")
    (budget,) = site.get("poddisruptionbudgets", *SELECTED)["items"]
    eventually(
        lambda: site.get("pdb", budget["metadata"]["name"])["status"].get("expectedPods") == 2, "the budget counts them"
    )
    (policy,) = site.get("networkpolicies", *SELECTED)["items"]
    (pod, _) = site.get("pods", *SELECTED)["items"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (rule,) = policy["spec"]["ingress"]
    named = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
    assert {port["port"] for port in rule["ports"]} == named


def _crds_that_someone_applied_are_changed_all_the_same(site: Site, release: str, other: Path) -> None:
    """Another manager of their fields makes Helm's server-side apply a conflict."""
    for path in CRDS:
        site.control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    # Once by force, as the README says; then Helm has the fields again.
    values = {**IMAGE, "namespaces": ["a"]}
    site.helm("upgrade", release, str(other), "--force-conflicts", values=values)
    described = site.get("crd", CRD)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["description"]
    assert described == "Older."
    site.helm("upgrade", release, str(CHART), values=values)
