"""The plan: one step at a time, towards the spec, from wherever the cluster stands."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import DEPLOYMENT_SPEC, NAME, NAMESPACE, World, deployment_spec, edited, profile_spec, stored
from builders import profile as profile_body
from umbra_operator.agents import Agents, EngineAgent
from umbra_operator.api.v1alpha1.rollout import CacheLoss, RolloutStrategy
from umbra_operator.cluster import CHILDREN
from umbra_operator.conditions import Reason
from umbra_operator.plan import Action, Apply, CreatePod, CreateSecret, DeletePod, PatchPod, Prune
from umbra_operator.render import names
from umbra_operator.render.children import Facts
from umbra_operator.render.pods import pod
from umbra_operator.render.resolve import resolve
from umbra_operator.render.revision import revision


def spec(**edits: Any) -> dict[str, Any]:
    return edited(DEPLOYMENT_SPEC, {path.replace("__", "."): value for path, value in edits.items()})


def settled(replicas: int = 2, **edits: Any) -> World:
    """A world whose pods all serve."""
    world = World(spec(replicas=replicas, **edits))
    world.run()
    return world


KEY = [("CreateSecret", names.admin_key_secret("k3", "d1"))]


def kinds(world: World) -> list[tuple[str, str]]:
    """The planned actions as (what, name of the pod or kind of the child)."""
    found = []
    for action in world.plan().actions:
        match action:
            case Apply(manifest, _):
                name = manifest["kind"]
            case CreatePod(manifest) | CreateSecret(manifest):
                name = manifest["metadata"]["name"]
            case Prune(kind, _, _):
                name = kind
            case _:
                name = action.name
        found.append((type(action).__name__, name))
    return found


def test_an_empty_cluster_gets_every_object_at_once_and_what_pods_need_first() -> None:
    assert kinds(World(spec(replicas=2))) == [
        ("Apply", "ServiceAccount"),
        ("Apply", "Service"),
        ("Apply", "NetworkPolicy"),
        ("Apply", "PodDisruptionBudget"),
        *KEY,
        ("CreatePod", "k3-0-0"),
        ("CreatePod", "k3-1-0"),
    ]


def test_a_pod_monitor_where_the_cluster_has_that_kind() -> None:
    world = World()
    world.memory.facts = Facts(pod_monitors=True)
    assert ("Apply", "PodMonitor") in kinds(world)


def test_the_budget_follows_the_replicas_and_goes_at_one() -> None:
    world = settled(1)
    assert world.plan().min_available == 0
    world.edit(spec(replicas=3))
    assert kinds(world)[0] == ("Apply", "PodDisruptionBudget")
    world.run()
    assert world.plan().min_available == 2
    world.edit(spec(replicas=2))
    (action, *_) = world.plan().actions
    assert isinstance(action, Apply)
    assert (action.manifest["spec"]["minAvailable"], action.uid is not None) == (1, True)
    world.run()
    world.edit(spec(replicas=1))
    assert kinds(world)[0] == ("Prune", "PodDisruptionBudget")
    world.run()
    assert {child.kind for child in world.observe().children} == {"ServiceAccount", "Service", "NetworkPolicy"}


def test_an_immutable_template_is_replaced_by_another() -> None:
    dra = profile_body(devices={"deviceClassName": "gpu.amd.com"})
    world = World(spec(), stored(dra, "p1"))
    assert ("Apply", "ResourceClaimTemplate") in kinds(world)
    world.run()
    world.edit(spec(parallelism={"tensor": 4}))
    assert kinds(world) == [
        ("Prune", "ResourceClaimTemplate"),
        ("Apply", "ResourceClaimTemplate"),
        ("DeletePod", "k3-0-0"),
    ]
    world.run()
    world.memory.drop_profile("local-v1", "p1")
    world.memory.put_profile(stored(profile_body(), "p2"))
    assert ("Prune", "ResourceClaimTemplate") in kinds(world)


def test_an_account_of_the_users_choice_takes_the_place_of_ours() -> None:
    world = settled(1)
    world.edit(spec(serviceAccountName="mine"))
    assert kinds(world) == [("Prune", "ServiceAccount"), ("DeletePod", "k3-0-0")]


def test_an_edit_of_the_network_changes_the_policy_and_no_pod() -> None:
    world = settled(1)
    world.edit(spec(network__from=[]))
    assert kinds(world) == [("Apply", "NetworkPolicy")]
    world.run()
    assert world.plan().actions == ()


def test_nothing_is_done_where_nothing_is_wanted() -> None:
    assert settled().plan().actions == ()


def test_a_pod_that_an_older_operator_rendered_otherwise_is_left_as_it_is() -> None:
    world = settled(2)
    older = world.bodies["k3-0-0"]
    older["metadata"]["annotations"][names.ANNOTATION_LAUNCH] = '{"argv":["python3","-m","older"]}'
    del older["metadata"]["labels"]["app.kubernetes.io/managed-by"]
    older["spec"] = {"containers": [{"name": "engine", "image": "example.test/older"}]}
    world.memory.put_pod(older)
    assert world.plan().actions == ()


def test_an_engine_edit_patches_one_pod_and_keeps_its_uid() -> None:
    world = settled()
    world.edit(spec(replicas=2, engine__maxRunningRequests=8))
    (action,) = world.plan().actions
    assert isinstance(action, PatchPod)
    assert (action.name, action.uid) == ("k3-0-0", world.bodies["k3-0-0"]["metadata"]["uid"])
    assert (
        world.bodies["k3-0-0"]["metadata"]["annotations"].items()
        >= {
            name: value
            for name, value in action.annotations.items()
            if name not in (names.ANNOTATION_LAUNCH, names.ANNOTATION_REVISION)
        }.items()
    )


KIT_2 = "example.test/kit:2"


def offer_kit(world: World, image: str = KIT_2) -> None:
    """The profile names another kit."""
    world.memory.put_profile(stored(profile_body(kit__image=image), "p2"))


def kits(world: World) -> list[str | None]:
    return [record.kit_image for record in world.observe().pods]


def test_a_new_kit_comes_in_place_once_its_node_has_the_image() -> None:
    world = settled()
    before = kits(world)
    offer_kit(world)
    asked = world.plan().actions
    assert kinds(world) == [("PullImage", "k3-0-0"), ("PullImage", "k3-1-0")], "every node at once: it costs nothing"
    world.apply_all(asked)
    assert world.plan().actions == (), "both kits go on until their nodes have the image"
    for body in world.bodies.values():
        statuses = [{"name": each["name"], "imageID": "i"} for each in body["spec"]["ephemeralContainers"]]
        body["status"]["ephemeralContainerStatuses"] = statuses
        world.memory.put_pod(body)
    assert kinds(world) == [("PatchPod", "k3-0-0")]
    world.apply_all()
    assert kits(world) == [KIT_2, before[1]], "one after the other"
    uids = {record.uid for record in world.observe().pods}
    world.run()
    assert kits(world) == [KIT_2, KIT_2]
    assert {record.uid for record in world.observe().pods} == uids


def test_a_node_that_cannot_get_a_kit_does_not_keep_it_from_the_others() -> None:
    world = settled()
    offer_kit(world)
    world.apply_all()
    world.settle("k3-1-0")
    assert kinds(world) == [("PatchPod", "k3-1-0")]


def test_a_kit_that_is_taken_back_before_it_came_changes_nothing() -> None:
    world = settled()
    before = {record.name: (record.kit_image, record.launch_revision) for record in world.observe().pods}
    offer_kit(world)
    world.apply_all()
    world.memory.put_profile(stored(profile_body(), "p1"))
    assert world.plan().actions == ()
    assert {record.name: (record.kit_image, record.launch_revision) for record in world.observe().pods} == before


@pytest.mark.parametrize("rollout", [{"paused": True}, {"strategy": "OnDelete"}])
def test_a_kit_that_is_held_is_not_brought_to_the_nodes(rollout: dict[str, Any]) -> None:
    world = settled(rollout=rollout)
    offer_kit(world)
    assert world.plan().actions == ()


def test_a_pod_that_is_replaced_or_has_no_kit_yet_waits_for_no_image() -> None:
    world = settled(rollout={"strategy": "Recreate"})
    offer_kit(world)
    assert kinds(world) == [("DeletePod", "k3-0-0")]
    world = World(spec(replicas=1))
    world.apply_all()
    offer_kit(world)
    assert kinds(world) == [("PatchPod", "k3-0-0")]
    world.apply_all()
    assert kits(world) == [KIT_2]


def test_the_next_engine_waits_until_the_agent_says_that_the_first_one_serves_again() -> None:
    world = settled()
    world.edit(spec(replicas=2, engine__maxRunningRequests=8))
    world.apply(world.plan().actions[0])
    assert world.observe().pods[0].ready, "the kubelet has not noticed yet"
    assert world.plan().actions == ()
    uid, wanted = world.bodies["k3-0-0"]["metadata"]["uid"], world.plan().revision
    assert wanted
    world.agents[uid] = Agents(engine=EngineAgent(wanted.launch, wanted.launch, "starting", 0, None))
    assert world.plan().actions == ()
    world.settle("k3-0-0")
    assert kinds(world) == [("PatchPod", "k3-1-0")]


def test_a_silent_agent_stops_the_rollout_before_the_last_serving_engine() -> None:
    world = settled()
    world.edit(spec(replicas=2, engine__maxRunningRequests=8))
    world.apply(world.plan().actions[0])
    del world.agents[world.bodies["k3-0-0"]["metadata"]["uid"]]
    assert world.plan().actions == ()


def test_a_pod_that_does_not_serve_is_changed_first_and_at_once() -> None:
    world = settled()
    world.bodies["k3-1-0"]["status"]["conditions"] = []
    world.memory.put_pod(world.bodies["k3-1-0"])
    world.edit(spec(replicas=2, engine__maxRunningRequests=8))
    assert kinds(world) == [("PatchPod", "k3-1-0")]


def test_live_settings_reach_all_engines_at_once_and_no_pause_holds_them() -> None:
    world = settled(3)
    policy = {"checkpoints": "PromptEnd", "touch": {"intervalSeconds": 60}}
    world.edit(spec(replicas=3, rollout={"paused": True}, cache__policy=policy))
    plan = world.plan()
    assert kinds(world) == [("PatchPod", "k3-0-0"), ("PatchPod", "k3-1-0"), ("PatchPod", "k3-2-0")]
    assert plan.hold is None
    before = {record.launch_revision for record in world.observe().pods}
    world.run()
    for body in world.bodies.values():
        launch = json.loads(body["metadata"]["annotations"][names.ANNOTATION_LAUNCH])
        assert launch["live"]["checkpoints"] == "PromptEnd"
        assert launch["live"]["touchIntervalSeconds"] == 60
    assert {record.launch_revision for record in world.observe().pods} == before, "no engine restarts"
    assert world.plan().actions == ()
    world.edit(spec(replicas=3))
    assert len(kinds(world)) == 3, "an edit that is taken back is followed, too"


MARKS: dict[str, dict[str, dict[str, str | None]]] = {
    "another ordinal": {"labels": {names.LABEL_ORDINAL: "7"}},
    "another attempt": {"labels": {names.LABEL_ATTEMPT: "3"}},
    "no ordinal": {"labels": {names.LABEL_ORDINAL: None}},
    "no pod revision": {"annotations": {names.ANNOTATION_POD_REVISION: None}},
    "another pod revision": {"annotations": {names.ANNOTATION_POD_REVISION: "x"}},
    "no launch revision": {"annotations": {names.ANNOTATION_REVISION: None, names.ANNOTATION_LIVE: None}},
    "no launch document": {"annotations": {names.ANNOTATION_LAUNCH: None}},
    "no size of the store": {"annotations": {names.ANNOTATION_STORE_SIZE: None}},
}


@pytest.mark.parametrize("strategy", RolloutStrategy)
@pytest.mark.parametrize("case", MARKS)
def test_what_somebody_did_to_our_labels_and_annotations_costs_no_pod(case: str, strategy: RolloutStrategy) -> None:
    world = settled(2, rollout__strategy=strategy.value)
    body = world.bodies["k3-1-0"]
    before = copy.deepcopy(body["metadata"])
    for where, marks in MARKS[case].items():
        kept = {**body["metadata"][where], **marks}
        body["metadata"][where] = {key: value for key, value in kept.items() if value is not None}
    world.memory.put_pod(body)
    if case != "no launch revision":
        assert kinds(world) == [("PatchPod", "k3-1-0")]
    world.run()
    after = world.bodies["k3-1-0"]["metadata"]
    assert {key: after[key] for key in ("uid", "labels", "annotations")} == {
        key: before[key] for key in ("uid", "labels", "annotations")
    }


def test_an_engine_that_waits_for_another_revision_has_live_settings_with_it() -> None:
    world = settled(2)
    world.edit(spec(replicas=2, rollout={"paused": True}, engine__contextLength=4096, cache__policy={"chunkPages": 9}))
    assert kinds(world) == [], "its launch document holds the old arguments, which are nowhere else"
    world.edit(spec(replicas=2, engine__contextLength=4096, cache__policy={"chunkPages": 9}))
    assert kinds(world) == [("PatchPod", "k3-0-0")]
    world.run()
    assert world.plan().actions == ()


def test_pods_that_do_not_serve_are_changed_however_many_are_down() -> None:
    """Else a broken first version could never be replaced by a good one."""
    world = settled(3)
    for name in ("k3-1-0", "k3-2-0"):
        world.bodies[name]["status"]["conditions"] = []
        world.memory.put_pod(world.bodies[name])
    world.edit(spec(replicas=3, engine__maxRunningRequests=8))
    assert kinds(world) == [("PatchPod", "k3-1-0")]
    world.apply(world.plan().actions[0])
    assert kinds(world) == [("PatchPod", "k3-2-0")]
    world.apply(world.plan().actions[0])
    assert world.plan().actions == (), "the one that serves waits"


def test_a_pod_edit_replaces_one_pod_under_the_next_attempt() -> None:
    world = settled()
    world.edit(spec(replicas=2, cache__dram__size="2Gi"))
    assert kinds(world) == [("DeletePod", "k3-0-0")]
    world.apply(world.plan().actions[0])
    assert kinds(world) == [*KEY, ("CreatePod", "k3-0-1")], "the name of the terminating pod is not free"
    world.apply_all()
    assert world.plan().actions == (), "the other one serves alone"


def test_the_next_pod_waits_until_the_replaced_one_has_ended() -> None:
    world = settled()
    world.edit(spec(replicas=2, cache__dram__size="2Gi"))
    for _ in range(2):
        world.apply_all()
    world.settle("k3-0-1")
    assert world.plan().actions == (), "k3-0-0 still drains and holds its GPUs"
    world.settle("k3-0-0")
    assert kinds(world) == [("DeletePod", "k3-1-0")]


ROLLOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, str]], Reason | None]] = {
    # what: (spec.rollout, edit, the first step from three that serve, why not)
    "in place": ({}, {"engine__contextLength": 4096}, [("PatchPod", "k3-0-0")], None),
    "recreate": ({"strategy": "Recreate"}, {"engine__contextLength": 4096}, [("DeletePod", "k3-0-0")], None),
    "on delete": ({"strategy": "OnDelete"}, {"cache__dram__size": "2Gi"}, [], Reason.WAITING_FOR_DELETION),
    "paused": ({"paused": True}, {"engine__contextLength": 4096}, [], Reason.ROLLOUT_PAUSED),
    "cache may go": ({"cacheLoss": "Allow"}, {"cache__dram__size": "2Gi"}, [("DeletePod", "k3-0-0")], None),
    "cache must not go": (
        {"cacheLoss": "RequireAcknowledgement"},
        {"cache__dram__size": "2Gi"},
        [],
        Reason.ACKNOWLEDGEMENT_REQUIRED,
    ),
    "cache is not touched": (
        {"cacheLoss": "RequireAcknowledgement"},
        {"engine__contextLength": 4096},
        [("PatchPod", "k3-0-0")],
        None,
    ),
    "recreating loses the cache too": (
        {"cacheLoss": "RequireAcknowledgement", "strategy": "Recreate"},
        {"engine__contextLength": 4096},
        [],
        Reason.ACKNOWLEDGEMENT_REQUIRED,
    ),
}


@pytest.mark.parametrize("case", ROLLOUTS)
def test_the_first_step_of_a_rollout(case: str) -> None:
    rollout, edit, steps, reason = ROLLOUTS[case]
    world = settled(3, rollout=rollout)
    world.edit(spec(replicas=3, rollout=rollout, **edit))
    assert kinds(world) == steps
    hold = world.plan().hold
    assert (hold.reason if hold else None) is reason
    if hold:
        assert hold.pods == {"k3-0-0", "k3-1-0", "k3-2-0"}


def test_a_held_change_goes_on_when_the_id_in_its_message_is_acknowledged_and_only_then() -> None:
    rollout = {"cacheLoss": "RequireAcknowledgement"}
    world = settled(2, rollout=rollout)
    world.edit(spec(replicas=2, rollout=rollout, cache__dram__size="2Gi"))
    plan = world.plan()
    assert plan.hold
    assert plan.revision
    assert "the stores of k3-0-0 (1Gi), k3-1-0 (1Gi); set" in plan.hold.message
    assert f"set spec.rollout.acknowledgedChange to {plan.revision.pod} to let it" in plan.hold.message
    acknowledged = {**rollout, "acknowledgedChange": plan.revision.pod}
    world.edit(spec(replicas=2, rollout=acknowledged, cache__dram__size="4Gi"))
    assert world.plan().hold, "another change than the acknowledged one"
    world.edit(spec(replicas=2, rollout=acknowledged, cache__dram__size="2Gi"))
    assert kinds(world) == [("DeletePod", "k3-0-0")]
    world.run()
    assert world.plan().hold is None


def test_with_recreate_the_acknowledged_id_is_that_of_the_whole_change() -> None:
    rollout = {"cacheLoss": "RequireAcknowledgement", "strategy": "Recreate"}
    world = settled(1, rollout=rollout)
    world.edit(spec(rollout=rollout, engine__contextLength=4096))
    wanted = world.plan().revision
    assert wanted
    world.edit(spec(rollout={**rollout, "acknowledgedChange": wanted.pod}, engine__contextLength=4096))
    assert world.plan().hold
    world.edit(spec(rollout={**rollout, "acknowledgedChange": wanted.launch}, engine__contextLength=4096))
    assert kinds(world) == [("DeletePod", "k3-0-0")]


def test_a_store_that_never_started_is_replaced_without_acknowledgement() -> None:
    rollout = {"cacheLoss": "RequireAcknowledgement"}
    world = World(spec(rollout=rollout))
    for action in world.plan().actions:
        world.apply(action)
    world.edit(spec(rollout=rollout, cache__dram__size="2Gi"))
    assert kinds(world) == [("DeletePod", "k3-0-0")]


@pytest.mark.parametrize("held", [{"paused": True}, {"strategy": "OnDelete"}])
def test_while_a_change_is_held_pods_come_and_go_and_new_ones_have_the_new_revision(held: dict[str, Any]) -> None:
    world = settled(2)
    world.edit(spec(replicas=3, rollout=held, engine__contextLength=4096))
    assert ("CreatePod", "k3-2-0") in kinds(world)
    world.run()
    revisions = {record.name: record.launch_revision for record in world.observe().pods}
    assert revisions["k3-0-0"] == revisions["k3-1-0"] != revisions["k3-2-0"]
    body = world.bodies["k3-0-0"]
    body["metadata"]["deletionTimestamp"] = "x"
    world.memory.put_pod(body)
    assert kinds(world) == [*KEY, ("CreatePod", "k3-0-1")]
    world.run()
    revisions = {record.name: record.launch_revision for record in world.observe().pods}
    assert revisions["k3-0-1"] == revisions["k3-2-0"]
    world.edit(spec(replicas=1, rollout=held, engine__contextLength=4096))
    world.run()
    assert [record.name for record in world.observe().pods] == ["k3-0-1"]


def test_two_may_be_down_at_once_and_the_next_waits() -> None:
    world = settled(4, rollout={"maxUnavailable": 2})
    world.edit(spec(replicas=4, rollout={"maxUnavailable": 2}, engine__contextLength=4096))
    done = []
    for _ in range(2):
        done += kinds(world)
        world.apply(world.plan().actions[0])
    assert done == [("PatchPod", "k3-0-0"), ("PatchPod", "k3-1-0")]
    assert world.plan().actions == ()
    world.settle("k3-1-0")
    assert kinds(world) == [("PatchPod", "k3-2-0")]


def test_another_restart_id_restarts_the_engines_in_their_pods_one_after_the_other() -> None:
    world = settled(2)
    world.edit(spec(replicas=2, restart__id="monday"))
    assert kinds(world) == [("PatchPod", "k3-0-0")]
    world.run()
    assert set(world.bodies) == {"k3-0-0", "k3-1-0"}


def test_an_edit_taken_back_half_way_touches_the_other_half_no_more() -> None:
    world = settled(3)
    world.edit(spec(replicas=3, engine__contextLength=4096))
    world.apply(world.plan().actions[0])
    world.settle_all()
    world.edit(spec(replicas=3))
    assert kinds(world) == [("PatchPod", "k3-0-0")]
    world.run()
    assert len({record.launch_revision for record in world.observe().pods}) == 1


def test_scaling_down_deletes_the_highest_ordinals() -> None:
    world = settled(3)
    world.edit(spec(replicas=1))
    assert kinds(world) == [("Prune", "PodDisruptionBudget"), ("DeletePod", "k3-1-0"), ("DeletePod", "k3-2-0")]


def test_an_ended_pod_is_replaced() -> None:
    world = settled(1)
    world.bodies["k3-0-0"]["status"] = {"phase": "Failed"}
    world.memory.put_pod(world.bodies["k3-0-0"])
    assert kinds(world) == [("CreateSecret", "k3-admin-key-d1"), ("CreatePod", "k3-0-1")]
    world.apply_all()
    assert kinds(world) == [("DeletePod", "k3-0-0")]
    world.run()
    assert [pod.ready for pod in world.observe().pods] == [True]


def test_a_pod_that_is_not_seen_any_more_is_looked_for_under_the_name_in_the_status() -> None:
    world = settled(2)
    pods = [{"name": "k3-0-0", "ordinal": 0}, {"name": "k3-1-12", "ordinal": 1}, {"name": "k3-1-x", "ordinal": 1}]
    world.edit(spec(replicas=3), status={"pods": pods})
    for name in list(world.bodies):
        world.memory.drop_pod(world.bodies.pop(name))
    created = [name for kind, name in kinds(world) if kind == "CreatePod"]
    assert created == ["k3-0-0", "k3-1-12", "k3-2-0"]


BAD_PROFILES = {
    "missing": (None, Reason.PROFILE_NOT_FOUND),
    "unreadable": (profile_body(tensor="many"), Reason.PROFILE_UNREADABLE),
    "without the root": (profile_body(modelRoots=[]), Reason.MODEL_ROOT_NOT_FOUND),
}


@pytest.mark.parametrize("case", BAD_PROFILES)
def test_without_a_usable_profile_no_serving_pod_is_touched_but_scaling_down_works(case: str) -> None:
    world = settled()
    body, reason = BAD_PROFILES[case]
    world.memory.drop_profile("local-v1", "p1")
    if body:
        world.memory.put_profile(stored(body, "p2"))
    world.edit(spec(replicas=2, engine__maxRunningRequests=8))
    finding = world.plan().finding
    assert finding
    assert finding.reason is reason
    assert world.plan().actions == ()
    world.edit(spec(replicas=1))
    assert kinds(world) == [("DeletePod", "k3-1-0")]


@pytest.mark.parametrize("size", ["lots", "129Ti"])
def test_an_unreadable_spec_touches_nothing(size: str) -> None:
    world = settled()
    world.edit(spec(cache__dram__size=size))
    finding = world.plan().finding
    assert finding
    assert finding.reason is Reason.SPEC_UNREADABLE
    assert "spec.cache.dram.size" in finding.message
    assert world.plan().actions == ()


def test_a_deployment_being_deleted_is_left_to_the_garbage_collector() -> None:
    world = settled()
    body = stored({"metadata": {"name": NAME, "namespace": NAMESPACE, "deletionTimestamp": "x"}, "spec": spec()}, "d1")
    world.memory.put_deployment(body)
    assert world.plan().actions == ()


@pytest.mark.parametrize("what", [*CHILDREN, "pod"])
def test_a_foreign_object_in_the_way_is_reported_and_never_touched(what: str) -> None:
    world = World(spec(replicas=2))
    world.memory.facts = Facts(pod_monitors=True)
    meta: dict[str, Any] = {"name": "k3", "namespace": NAMESPACE, "uid": "f1"}
    if what == "pod":
        labels = {names.LABEL_DEPLOYMENT: NAME, names.LABEL_ORDINAL: "0", names.LABEL_ATTEMPT: "0"}
        world.add({"metadata": {**meta, "labels": labels, "annotations": {}}})
    else:
        world.memory.put_child(what, {"metadata": meta})
    finding = world.plan().finding
    assert finding
    assert finding.reason is Reason.NAME_CONFLICT
    assert what in finding.message
    assert world.plan().actions == ()


SPECS = [
    {},
    {"engine.maxRunningRequests": 8},
    {"cache.dram.size": "2Gi"},
    {"podMetadata.labels": {"team": "a"}, "engine.contextLength": 4096},
]


ROLLOUT = st.fixed_dictionaries(
    {
        "maxUnavailable": st.integers(1, 2),
        "strategy": st.sampled_from(["InPlace", "InPlace", "Recreate", "OnDelete"]),
        "paused": st.sampled_from([False, False, False, True]),
        "cacheLoss": st.sampled_from(["Allow", "Allow", "RequireAcknowledgement"]),
    }
)


TAKEN_AWAY = [
    names.ANNOTATION_POD_REVISION,
    names.ANNOTATION_REVISION,
    names.ANNOTATION_LIVE,
    names.ANNOTATION_LAUNCH,
    names.ANNOTATION_STORE_SIZE,
    names.LABEL_ORDINAL,
    names.LABEL_ATTEMPT,
]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Any cluster: pods of several ordinals, attempts, revisions and states, ours or not, and any wanted spec."""
    wanted = {**draw(st.sampled_from(SPECS)), "replicas": draw(st.integers(0, 3)), "rollout": draw(ROLLOUT)}
    world = World(edited(DEPLOYMENT_SPEC, wanted))
    for ordinal, attempt in draw(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=5)):
        told = deployment_spec(**{path.replace(".", "__"): v for path, v in draw(st.sampled_from(SPECS)).items()})
        profile = profile_spec()
        body = pod(resolve(told, profile), revision(told, profile), NAME, NAMESPACE, "d1", ordinal, attempt)
        for own in draw(st.sets(st.sampled_from(TAKEN_AWAY), max_size=2)) if draw(st.booleans()) else ():
            del body["metadata"]["annotations" if own in body["metadata"]["annotations"] else "labels"][own]
        world.add(body)
        state = draw(st.sampled_from(["pending", "serving", "failed", "silent"]))
        if state in ("serving", "silent"):
            world.settle(body["metadata"]["name"])
        if state == "silent":
            del world.agents[body["metadata"]["uid"]]
        if state == "failed":
            world.bodies[body["metadata"]["name"]]["status"]["phase"] = "Failed"
            world.memory.put_pod(body)
        if draw(st.integers(0, 3)) == 0:
            body["metadata"]["deletionTimestamp"] = "x"
            world.memory.put_pod(body)
    return world


