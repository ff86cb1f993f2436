"""The status: one reason for each situation, the same for the same input, and times that move only on flips."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from builders import DEPLOYMENT_SPEC, NAME, NAMESPACE, NOW, World, edited, profile, stored
from umbra_operator.agents import Agents, EngineAgent, StoreAgent, engine_agent, store_agent
from umbra_operator.api.v1alpha1 import K3DeploymentStatus
from umbra_operator.conditions import MEANINGS, REASONS, Reason, Type
from umbra_operator.render import names
from umbra_operator.render.pulls import pull_name
from umbra_operator.status import status

LATER = "2026-12-02T08:00:00Z"
CHECK = {"name": "memlock", "ok": False, "found": "64 KiB", "needed": "1 GiB", "remedy": "raise the limit"}
PREFLIGHT = json.dumps({"passed": False, "checks": [CHECK, {**CHECK, "name": "thp", "ok": "unknown"}]})


def settled(**edits: Any) -> World:
    world = World(edited(DEPLOYMENT_SPEC, {path.replace("__", "."): value for path, value in edits.items()}))
    world.run()
    return world


def of(world: World, now: str = NOW) -> dict[str, Any]:
    return status(world.observe(), world.plan(), world.agents, now)


def conditions(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in found["conditions"]}


def change(world: World, **changes: Any) -> None:
    """Replaces parts of the first pod's status."""
    body = next(iter(world.bodies.values()))
    body["status"].update(changes)
    world.memory.put_pod(body)


def container(name: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "started": False, "state": state, **more}


NOT_READY: dict[str, Any] = {"conditions": []}
PASSED = container(names.PREFLIGHT, {"terminated": {"exitCode": 0}})
STORE_UP = container(names.STORE, {"running": {}}, started=True)
OOM = {"reason": "OOMKilled"}
ENDED = {"exitCode": 1, "reason": "Error", "message": "no space"}
LOOP = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}


def engine_says(
    state: str, problem: str | None = None, revision: str | None = None, **more: bool
) -> Callable[[World], None]:
    def step(world: World) -> None:
        engine = EngineAgent(revision, None, state, 0, problem, **more)
        world.agents = {"u1": Agents(engine, StoreAgent("e", "ready", None))}
        for uid in list(world.memory.pods()):
            world.agents[uid.uid] = world.agents["u1"]

    return step


def both(*steps: Callable[[World], Any]) -> Callable[[World], None]:
    def step(world: World) -> None:
        for each in steps:
            each(world)

    return step


def new_kit_is(state: dict[str, Any]) -> Callable[[World], None]:
    """Another kit is wanted, and this is what the kubelet says of its image."""

    def step(world: World) -> None:
        world.memory.put_profile(stored(profile(kit__image="example.test/kit:2"), "p2"))
        name = pull_name("example.test/kit:2")
        next(iter(world.bodies.values()))["spec"]["ephemeralContainers"] = [{"name": name}]
        change(world, ephemeralContainerStatuses=[{"name": name, **state}])

    return step


def pod_is(**changes: Any) -> Callable[[World], None]:
    return lambda world: change(world, **changes)


def containers_are(*entries: dict[str, Any]) -> Callable[[World], None]:
    return pod_is(**NOT_READY, containerStatuses=list(entries))


def store_says(answer: StoreAgent | None) -> Callable[[World], None]:
    def step(world: World) -> None:
        for uid, agents in list(world.agents.items()):
            world.agents[uid] = Agents(agents.engine, answer)

    return step


UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: no GPU"}]
SITUATIONS: dict[str, tuple[Callable[[World], Any], str, str, str, str, str]] = {
    # situation: (step from a settled world, condition, status, reason, words of the message, reason of Ready)
    "all well": (lambda _: None, "Ready", "True", "Serving", "all replicas", "Serving"),
    "no profile": (
        lambda world: world.memory.drop_profile("local-v1", "p1"),
        "ConfigValid",
        "False",
        "ProfileNotFound",
        "local-v1",
        "ProfileNotFound",
    ),
    "restarts are spent": (
        both(pod_is(**NOT_READY), engine_says("failed", "it stays down", stopped=True)),
        "Degraded",
        "True",
        "RecoveryStopped",
        "k3-0-0: it stays down",
        "EngineFailed",
    ),
    "no readable spec": (
        lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"cache.dram.size": "lots"})),
        "ConfigValid",
        "False",
        "SpecUnreadable",
        "spec.cache.dram.size",
        "SpecUnreadable",
    ),
    "no node": (
        pod_is(conditions=UNSCHEDULABLE, containerStatuses=[]),
        "PreflightPassed",
        "Unknown",
        "Unschedulable",
        "no GPU",
        "Unschedulable",
    ),
    "no image": (
        containers_are(container(names.KIT, {"waiting": {"reason": "ErrImagePull", "message": "not found"}})),
        "PreflightPassed",
        "Unknown",
        "ImageUnavailable",
        "kit: not found",
        "ImageUnavailable",
    ),
    "no image of a new kit": (
        new_kit_is({"imageID": "", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}),
        "PreflightPassed",
        "Unknown",
        "ImageUnavailable",
        "k3-0-0 goes on as it is, its node cannot get the new kit: not found",
        "ImageUnavailable",
    ),
    "preflight waits": (containers_are(), "PreflightPassed", "Unknown", "Pending", "k3-0-0", "Pending"),
    "a check failed": (
        containers_are(container(names.PREFLIGHT, {"terminated": {"exitCode": 1, "message": PREFLIGHT}})),
        "PreflightPassed",
        "False",
        "CheckFailed",
        "memlock: found 64 KiB, needed 1 GiB; raise the limit",
        "CheckFailed",
    ),
    "a check failed before": (
        containers_are(
            container(names.PREFLIGHT, LOOP, lastState={"terminated": {"exitCode": 1, "message": "killed"}})
        ),
        "PreflightPassed",
        "False",
        "CheckFailed",
        "killed",
        "CheckFailed",
    ),
    "a failed check is looked at again": (
        containers_are(
            container(
                names.PREFLIGHT,
                {"running": {}},
                restartCount=3,
                lastState={"terminated": {"exitCode": 1, "reason": "Error", "message": PREFLIGHT}},
            )
        ),
        "PreflightPassed",
        "False",
        "CheckFailed",
        "memlock: found 64 KiB",
        "CheckFailed",
    ),
    "preflight runs again after the node was restarted": (
        containers_are(
            container(
                names.PREFLIGHT,
                {"running": {}},
                restartCount=1,
                lastState={"terminated": {"exitCode": 0, "reason": "Completed"}},
            )
        ),
        "PreflightPassed",
        "Unknown",
        "Pending",
        "waiting",
        "Pending",
    ),
    "preflight had too little memory": (
        containers_are(container(names.PREFLIGHT, {"terminated": {"exitCode": 137, **OOM}})),
        "PreflightPassed",
        "False",
        "CheckFailed",
        "raise spec.resources.engine.memory",
        "CheckFailed",
    ),
    "the store had too little memory": (
        containers_are(PASSED, container(names.STORE, LOOP, lastState={"terminated": OOM})),
        "StoreReady",
        "False",
        "OutOfMemory",
        "raise spec.resources.store.memory",
        "EngineStarting",
    ),
    "the engine had too little memory": (
        both(
            containers_are(PASSED, STORE_UP, container(names.ENGINE, {"running": {}}, lastState={"terminated": OOM})),
            engine_says("starting"),
        ),
        "EngineReady",
        "False",
        "OutOfMemory",
        "raise spec.resources.engine.memory",
        "OutOfMemory",
    ),
    "the engine had too little memory long ago": (
        lambda world: change(
            world,
            containerStatuses=[
                PASSED,
                STORE_UP,
                container(names.ENGINE, {"running": {}}, ready=True, lastState={"terminated": OOM}),
            ],
        ),
        "EngineReady",
        "True",
        "Serving",
        "every engine serves",
        "Serving",
    ),
    "the store starts": (
        containers_are(PASSED, container(names.STORE, {"running": {}})),
        "StoreReady",
        "False",
        "StoreStarting",
        "k3-0-0",
        "EngineStarting",
    ),
    "the store fails": (
        containers_are(PASSED, container(names.STORE, LOOP, lastState={"terminated": {"message": "no memory"}})),
        "StoreReady",
        "False",
        "StoreFailed",
        "no memory",
        "EngineStarting",
    ),
    "the store is lost under a serving engine": (
        store_says(StoreAgent("e", "stopped", "it was killed")),
        "StoreReady",
        "False",
        "StoreStarting",
        "it was killed",
        "Serving",
    ),
    "the engine starts": (
        containers_are(PASSED, STORE_UP, container(names.ENGINE, {"running": {}})),
        "EngineReady",
        "False",
        "EngineStarting",
        "k3-0-0",
        "EngineStarting",
    ),
    "the agent ends": (
        containers_are(PASSED, STORE_UP, container(names.ENGINE, LOOP, lastState={"terminated": {"message": "boom"}})),
        "EngineReady",
        "False",
        "EngineFailed",
        "boom",
        "EngineFailed",
    ),
    "the engine ends": (
        both(pod_is(**NOT_READY), engine_says("failed", "exit 1: no such flag")),
        "EngineReady",
        "False",
        "EngineFailed",
        "no such flag",
        "EngineFailed",
    ),
    "GPU memory is held": (
        both(pod_is(**NOT_READY), engine_says("waiting", "Waiting: 1 GPUs hold memory", memory_held=True)),
        "EngineReady",
        "False",
        "GPUMemoryHeld",
        "k3-0-0: Waiting: 1 GPUs hold memory",
        "GPUMemoryHeld",
    ),
    "an earlier kit comes again": (
        both(
            lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"engine.contextLength": 4096})),
            pod_is(initContainerStatuses=[container(names.KIT, LOOP)]),
        ),
        "EngineReady",
        "False",
        "ImageBackOff",
        f"k3-0-0: the kubelet waits before it starts the kit's image example.test/kit@sha256:{'b' * 64} again; "
        "10 to 30 s are usual when the pod had that image before, and the engine serves meanwhile",
        "ImageBackOff",
    ),
    "another kit fails": (
        both(
            lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"engine.contextLength": 4096})),
            pod_is(initContainerStatuses=[container(names.KIT, LOOP, lastState={"terminated": ENDED})]),
        ),
        "EngineReady",
        "False",
        "ImageBackOff",
        "which ended with: no space; read the log of container kit, and correct the profile's kit.image",
        "ImageBackOff",
    ),
    "the engine restarts": (
        lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"engine.contextLength": 4096})),
        "EngineReady",
        "False",
        "EngineRestarting",
        "k3-0-0",
        "EngineRestarting",
    ),
    "the agent is silent": (
        lambda world: world.agents.clear(),
        "EngineReady",
        "Unknown",
        "AgentSilent",
        "9600",
        "AgentSilent",
    ),
    "the store's agent is silent": (
        store_says(None),
        "StoreReady",
        "Unknown",
        "AgentSilent",
        "9601",
        "Serving",
    ),
    "one too few": (
        lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"replicas": 2})),
        "Ready",
        "False",
        "Progressing",
        "1 of 2",
        "Progressing",
    ),
    "a change that empties a store": (
        lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"cache.dram.size": "2Gi"})),
        "EngineReady",
        "False",
        "PodReplaced",
        "empties the stores of k3-0-0 (1Gi)",
        "PodReplaced",
    ),
    "a paused rollout": (
        lambda world: world.edit(edited(DEPLOYMENT_SPEC, {"engine.contextLength": 4096, "rollout.paused": True})),
        "Ready",
        "False",
        "RolloutPaused",
        "spec.rollout.paused keeps k3-0-0",
        "RolloutPaused",
    ),
    "a rollout that waits for deletions": (
        lambda world: world.edit(
            edited(DEPLOYMENT_SPEC, {"engine.contextLength": 4096, "rollout.strategy": "OnDelete"})
        ),
        "EngineReady",
        "True",
        "Serving",
        "every engine serves",
        "WaitingForDeletion",
    ),
    "a cache that must not be lost unasked": (
        lambda world: world.edit(
            edited(DEPLOYMENT_SPEC, {"cache.dram.size": "2Gi", "rollout.cacheLoss": "RequireAcknowledgement"})
        ),
        "Stalled",
        "True",
        "AcknowledgementRequired",
        "spec.rollout.acknowledgedChange",
        "AcknowledgementRequired",
    ),
    "being deleted": (
        lambda world: world.memory.put_deployment(
            stored(
                {
                    "metadata": {"name": NAME, "namespace": NAMESPACE, "deletionTimestamp": NOW},
                    "spec": world.spec,
                },
                "d1",
            )
        ),
        "Ready",
        "False",
        "Deleting",
        "deleted",
        "Deleting",
    ),
}


