"""The memory: every change names the deployments it concerns, and full lists find what events lost."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from builders import NAME, NAMESPACE, PROFILE, deployment, profile, stored
from umbra_operator.observe import Memory, Repair
from umbra_operator.render import names

KEY = (NAMESPACE, NAME)


def pod(name: str = "k3-0-0", uid: str = "u1", **status: Any) -> dict[str, Any]:
    labels = {names.LABEL_DEPLOYMENT: NAME, names.LABEL_ORDINAL: "0", names.LABEL_ATTEMPT: "0"}
    meta = {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": "1", "labels": labels}
    return {"metadata": meta, "status": status}


def filled() -> Memory:
    memory = Memory()
    memory.put_profile(stored(profile(), "p1"))
    memory.put_deployment(stored(deployment(), "d1"))
    memory.put_pod(pod())
    return memory


def test_each_change_concerns_its_deployment_and_the_same_again_concerns_nobody() -> None:
    memory = Memory()
    assert memory.put_profile(stored(profile(), "p1")) == set(), "nobody uses it yet"
    for put, body in (
        (memory.put_deployment, stored(deployment(), "d1")),
        (memory.put_pod, pod()),
        (memory.put_pod, pod(phase="Running")),
        (memory.put_profile, stored(profile(tensor=1), "p2")),
    ):
        assert put(body) == {KEY}
        assert put(body) == set()


def test_only_a_new_generation_or_a_foreign_status_concerns_the_deployment() -> None:
    memory = filled()
    same = stored(deployment(), "d1")
    assert memory.put_deployment({**same, "metadata": {**same["metadata"], "resourceVersion": "9"}}) == set()
    assert memory.put_deployment({**same, "status": {"replicas": 5}}) == {KEY}
    assert memory.put_deployment(stored(deployment(), "d1", generation=2)) == {KEY}


def test_the_end_of_an_old_object_does_not_hide_the_new_one_of_its_name() -> None:
    memory = filled()
    memory.put_pod(pod(uid="u2"))
    memory.put_deployment(stored(deployment(), "d2"))
    memory.put_profile(stored(profile(), "p2"))
    assert memory.drop_pod(pod(uid="u1")) == set()
    assert memory.drop_deployment(KEY, "d1") == set()
    assert memory.drop_profile(PROFILE, "p1") == set()
    observed = memory.observe(KEY)
    assert observed
    assert (observed.deployment.uid, len(observed.pods)) == ("d2", 1)
    assert observed.profile
    assert memory.drop_pod(pod(uid="u2")) == memory.drop_profile(PROFILE, "p2") == {KEY}
    assert memory.drop_deployment(KEY, "d2") == {KEY}


def test_a_pod_with_other_labels_is_no_longer_remembered_under_its_old_deployment() -> None:
    def relabelled(**labels: str | None) -> dict[str, Any]:
        body = pod()
        kept = {**body["metadata"]["labels"], **labels}
        body["metadata"]["labels"] = {key: value for key, value in kept.items() if value is not None}
        return body

    for body, others in (
        (relabelled(**{names.LABEL_DEPLOYMENT: "other"}), {(NAMESPACE, "other")}),
        (relabelled(**{names.LABEL_DEPLOYMENT: None}), set()),
    ):
        memory = filled()
        assert memory.put_pod(body) == {KEY} | others
        assert memory.put_pod(body) == set()
        observed = memory.observe(KEY)
        assert observed and observed.pods == ()
        assert len([*memory.pods()]) == len(others)
        assert memory.drop_pod(body) == others
    memory = filled()
    gone = relabelled(**{names.LABEL_DEPLOYMENT: None})
    assert memory.drop_pod(gone) == {KEY}, "a watch by label says DELETED when the label goes"


LISTS: Mapping[str, Sequence[Any]] = {
    "deployment": [stored(deployment(), "d1")],
    "profile": [stored(profile(), "p1")],
    "pod": [pod()],
}


def repaired(repair: Repair, lists: Mapping[str, Sequence[Any]]) -> set[Any]:
    """What a repair by these lists, one of each kind, says has changed."""
    for kind, bodies in lists.items():
        for body in bodies:
            getattr(repair, kind)(body)
    return repair.finish()


def test_a_full_list_finds_every_lost_event() -> None:
    assert repaired(filled().repair(), LISTS) == set()
    for lost in (
        {"deployment": [stored(deployment(), "d1", generation=2)]},
        {"deployment": []},
        {"profile": []},
        {"pod": []},
        {"pod": [pod(phase="Failed")]},
    ):
        assert repaired(filled().repair(), {**LISTS, **lost}) == {KEY}, lost


def test_what_was_told_while_the_lists_were_on_their_way_is_newer_than_they_are() -> None:
    memory = filled()
    repair = memory.repair()
    memory.put_pod(pod(phase="Running"))
    memory.put_pod(pod("k3-1-0", "u2"))
    memory.drop_profile(PROFILE, "p1")
    assert repaired(repair, LISTS) == set()
    assert {(each.name, each.phase) for each in memory.pods()} == {("k3-0-0", "Running"), ("k3-1-0", "Pending")}
    assert memory.profiles == {}, "a list that still had it does not bring it back"
    assert repaired(memory.repair(), LISTS) == {KEY}, "the next list is the truth again"
    assert [(each.name, each.phase) for each in memory.pods()] == [("k3-0-0", "Pending")]


def test_a_full_list_of_children_replaces_what_was_remembered() -> None:
    memory = filled()
    body = {"metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "c1"}}
    memory.put_child("Service", {"metadata": {**body["metadata"], "uid": "c2"}})
    memory.put_child("NetworkPolicy", body)
    repair = memory.repair()
    repair.child("NetworkPolicy", body)
    assert repaired(repair, LISTS) == {KEY}
    assert [child.kind for child in memory.children_of(KEY)] == ["NetworkPolicy"]


@pytest.mark.parametrize("kind", ["K3Deployment", "K3Profile", "Pod", "Service"])
def test_what_could_not_be_listed_stays_as_it_was(kind: str) -> None:
    def full() -> Memory:
        memory = filled()
        memory.put_child("Service", {"metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "c1"}})
        return memory

    scopes: list[str | None] = [None] if kind == "K3Profile" else [None, NAMESPACE]
    everything = full().observe(KEY)
    for scope in scopes:
        memory = full()
        others = [each for each in ("K3Deployment", "K3Profile", "Pod", "Service") if each != kind]
        repair = memory.repair()
        repair.keep(kind, scope)
        for other in others:
            repair.keep(other, "another" if other != "K3Profile" else None)
        for name, bodies in LISTS.items():
            for body in bodies if name != kind.removeprefix("K3").lower() else ():
                getattr(repair, name)(body)
        if kind != "Service":
            repair.child("Service", {"metadata": {"name": NAME, "namespace": NAMESPACE, "uid": "c1"}})
        assert repair.finish() == set(), (kind, scope)
        assert memory.observe(KEY) == everything
    repair = full().repair()
    repair.keep(kind, "another")
    assert repair.finish() == {KEY}, "what is kept in one namespace is kept nowhere else"


def test_a_child_that_somebody_changed_is_applied_again_once() -> None:
    memory = filled()
    meta = {"name": NAME, "namespace": NAMESPACE, "uid": "c1", "annotations": {names.ANNOTATION_CONTENT: "h"}}
    ours: dict[str, Any] = {"metadata": meta, "spec": {"a": 1}}
    theirs: dict[str, Any] = {"metadata": meta, "spec": {"a": 2}}

    def content() -> str | None:
        (child,) = memory.children_of(KEY)
        return child.content

    memory.put_child("Service", ours)
    for body in (ours, {**ours, "status": {"b": 1}}, {**ours, "metadata": {**meta, "labels": {"mesh": "yes"}}}):
        memory.see_child("Service", body)
        assert content() == "h", "what others add leaves it as it is"
    memory.see_child("Service", theirs)
    assert content() is None
    memory.put_child("Service", {**theirs, "spec": {"a": 1, "b": 2}})  # the answer to the apply keeps what they added
    memory.see_child("Service", {**theirs, "spec": {"a": 1, "b": 2}})
    assert content() == "h"


def test_a_pod_that_neither_name_nor_labels_number_makes_no_record() -> None:
    body = pod()
    body["metadata"]["name"] = "mine"
    assert Memory().put_pod(body) == {KEY}
    body["metadata"]["labels"][names.LABEL_ORDINAL] = "first"
    assert Memory().put_pod(body) == set()


def test_a_pod_s_name_says_which_replica_it_is_whatever_its_labels_say() -> None:
    memory, body = Memory(), pod()
    body["metadata"]["labels"][names.LABEL_ORDINAL] = "5"
    memory.put_pod(body)
    (record,) = memory.pods()
    assert (record.ordinal, record.attempt, record.labelled) == (0, 0, False)


def test_a_deleted_deployment_leaves_its_pods_in_memory_until_they_are_gone() -> None:
    memory = filled()
    memory.drop_deployment(KEY, "d1")
    assert memory.observe(KEY) is None
    memory.put_deployment(stored(deployment(), "d2"))
    observed = memory.observe(KEY)
    assert observed
    assert [each.name for each in observed.pods] == ["k3-0-0"], "the new one must not take a name that is still held"
    assert memory.drop_pod(pod()) == {KEY}
    assert list(memory.pods()) == []
