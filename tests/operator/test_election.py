"""Leader election against the real API server: one election at a time by itself, then whole operators."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from apiproxy import detour, proxied
from faultproxy import CutAfter, FaultProxy, Match
from localcluster.controlplane import ControlPlane
from nodeagent import NodeAgent
from operatorprocess import LEASE, SYSTEM, OperatorProcess, grant, kubeconfig
from stack import Stack, eventually
from umbra_operator import errors
from umbra_operator.cluster import LEASES, PODS, KubeCluster
from umbra_operator.election import Election, Timing

pytestmark = pytest.mark.apiserver

QUICK = Timing(lease=2, renew=0.3, reserve=0.5, look=0.1)
RENEWALS = Match({"patch"}, "leases")


@pytest.fixture(scope="module")
def config(crds: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Connects as the chart's service account, with its rights and no more."""
    grant(crds)
    return kubeconfig(crds, tmp_path_factory.mktemp("election") / "kubeconfig")


@pytest.fixture(scope="module")
def proxy(crds: ControlPlane) -> Iterator[FaultProxy]:
    with proxied(crds) as proxy:
        yield proxy


@pytest.fixture
async def door(config: Path, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubeCluster]:
    monkeypatch.setenv("KUBECONFIG", str(detour(config, proxy)))
    connected = await KubeCluster.connect()
    yield connected
    await connected.close()


@pytest.fixture
def lease(crds: ControlPlane) -> Iterator[str]:
    """Name of the lease that the chart's role names, absent at first."""
    yield LEASE
    crds.kubectl("-n", SYSTEM, "delete", "lease", LEASE, "--ignore-not-found")


async def spec(door: KubeCluster) -> dict[str, Any]:
    found: dict[str, Any] = (await door.get(LEASES, SYSTEM, LEASE))["spec"]
    return found


async def test_the_second_waits_until_the_first_gives_the_lease_back(door: KubeCluster, lease: str) -> None:
    first, second = (Election(door, SYSTEM, lease, QUICK) for _ in range(2))
    await first.acquire()
    looks: list[bool] = []
    waiting = asyncio.create_task(second.acquire(looks.append))
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(3)
    assert not waiting.done()
    assert set(looks) == {True}
    assert 0 < first.patience() <= QUICK.lease
    assert second.patience() <= 0
    holding.cancel()
    await first.release()
    assert first.patience() <= 0
    await asyncio.wait_for(waiting, 0.5)
    assert (await spec(door))["holderIdentity"] == second.identity
    assert (await spec(door))["leaseTransitions"] == 1