def test_what_has_no_pods_yet_is_reconciling_and_not_stalled() -> None:
    """A tool that waits for it would give up where it is stalled."""
    found = conditions(of(World()))
    assert found[Type.READY]["reason"] == found[Type.RANKS_CONSISTENT]["reason"] == Reason.PENDING
    assert found[Type.RECONCILING]["status"] == "True"
    assert Type.STALLED not in found


@pytest.mark.parametrize("situation", SITUATIONS)
def test_each_situation_has_its_reason(situation: str) -> None:
    step, kind, value, reason, words, ready = SITUATIONS[situation]
    world = settled()
    step(world)
    found = conditions(of(world))
    assert (found[kind]["status"], found[kind]["reason"]) == (value, reason)
    assert words in found[kind]["message"]
    assert found["Ready"]["reason"] == ready
    check(of(world))


def test_a_failed_pod_is_available_elsewhere() -> None:
    world = settled(replicas=2)
    change(world, **NOT_READY)
    found = of(world)
    assert conditions(found)["Available"]["status"] == "True"
    assert (found["replicas"], found["readyReplicas"]) == (2, 1)


@pytest.mark.parametrize(
    ("replicas", "routing", "protected"),
    [
        (0, None, None),
        (1, None, ("False", "NoBudget")),
        (2, ("False", "NoCacheAwareRouting"), ("True", "BudgetInPlace")),
    ],
)
def test_warnings_about_replicas_that_lower_nothing(
    replicas: int, routing: tuple[str, str] | None, protected: tuple[str, str] | None
) -> None:
    found = conditions(of(settled(replicas=replicas)))
    for kind, wanted in (("CacheAwareRouting", routing), ("DisruptionProtected", protected)):
        assert ((found[kind]["status"], found[kind]["reason"]) if kind in found else None) == wanted
    assert found["Ready"]["status"] == "True"
    assert not {"Reconciling", "Stalled"} & set(found)