def really_serving(world: World) -> set[str]:
    """Names of live pods whose engine serves what its pod carries, by the agent's word."""
    found = set()
    for record in world.observe().pods:
        answer = world.agents.get(record.uid, Agents()).engine
        serves = answer is not None and answer.serves(record.launch_revision)
        if record.ready and serves and not record.deleting:
            found.add(record.name)
    return found


def disrupted(world: World, actions: tuple[Action, ...]) -> set[str]:
    """Serving pods that the actions would stop although their replica is wanted."""
    spec_ = world.observe().deployment.spec
    assert spec_
    wanted, newest = set(), {}
    for record in world.observe().pods:
        if record.ordinal < spec_.replicas and not record.deleting:
            wanted.add(record.name)
            newest[record.ordinal] = max(newest.get(record.ordinal, -1), record.attempt)
    last = {record.name for record in world.observe().pods if record.attempt == newest.get(record.ordinal)}
    running = {record.name: record.launch_revision for record in world.observe().pods}
    named = {action.name for action in actions if isinstance(action, DeletePod)}
    for action in actions:
        if isinstance(action, PatchPod) and running[action.name] != action.annotations[names.ANNOTATION_REVISION]:
            named.add(action.name)
    return named & wanted & last & really_serving(world)


@settings(max_examples=150, deadline=None)
@given(worlds(), st.data())
def test_any_state_reaches_the_spec_one_disruption_at_a_time(world: World, data: st.DataObject) -> None:
    spec_ = world.observe().deployment.spec
    assert spec_
    replicas, rollout = spec_.replicas, spec_.rollout
    for _ in range(12):
        actions = world.plan().actions
        assert world.plan().actions == actions, "the plan is a pure function"
        stopped = disrupted(world, actions)
        assert len(stopped) <= 1
        if stopped:
            left = {record.ordinal for record in world.observe().pods if record.name in really_serving(world) - stopped}
            assert len(left) >= replicas - rollout.max_unavailable, "the others serve"
            assert rollout.strategy is not RolloutStrategy.ON_DELETE
            assert not rollout.paused
        if rollout.cache_loss is CacheLoss.REQUIRE_ACKNOWLEDGEMENT:
            gone = {action.name for action in actions if isinstance(action, DeletePod)}
            assert not gone & wanted_and_warm(world)
        before = set(world.bodies)
        for action in actions:
            if isinstance(action, CreatePod):
                assert action.manifest["metadata"]["name"] not in before
            world.apply(action)
        for name in data.draw(st.sets(st.sampled_from(sorted(world.bodies)))) if world.bodies else ():
            world.settle(name)
    world.run()
    told, plan = world.observe(), world.plan()
    assert plan.revision
    assert sorted(record.ordinal for record in told.pods) == list(range(replicas))
    held = plan.hold.pods if plan.hold else frozenset()
    free = [record for record in told.pods if record.name not in held]
    assert {(record.launch_revision, record.pod_revision, record.live_revision) for record in free} <= {
        (plan.revision.launch, plan.revision.pod, plan.revision.live)
    }


