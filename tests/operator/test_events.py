"""What becomes an event: what happens, once, and never what merely is; bounded on the way to the real API server."""

import copy
from typing import Any, cast

import pytest

from builders import NOW, World, deployment, edited
from localcluster.controlplane import ControlPlane
from umbra_operator.cluster import DEPLOYMENTS, EVENTS, Cluster, KubeCluster
from umbra_operator.conditions import Reason
from umbra_operator.events import UNWELL_PAUSE_SECONDS, Done, Event, of_action, of_status, presses
from umbra_operator.plan import CreatePod
from umbra_operator.recorder import BURST, NOTE_BYTES, REFILL_SECONDS, Recorder
from umbra_operator.records import deployment_record
from umbra_operator.status import status

META = {"name": "k3", "namespace": "ns", "resourceVersion": "1"}


def conditions(world: World) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = status(world.observe(), world.plan(), world.agents, NOW)["conditions"]
    return found


def reasons(events: list[Event]) -> list[tuple[bool, str]]:
    return [(event.warning, event.reason) for event in events]


def test_a_new_deployment_makes_one_event_and_a_status_that_stays_makes_none() -> None:
    world = World()
    first = conditions(world)
    world.run()
    then = conditions(world)
    assert of_status([], first) == []
    assert reasons(of_status(first, then)) == [(False, Reason.SERVING)]
    assert of_status(then, conditions(world)) == []


def test_a_reason_is_told_once_although_several_conditions_carry_it() -> None:
    world = World()
    world.run()
    before = conditions(world)
    world.edit(edited(world.spec, {"profileRef.name": "none-v1"}))
    (event,) = of_status(before, conditions(world))
    assert (event.warning, event.reason) == (True, Reason.PROFILE_NOT_FOUND)
    assert "none-v1" in event.note


def test_a_service_that_is_lost_unasked_is_a_warning() -> None:
    world = World()
    world.run()
    before = conditions(world)
    (name,) = world.bodies
    world.bodies[name]["status"]["conditions"] = []
    world.memory.put_pod({**world.bodies[name]})
    assert reasons(of_status(before, conditions(world))) == [(True, Reason.NO_REPLICA_SERVES)]


def test_a_held_rollout_is_told_and_a_service_that_is_ended_on_purpose() -> None:
    world = World()
    world.run()
    before = conditions(world)
    world.edit(edited(world.spec, {"engine.contextLength": 8192, "rollout.paused": True}))
    held = conditions(world)
    assert reasons(of_status(before, held)) == [(False, Reason.ROLLOUT_PAUSED)]
    world.edit(edited(world.spec, {"replicas": 0}))
    world.run()
    assert reasons(of_status(held, conditions(world))) == [(False, Reason.SCALED_TO_ZERO)]


def test_a_kit_that_the_kubelet_holds_back_is_told() -> None:
    world = World()
    world.run()
    world.edit(edited(world.spec, {"engine.contextLength": 8192}))
    before = conditions(world)
    body = world.bodies["k3-0-0"]
    body["status"]["initContainerStatuses"] = [
        {"name": "kit", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}}
    ]
    world.memory.put_pod(body)
    (event,) = of_status(before, conditions(world))
    assert (event.warning, event.reason) == (False, Reason.IMAGE_BACK_OFF)
    assert "10 to 30 s are usual" in event.note


def test_a_start_s_stages_may_wait_and_what_a_user_waits_for_or_fears_may_not() -> None:
    def now() -> dict[str, Any]:
        return status(world.observe(), world.plan(), world.agents, NOW)

    world = World()
    assert presses({}, now()), "the first one"
    for action in world.plan().actions:
        world.apply(action)
    made = now()
    world.bodies["k3-0-0"]["spec"]["nodeName"] = "n"
    world.memory.put_pod(world.bodies["k3-0-0"])
    placed = now()
    assert made != placed
    assert not presses(made, placed)
    preflight = {"name": "preflight", "state": {"terminated": {"exitCode": 3}}}
    failed = world.add(copy.deepcopy(world.bodies["k3-0-0"]), initContainerStatuses=[preflight])
    assert presses(placed, now()), "a warning"
    failed["status"].pop("initContainerStatuses")
    world.settle("k3-0-0")
    agents, world.agents = world.agents, {}
    assert not presses(placed, now()), "Available comes with Ready, or a moment later"
    serves, world.agents = now(), agents
    assert presses(serves, now()), "Ready"
    assert presses(now(), placed)
    before = now()
    world.edit({**world.spec, "replicas": 2})
    assert presses(before, now()), "another generation"


def test_what_is_done_to_a_pod_that_exists_is_told_with_its_cause() -> None:
    world = World()
    world.run()

    def told(**edits: Any) -> list[str | None]:
        world.edit(edited(world.spec, edits))
        events = [of_action(action, world.observe()) for action in world.plan().actions]
        world.run()
        return [event.reason if event else None for event in events]

    assert told(**{"engine.contextLength": 8192}) == [Done.ENGINE_RESTART_ASKED]
    assert told(**{"cache.policy": {"checkpoints": "All"}}) == [Done.LIVE_SETTINGS_SENT]
    assert Done.POD_REPLACED in told(**{"cache.dram.size": "2Gi"})
    assert Done.REPLICA_REMOVED in told(replicas=0)
    assert of_action(CreatePod({}), world.observe()) is None
    world.edit(edited(world.spec, {"replicas": 1}))
    world.run()
    (name,) = world.bodies
    world.bodies[name]["status"]["phase"] = "Failed"
    world.memory.put_pod(world.bodies[name])
    world.apply_all()
    event = of_action(world.plan().actions[0], world.observe())
    assert event
    assert (event.warning, event.reason) == (True, Done.POD_ENDED)


def test_a_reason_with_a_pause_is_told_once_in_it() -> None:
    now = 0.0
    recorder = Recorder(cast(Cluster, None), lambda: now)
    record = deployment_record({**deployment(), "metadata": {**META, "uid": "u1"}})
    other = deployment_record({**deployment(), "metadata": {**META, "uid": "u2"}})
    unwell = Event(True, Reason.STORE_FROZEN, "the store does not answer", UNWELL_PAUSE_SECONDS)
    for _ in range(3):
        recorder.tell(record, unwell)
    recorder.tell(other, unwell)
    recorder.tell(record, Event(False, Reason.SERVING, "at least one replica serves"))
    assert len(recorder._waiting) == 3
    now = UNWELL_PAUSE_SECONDS + 1
    recorder.tell(record, unwell)
    assert len(recorder._waiting) == 4


@pytest.mark.apiserver
async def test_events_reach_the_api_server_bounded_for_each_object(
    crds: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(crds.kubeconfig))
    door = await KubeCluster.connect()
    body = await door.create(DEPLOYMENTS, deployment(namespace=namespace))
    record, now = deployment_record(body), 0.0
    recorder = Recorder(door, lambda: now)
    for _ in range(BURST + 5):
        recorder.tell(record, Event(True, Reason.NAME_CONFLICT, "é" * NOTE_BYTES))
    now = REFILL_SECONDS + 1
    for _ in range(2):
        recorder.tell(record, Event(False, Reason.SERVING, "at least one replica serves"))
    await recorder.send()
    found = [each async for each in door.list(EVENTS, namespace)]
    assert len(found) == BURST + 1
    assert {each["regarding"]["uid"] for each in found} == {body["metadata"]["uid"]}
    assert sorted(each["type"] for each in found) == ["Normal", *["Warning"] * BURST]
    await door.close()
