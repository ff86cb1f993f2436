"""Whatever the API server answers or the network loses, the end is that of a run without a fault.

One operator behind the fault proxy. Each test creates two replicas and edits the engine while a fault works.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from apiproxy import detour, proxied
from faultproxy import (
    WRITES,
    Answer,
    CutAfter,
    Expire,
    Fault,
    FaultProxy,
    Freeze,
    LoseEvents,
    Match,
    ReplyLost,
    StaleList,
)
from localcluster.controlplane import ControlPlane
from nodeagent import NodeAgent, Timing
from operatorprocess import OperatorProcess, grant, kubeconfig
from stack import Stack, eventually
from umbra_operator.render import names

pytestmark = pytest.mark.apiserver

RESYNC_SECONDS = 10
"""The shortest that the operator takes: what a watch loses is found by the next full list."""
PATIENCE = 60.0
"""Seconds until the end is reached: a few resyncs on a busy machine."""


@dataclass(frozen=True)
class End:
    """Where a run ends, without what must differ between two runs."""

    pods: dict[str, str]
    """Launch revision of each pod."""
    kinds: list[str]
    """Of everything that bears the deployment's label."""
    conditions: dict[str, tuple[str, str]]
    starts: dict[str, int]
    """Of each replica's engine."""


class Lab:
    """Proxy, node and the operator that runs now."""

    def __init__(self, control_plane: ControlPlane, proxy: FaultProxy, node: NodeAgent, folder: Path) -> None:
        self.control_plane, self.proxy, self.node, self._folder = control_plane, proxy, node, folder
        self._config = detour(kubeconfig(control_plane, folder / "kubeconfig"), proxy)
        self._runs = 0
        self.operator = self._start()

    def restart(self) -> None:
        self.operator.stop()
        self.operator = self._start()
        eventually(lambda: self.operator.answers("/readyz") == 200, "the operator has listed everything", PATIENCE)

    def _start(self) -> OperatorProcess:
        self._runs += 1
        log = self._folder / f"operator-{self._runs}.log"
        return OperatorProcess(self._config, log, {"UMBRA_RESYNC_SECONDS": str(RESYNC_SECONDS)})


@pytest.fixture(scope="module")
def lab(crds: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    grant(crds)
    with NodeAgent(crds, Timing(start=0.2, restart=0.4, end=0.2)) as node, proxied(crds) as proxy:
        lab = Lab(crds, proxy, node, tmp_path_factory.mktemp("faults"))
        yield lab
        assert node.problems == []
        lab.operator.stop()


@pytest.fixture
def stack(lab: Lab, namespace: str) -> Iterator[Stack]:
    """A namespace; at the end the operator must still run, and nothing may have surprised it."""
    stack = Stack(lab.control_plane, namespace)
    stack.add_profile()
    yield stack
    said = lab.operator.log.read_text()
    assert lab.operator.alive, said[-4000:]
    assert "unexpected; trying again" not in said, said[-4000:]
    stack.api("DELETE", stack.path("k3"))
    stack.api("DELETE", f"/apis/umbra.dev/v1alpha1/k3profiles/{stack.profile}")


def create(stack: Stack) -> None:
    stack.add(replicas=2)
    eventually(stack.ready, "both replicas are ready", PATIENCE)


def edit(stack: Stack) -> None:
    stack.edit({"engine.contextLength": 8192})
    eventually(stack.ready, "both run the new revision", PATIENCE)


def end(lab: Lab, stack: Stack) -> End:
    """Where it ended. Fails for an object of the deployment that it does not own."""
    uid = stack.get()["metadata"]["uid"]
    everything = stack.everything()
    owners = {tuple(owner["uid"] for owner in body["metadata"].get("ownerReferences", ())) for body in everything}
    assert owners == {(uid,)}
    pods: dict[str, dict[str, Any]] = stack.pods()
    return End(
        {name: pod["metadata"]["annotations"][names.ANNOTATION_REVISION] for name, pod in pods.items()},
        sorted(f"{body.get('kind', '')}{body['metadata']['name']}" for body in everything),
        {kind: (each["status"], each["reason"]) for kind, each in stack.conditions().items()},
        {replica: n for (space, replica), n in lab.node.engine_starts.items() if space == stack.namespace},
    )


@pytest.fixture(scope="module")
def reference(lab: Lab) -> End:
    """The end of the run without a fault."""
    name = "faults-reference"
    lab.control_plane.kubectl("create", "namespace", name)
    stack = Stack(lab.control_plane, name)
    stack.add_profile()
    create(stack)
    edit(stack)
    found = end(lab, stack)
    lab.control_plane.kubectl("delete", "namespace", name, "--wait=false")
    lab.control_plane.kubectl("delete", "k3p", stack.profile)
    assert found.starts == {"k3-0": 2, "k3-1": 2}
    return found


ANSWERS: dict[str, tuple[Fault, dict[str, Any], int]] = {
    "conflicts on every write of pods": (Answer(409), {"verbs": WRITES, "resource": "pods"}, 6),
    "too many requests, with a time to wait": (Answer(429, retry_after=1), {"verbs": WRITES}, 4),
    "internal errors": (Answer(500), {"verbs": WRITES}, 5),
    "an API server that is not available": (Answer(503), {"verbs": WRITES}, 5),
    "broken connections after pods were made": (CutAfter(), {"verbs": {"create"}, "resource": "pods"}, 2),
    "no word after a pod was made": (ReplyLost(), {"verbs": {"create"}, "resource": "pods"}, 1),
}


@pytest.mark.parametrize("title", ANSWERS)
def test_bad_answers(lab: Lab, stack: Stack, reference: End, title: str) -> None:
    fault, match, times = ANSWERS[title]
    with lab.proxy.failing(fault, Match(namespace=stack.namespace, **match), times=times) as rule:
        create(stack)
        edit(stack)
        assert rule.applied == times
    assert end(lab, stack) == reference


def _of_a_pod(event: dict[str, Any]) -> bool:
    return bool(event["object"].get("kind") == "Pod" and event["type"] != "BOOKMARK")


WATCHES: dict[str, Fault] = {
    "half-open watches": Freeze(),
    "lost events": LoseEvents(_of_a_pod),
    "watches that have expired": Expire(),
}


@pytest.mark.parametrize("title", WATCHES)
def test_bad_watches(lab: Lab, stack: Stack, reference: End, title: str) -> None:
    times = 3 if title == "watches that have expired" else None
    with lab.proxy.failing(WATCHES[title], Match({"watch"}, resource="pods"), times=times) as rule:
        lab.restart()
        create(stack)
        edit(stack)
        assert rule.applied
    assert end(lab, stack) == reference


def test_stale_lists(lab: Lab, stack: Stack, reference: End) -> None:
    """The lists of a lagging API server show nothing of what is there."""
    stale = StaleList()
    with lab.proxy.failing(stale, Match({"list"}, where=lambda each: each.resource in ("pods", "k3deployments"))):
        lab.restart()
        create(stack)
        stale.hold()
        lab.restart()
        stack.edit({"engine.contextLength": 8192})
        resyncs = len(lab.proxy.requests(Match({"list"}, resource="pods")))
        eventually(
            lambda: len(lab.proxy.requests(Match({"list"}, resource="pods"))) > resyncs, "a stale resync", PATIENCE
        )
    eventually(stack.ready, "both run the new revision", PATIENCE)
    assert end(lab, stack) == reference