async def test_a_lease_that_is_not_renewed_is_taken_after_its_time_by_our_own_clock(
    door: KubeCluster, lease: str
) -> None:
    first, second = (Election(door, SYSTEM, lease, QUICK) for _ in range(2))
    await first.acquire()
    # The holder's clock is wrong by years; what counts is how long the lease was seen to stand still.
    wrong = {"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}}
    await door.patch(LEASES, SYSTEM, lease, wrong)
    began = time.monotonic()
    await asyncio.wait_for(second.acquire(), 5)
    assert QUICK.lease <= time.monotonic() - began < QUICK.lease + 1
    with pytest.raises(errors.LeaseLost, match="in time"):
        await asyncio.wait_for(first.hold(), 3)


async def test_whoever_finds_another_holder_has_lost(door: KubeCluster, lease: str) -> None:
    election = Election(door, SYSTEM, lease, QUICK)
    await election.acquire()
    await door.patch(LEASES, SYSTEM, lease, {"spec": {"holderIdentity": "another"}})
    with pytest.raises(errors.LeaseLost, match="held by another"):
        await asyncio.wait_for(election.hold(), 3)


async def test_a_renewal_whose_answer_was_lost_is_no_loss(door: KubeCluster, lease: str, proxy: FaultProxy) -> None:
    election = Election(door, SYSTEM, lease, QUICK)
    await election.acquire()
    with proxy.failing(CutAfter(), RENEWALS, times=1) as rule:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(election.hold(), 2.5)
        assert rule.applied == 1
    assert election.patience() > 0


async def test_renewals_that_fail_until_the_reserve_lose_the_lease(
    door: KubeCluster, lease: str, proxy: FaultProxy
) -> None:
    election = Election(door, SYSTEM, lease, QUICK)
    await election.acquire()
    began = time.monotonic()
    with proxy.failing(CutAfter(), Match(resource="leases")), pytest.raises(errors.LeaseLost, match="in time"):
        await asyncio.wait_for(election.hold(), 3)
    assert time.monotonic() - began <= QUICK.lease - QUICK.reserve + 0.2
    assert election.patience() > 0, "requests end before the lease does"


async def test_a_deleted_lease_is_lost(door: KubeCluster, lease: str, crds: ControlPlane) -> None:
    election = Election(door, SYSTEM, lease, QUICK)
    await election.acquire()
    crds.kubectl("-n", SYSTEM, "delete", "lease", lease)
    with pytest.raises(errors.LeaseLost, match="deleted"):
        await asyncio.wait_for(election.hold(), 3)


async def test_without_the_lease_no_request_is_sent(door: KubeCluster, lease: str, proxy: FaultProxy) -> None:
    election = Election(door, SYSTEM, lease, Timing(lease=1, reserve=0.1))
    fenced = await KubeCluster.connect(election.patience)
    with pytest.raises(errors.LeaseLost):
        await fenced.get(PODS, "default", "before")
    await election.acquire()
    with pytest.raises(errors.Missing):
        await fenced.get(PODS, "default", "leading")
    await asyncio.sleep(1.1)
    with pytest.raises(errors.LeaseLost, match="does not lead any more"):
        await fenced.get(PODS, "default", "after")
    await fenced.close()
    asked = {request.name for request in proxy.requests(Match(resource="pods"))}
    assert "leading" in asked
    assert not asked & {"before", "after"}


class Pair:
    """Two operators with one lease."""

    def __init__(self, config: Path, folder: Path) -> None:
        self.each = [OperatorProcess(config, folder / f"{number}.log") for number in (1, 2)]

    def leader(self) -> OperatorProcess:
        eventually(lambda: sum(one.leads() for one in self.each) == 1, "one of them leads", 20)
        return next(one for one in self.each if one.leads())

    def standby(self) -> OperatorProcess:
        leader = self.leader()
        return next(one for one in self.each if one is not leader)


@pytest.fixture
def pair(config: Path, crds: ControlPlane, tmp_path: Path, lease: str) -> Iterator[Pair]:
    """Two operators, and a node for their pods."""
    with NodeAgent(crds):
        pair = Pair(config, tmp_path)
        yield pair
        for one in pair.each:
            if one.alive:
                one.stop()


@pytest.fixture
def serving(pair: Pair, crds: ControlPlane, namespace: str) -> Iterator[Stack]:
    stack = Stack(crds, namespace)
    stack.add_profile()
    stack.add()
    eventually(stack.ready, "the first replica is ready")
    yield stack
    # While their node is still there: the node of a later test would find pods that it never started.
    crds.kubectl("-n", namespace, "delete", "k3", "--all")
    crds.kubectl("-n", namespace, "delete", "pods", "--all", "--timeout=60s")
    crds.kubectl("delete", "k3p", stack.profile)


def context_length(stack: Stack) -> str:
    argv = json.loads(stack.pods()["k3-0-0"]["metadata"]["annotations"]["umbra.dev/launch"])["argv"]
    return str(argv[argv.index("--context-length") + 1]) if "--context-length" in argv else ""


def test_only_the_leader_works_and_a_graceful_end_hands_over_at_once(serving: Stack, pair: Pair) -> None:
    leader, standby = pair.leader(), pair.standby()
    assert leader.writes() > 0
    assert standby.metric("rest_client_requests_total") == standby.metric("rest_client_requests_total", "leases")
    assert [one.answers(path) for one in pair.each for path in ("/healthz", "/readyz")] == [200] * 4
    serving.edit({"engine.contextLength": 8192})
    began = time.monotonic()
    assert leader.stop() < 2
    eventually(lambda: context_length(serving) == "8192", "the successor follows the edit", 10)
    assert standby.leads()
    # Ending, taking over, reading everything and acting; the lease alone takes at most 1 s.
    assert time.monotonic() - began < 6


def test_a_leader_that_was_stopped_and_resumed_writes_nothing_and_ends(serving: Stack, pair: Pair) -> None:
    leader, standby = pair.leader(), pair.standby()
    leader.kill(signal.SIGSTOP)
    serving.edit({"replicas": 2})
    eventually(standby.leads, "the other takes over when the lease has ended", 18)
    eventually(lambda: serving.ready() and len(serving.pods()) == 2, "the successor scales")
    before = serving.versions()
    leader.kill(signal.SIGCONT)
    assert leader.ended(3) == 1
    assert "ending at once" in leader.log.read_text()
    time.sleep(2)
    assert serving.versions() == before
    assert standby.leads()
