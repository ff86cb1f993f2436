"""What `make status` says of deployments, whatever state they and the cluster are in."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import deployment
from kubelet import reserved_name
from localcluster.controlplane import ControlPlane
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localcluster.process import Process, identify
from localcluster.state import State
from localstack import monitoring, product, summary
from product import ROOT, install_crds


@pytest.fixture
def empty_cache() -> Iterator[Path]:
    """A folder whose path is short enough for a cluster's sockets."""
    with tempfile.TemporaryDirectory(prefix="umbra-") as folder:
        yield Path(folder)


def _body(*conditions: tuple[str, str, str], generation: int = 1) -> dict[str, Any]:
    said = [{"type": kind, "status": status, "reason": why, "message": "see"} for kind, status, why in conditions]
    return {"metadata": {"generation": generation}, "status": {"observedGeneration": 1, "conditions": said}}


def test_ready_stands_on_top_and_reasons_only_where_something_is_wrong() -> None:
    body = _body(("ConfigValid", "True", "Valid"), ("EngineReady", "False", "EngineFailed"), ("Ready", "False", "No"))
    first, second, third = summary.tree(body)
    assert first.split() == ["Ready", "False", "No:", "see"]
    assert second.split() == ["├─", "ConfigValid", "True"]
    assert third.split() == ["└─", "EngineReady", "False", "EngineFailed:", "see"]


def test_conditions_of_an_older_generation_are_marked() -> None:
    assert "generation 1" in summary.tree(_body(("Ready", "True", "Serving"), generation=2))[-1]
    assert summary.tree({"metadata": {"generation": 1}}) == ["none yet: the operator has not looked at it"]


def test_without_a_cluster_the_way_to_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CLUSTER", "nosuch")
    assert summary.status().startswith("no cluster runs; `UMBRA_CLUSTER=nosuch ")


@pytest.mark.apiserver
def test_every_deployment_of_a_running_cluster_is_shown(
    control_plane: ControlPlane, namespace: str, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBRA_CACHE", str(empty_cache))
    where = layout()
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        control_plane.kubectl("apply", "--server-side", "-f", str(path))
    control_plane.kubectl("wait", "--for=condition=Established", "crd/k3deployments.umbra.dev")
    body = deployment("k3", namespace)
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps(body))
    apiserver = identify(control_plane.pids["apiserver"])
    assert isinstance(apiserver, Process)
    state = State(where.state)
    state.record("apiserver", apiserver, "")
    state.set("forward-k3", "10.0.0.1:30000 40001")
    where.kubeconfig.write_text(control_plane.kubeconfig.read_text())
    lines = summary.status().splitlines()
    assert f"{namespace}/k3" in lines
    shown = lines[lines.index(f"{namespace}/k3") + 1 :]
    assert shown[0] == "  endpoint      http://127.0.0.1:40001  (POST /generate with input_ids)"
    assert shown[1].endswith("none yet: the operator has not looked at it")


@pytest.mark.apiserver
@pytest.mark.kubelet
def test_prometheus_says_how_far_a_start_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would scrape a whole node; here are only the records of one, which was ended early, and its API server."""
    with reserved_name("half") as name, ControlPlane() as control_plane:
        monkeypatch.setenv("UMBRA_CLUSTER", name)
        where = layout()
        again = where.command("up")
        try:
            with pytest.raises(ClusterError, match=f"nothing to scrape: `{again}` starts"):
                monitoring.demo()
            apiserver = identify(control_plane.pids["apiserver"])
            assert isinstance(apiserver, Process)
            State(where.state).record("apiserver", apiserver, "")
            with pytest.raises(ClusterError, match=f"API server does not answer .*`{again}` goes on"):
                monitoring.demo()
            where.kubeconfig.write_text(control_plane.kubeconfig.read_text())
            with pytest.raises(ClusterError, match=f"not installed on this cluster yet: `{again}` goes on"):
                monitoring.demo()
            install_crds(control_plane)
            with pytest.raises(ClusterError, match=f"umbra-demo/demo is not there: `{again}` makes it"):
                monitoring.demo()
            control_plane.kubectl("create", "namespace", product.NAMESPACE)
            control_plane.kubectl("create", "-f", "-", stdin=json.dumps(deployment(product.NAME, product.NAMESPACE)))
            with pytest.raises(ClusterError, match=f"not made all of umbra-demo/demo yet: `{again}` waits for it"):
                monitoring.demo()
        finally:
            shutil.rmtree(where.directory, ignore_errors=True)