def test_a_pod_that_still_ends_is_named_when_its_successor_finds_no_place() -> None:
    world = settled()
    old = world.bodies["k3-0-0"]
    old["spec"]["nodeName"] = "node-3"
    old["metadata"]["deletionTimestamp"] = NOW
    world.memory.put_pod(old)
    for action in world.plan().actions:
        world.apply(action)
    new = world.bodies["k3-0-1"]
    new["status"] = {"conditions": UNSCHEDULABLE}
    world.memory.put_pod(new)
    message = conditions(of(world))["PreflightPassed"]["message"]
    assert message == "k3-0-1: 0/3 nodes: no GPU; k3-0-0 still ends on node-3"


def test_no_replicas_is_ready_and_not_available() -> None:
    found = of(settled(replicas=0))
    assert [
        (conditions(found)[kind]["status"], conditions(found)[kind]["reason"]) for kind in ("Ready", "Available")
    ] == [
        ("True", "ScaledToZero"),
        ("False", "ScaledToZero"),
    ]


def test_an_engine_that_is_not_serving_yet_is_not_ready_although_the_kubelet_still_says_so() -> None:
    world = settled()
    wanted = world.plan().revision
    assert wanted
    engine_says("starting", revision=wanted.launch)(world)
    assert conditions(of(world))["Ready"]["status"] == "False"


def test_what_agents_say_fits_into_the_schema() -> None:
    world = settled()
    long = "x" * 4000
    engine = {"revision": long, "wantedRevision": long, "state": long, "restarts": 0, "problem": long}
    store = {"epoch": long, "state": long, "problem": long}
    world.agents = {uid: Agents(engine_agent(engine), store_agent(store)) for uid in world.agents}
    K3DeploymentStatus.model_validate(of(world))


def check(found: dict[str, Any]) -> None:
    """What holds for every status."""
    K3DeploymentStatus.model_validate(found)
    kinds = [condition["type"] for condition in found["conditions"]]
    assert len(kinds) == len(set(kinds))
    progress = {"Reconciling", "Stalled"} & set(kinds)
    ready = conditions(found)["Ready"]["status"] == "True"
    assert len(progress) == (0 if ready else 1)
    assert "phase" not in found


MANY = st.lists(st.sampled_from(sorted(SITUATIONS)), max_size=3)


@settings(max_examples=60, deadline=None)
@given(MANY, MANY)
@example(["no readable spec", "being deleted"], [])
def test_time_moves_only_on_flips(first: list[str], then: list[str]) -> None:
    world = settled()
    for situation in first:
        SITUATIONS[situation][0](world)
    before = of(world)
    assert of(world) == before, "pure"
    check(before)
    world.memory.put_deployment(body_of(world, before))
    assert of(world, LATER) == before, "the same situation later is the same status"
    for situation in then:
        SITUATIONS[situation][0](world)
    world.memory.put_deployment(body_of(world, before))
    old, new = conditions(before), conditions(of(world, LATER))
    for kind, condition in new.items():
        flipped = kind not in old or old[kind]["status"] != condition["status"]
        assert condition["lastTransitionTime"] == (LATER if flipped else NOW), kind


def body_of(world: World, found: dict[str, Any]) -> dict[str, Any]:
    """The deployment as it is stored, with this status."""
    record = world.observe().deployment
    meta = {"name": NAME, "namespace": NAMESPACE, **({"deletionTimestamp": NOW} if record.deleting else {})}
    return {**stored({"metadata": meta, "spec": world.spec}, "d1", record.generation), "status": copy.deepcopy(found)}


def test_every_condition_and_reason_has_its_line() -> None:
    assert (set(MEANINGS), set(REASONS)) == (set(Type), set(Reason))