def wanted_and_warm(world: World) -> set[str]:
    """The newest pods of wanted replicas whose store runs, but for those that have ended."""
    spec_ = world.observe().deployment.spec
    assert spec_
    newest: dict[int, Any] = {}
    for record in sorted(world.observe().pods, key=lambda record: record.attempt):
        if not record.deleting:
            newest[record.ordinal] = record
    found = set()
    for record in newest.values():
        store = record.container(names.STORE)
        if record.ordinal < spec_.replicas and record.phase == "Running" and store and store.started:
            found.add(record.name)
    return found


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(list(BAD_PROFILES)), st.booleans())
def test_a_bad_profile_stops_no_wanted_serving_pod_and_strangers_are_never_touched(
    world: World, case: str, good: bool
) -> None:
    stranger = copy.deepcopy(next(iter(world.bodies.values()), stored({"metadata": {"labels": {}}}, "")))
    stranger["metadata"] |= {"name": "stranger", "namespace": NAMESPACE, "uid": "s1", "ownerReferences": []}
    world.add(stranger)
    if not good:
        world.memory.drop_profile("local-v1", "p1")
        if body := BAD_PROFILES[case][0]:
            world.memory.put_profile(stored(body, "p2"))
    actions = world.plan().actions
    assert not [action for action in actions if isinstance(action, DeletePod | PatchPod) and action.uid == "s1"]
    if not good:
        assert all(isinstance(action, DeletePod) for action in actions)
        assert not disrupted(world, actions)
