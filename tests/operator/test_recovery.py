"""Replicas whose pods ended: replaced at once, then ever later, then not any more; what somebody wished counts not."""

from datetime import UTC, datetime
from typing import Any

import pytest

from builders import DEPLOYMENT_SPEC, NOW, World, edited
from umbra_operator.conditions import Reason
from umbra_operator.plan import CreatePod, DeletePod
from umbra_operator.render import names
from umbra_operator.status import status

EVICTED = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
REFUSED = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"}
KILLED = {"exitCode": 137, "reason": "OOMKilled"}


def settled(**edits: Any) -> World:
    world = World(edited(DEPLOYMENT_SPEC, {path.replace("__", "."): value for path, value in edits.items()}))
    world.run()
    return world


def newest(world: World) -> str:
    return max(world.bodies, key=lambda name: int(name.rsplit("-", 1)[1]))


def ends(world: World, **what: Any) -> None:
    """The replica's pod ends now."""
    body = world.bodies[newest(world)]
    at = datetime.fromtimestamp(world.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body["status"] = {"startTime": at, **what}
    for container in body["status"].get("containerStatuses", ()):
        container["state"]["terminated"]["finishedAt"] = at
    world.memory.put_pod(body)


def replaced_after(world: World) -> float:
    """Seconds until the replica has another pod, as the operator looks when its plan says so."""
    began = world.now
    plan = world.plan()
    while not any(isinstance(action, CreatePod) for action in plan.actions):
        assert plan.wait_seconds is not None, plan.stopped
        world.now += plan.wait_seconds
        plan = world.plan()
    world.run()
    return world.now - began


def degraded(world: World) -> tuple[str, str]:
    conditions = status(world.observe(), world.plan(), world.agents, NOW)["conditions"]
    (found,) = [condition for condition in conditions if condition["type"] == "Degraded"]
    return found["reason"], found["message"]


def test_a_cause_that_stays_makes_pods_ever_more_slowly() -> None:
    world = settled()
    waits = []
    for _ in range(9):
        ends(world, **REFUSED)
        waits.append(replaced_after(world))
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 300]
    assert len(world.bodies) == 1, "each is deleted when the next one is there"
    world.now += 7200
    ends(world, **REFUSED)
    assert replaced_after(world) == 0, "the window is over"


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        pytest.param(EVICTED, "Evicted: The node was low on resource: memory.", id="evicted"),
        pytest.param(REFUSED, "UnexpectedAdmissionError: no healthy devices present", id="refused by the node"),
        pytest.param(
            {"phase": "Failed", "containerStatuses": [{"name": "engine", "state": {"terminated": KILLED}}]},
            "OOMKilled, exit code 137",
            id="OOMKilled",
        ),
        pytest.param({"phase": "Failed"}, "Failed", id="failed without a word"),
    ],
)
def test_recovery_stopped(what: dict[str, Any], cause: str) -> None:
    world = settled(recovery={"maxRestarts": 2, "windowSeconds": 600})
    for _ in range(2):
        ends(world, **what)
        replaced_after(world)
        assert degraded(world)[0] != Reason.RECOVERY_STOPPED
    ends(world, **what)
    for _ in range(3):
        plan = world.plan()
        assert (plan.actions, plan.wait_seconds) == ((), None), "no further harm, however long it takes"
        world.now += 3600
    reason, message = degraded(world)
    assert reason == Reason.RECOVERY_STOPPED
    assert f"k3-0-2 has ended ({cause}) and was replaced 2 times in 600 s" in message
    ready = status(world.observe(), world.plan(), world.agents, NOW)["conditions"][-2]
    assert cause in ready["message"]


@pytest.mark.parametrize(
    "edit", [{"restart.id": "again"}, {"engine.contextLength": 8192}, {"recovery.maxRestarts": 3}, {"recovery": None}]
)
def test_what_is_stopped_goes_on_when_the_spec_changes(edit: dict[str, Any]) -> None:
    world = settled(recovery={"maxRestarts": 0})
    ends(world, **EVICTED)
    assert world.plan().stopped
    world.edit(edited(world.spec, edit))
    assert replaced_after(world) == 0
    assert not world.plan().stopped


def test_deleting_the_pod_by_hand_is_a_new_try() -> None:
    world = settled(recovery={"maxRestarts": 0})
    ends(world, **EVICTED)
    body = world.bodies.pop(newest(world))
    world.memory.drop_pod(body)
    assert replaced_after(world) == 0


def lost(world: World, reason: str) -> None:
    """The pod is deleted with this reason, and its node never says that it is gone."""
    body = world.bodies[newest(world)]
    at = datetime.fromtimestamp(world.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": at}
    body["metadata"]["deletionTimestamp"] = at
    body["status"]["conditions"] = [*body["status"]["conditions"], {**disrupted, "message": f"{reason}: bye"}]
    world.memory.put_pod(body)


def run_but(world: World, stuck: str) -> None:
    for _ in range(3):
        world.apply_all()
        for name in [each for each in world.bodies if each != stuck]:
            world.settle(name)


def test_a_pod_lost_with_its_node_counts_while_it_still_ends() -> None:
    world = settled(recovery={"maxRestarts": 1})
    lost(world, "DeletionByTaintManager")
    run_but(world, "k3-0-0")
    assert world.bodies.keys() == {"k3-0-0", "k3-0-1"}
    assert world.bodies["k3-0-1"]["metadata"]["annotations"][names.ANNOTATION_EARLIER_ENDS] == f"0@{world.now:.0f}"
    world.now += 60
    ends(world, **EVICTED)
    assert "k3-0-1 has ended" in world.plan().stopped[0]


def test_a_pod_that_is_drained_or_preempted_is_nobodys_failure() -> None:
    for reason in ("EvictionByEvictionAPI", "PreemptionByScheduler"):
        world = settled(recovery={"maxRestarts": 0})
        lost(world, reason)
        run_but(world, "k3-0-0")
        assert world.bodies.keys() == {"k3-0-0", "k3-0-1"}
        assert names.ANNOTATION_EARLIER_ENDS not in world.bodies["k3-0-1"]["metadata"]["annotations"]


def test_an_ended_pod_holds_back_no_other_replica_and_no_change() -> None:
    world = settled(replicas=2, recovery={"maxRestarts": 0})
    ends(world, **EVICTED)
    assert newest(world) == "k3-0-0"
    world.edit(edited(world.spec, {"replicas": 3, "cache.policy": {"checkpoints": "All"}}))
    world.run()
    assert {pod.name: pod.ready for pod in world.observe().pods} == {"k3-0-0": False, "k3-1-0": True, "k3-2-0": True}
    world.edit(edited(world.spec, {"replicas": 0}))
    assert sum(isinstance(action, DeletePod) for action in world.plan().actions) == 3


def test_an_annotation_that_somebody_made_unreadable_counts_for_nothing() -> None:
    world = settled()
    world.bodies["k3-0-0"]["metadata"]["annotations"][names.ANNOTATION_EARLIER_ENDS] = "yesterday,²@³,7@17"
    world.memory.put_pod(world.bodies["k3-0-0"])
    assert [pod.earlier_ends for pod in world.observe().pods] == [((7, 17),)]
