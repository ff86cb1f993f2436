"""Kinds that go and come while the operator runs, seen through an API server whose discovery lags behind."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apiproxy import detour, proxied
from faultproxy import Answer, FaultProxy, Match
from localcluster.controlplane import ControlPlane
from nodeagent import NodeAgent
from operatorprocess import OperatorProcess, grant, kubeconfig
from product import install_crds
from stack import Stack, eventually

pytestmark = pytest.mark.apiserver

DISCOVERY = Match(where=lambda request: request.target.split("?")[0] == "/apis/umbra.dev/v1alpha1")


@pytest.fixture
def proxy(crds: ControlPlane) -> Iterator[FaultProxy]:
    with proxied(crds) as proxy:
        yield proxy


@pytest.fixture
def operator(crds: ControlPlane, proxy: FaultProxy, tmp_path: Path) -> Iterator[OperatorProcess]:
    grant(crds)
    config = detour(kubeconfig(crds, tmp_path / "kubeconfig"), proxy)
    operator = OperatorProcess(config, tmp_path / "operator.log")
    yield operator
    assert operator.alive, operator.log.read_text()[-4000:]
    operator.stop()


def test_a_kind_that_the_discovery_shows_late_is_watched_again(
    crds: ControlPlane, proxy: FaultProxy, operator: OperatorProcess, namespace: str
) -> None:
    with NodeAgent(crds):
        stack = Stack(crds, namespace)
        stack.add_profile()
        stack.add()
        eventually(stack.ready, "the first replica is ready")
        with proxy.failing(Answer(404), DISCOVERY) as late:
            crds.kubectl("delete", "crd", "k3profiles.umbra.dev", "--timeout=20s")
            install_crds(crds)
            # kopf looks after each event of the CRD, and after the last one not any more.
            time.sleep(3)
            assert late.applied
        stack.add_profile()
        stack.edit({"engine.contextLength": 8192})
        eventually(stack.ready, "both kinds are watched again", 30)
        stack.api("DELETE", stack.path("k3"))
        crds.kubectl("delete", "k3p", stack.profile)
