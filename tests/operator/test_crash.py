"""Killed at every write: whatever the operator was doing, the next one brings the cluster to the same end.

For each workload one run without a fault records its writes. Then for every write the operator is killed before the
API server saw it, and for what is not a status also when it was carried out and the reply was lost. To be killed when
the reply had come is to be killed before the next write; the last one has none, and so is killed then too. The end must
be that of the first run, with the same pods created, deleted and patched, and no engine started once more than there.
"""

import difflib
import os
import random
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from queue import Queue
from typing import Any, Literal

import pytest

from faultlab import Lab, Lane, canonical
from faultproxy import WRITES, Crash, Match, Request, Rule
from localcluster.controlplane import ControlPlane
from stack import Stack, eventually
from umbra_operator.reconcile import STATUS_SECONDS

pytestmark = pytest.mark.apiserver

LANES = 6
SAMPLED = 2
"""Writes of each workload at which the operator is killed when not every one is tried."""
QUIET_SECONDS = STATUS_SECONDS + 0.4
"""Without a write, after which nothing more is expected; the poller asks pods that change every second."""
COLLECTED_SECONDS = 90.0
"""For the garbage collector: one that has just met a kind needs half a minute."""

Point = Literal["before", "reply-lost", "after"]
Step = Callable[[Stack, str], Any]


@dataclass(frozen=True)
class Workload:
    """Something that a user does."""

    replicas: int | None
    """Replicas that serve before; None when there is nothing yet."""
    change: Step
    gone: bool = False
    """Whether nothing must be left at the end; else everything is ready."""


WORKLOADS = {
    "create": Workload(None, lambda stack, name: stack.add(name, replicas=2)),
    "edit of the engine": Workload(2, lambda stack, name: stack.edit({"engine.contextLength": 8192}, name)),
    "edit of the pod": Workload(1, lambda stack, name: stack.edit({"cache.dram.size": "2Gi"}, name)),
    "scale up": Workload(1, lambda stack, name: stack.edit({"replicas": 3}, name)),
    "scale down": Workload(3, lambda stack, name: stack.edit({"replicas": 1}, name)),
    "delete": Workload(2, lambda stack, name: stack.api("DELETE", stack.path(name)), gone=True),
}


class Group(Enum):
    """Writes that are counted together: how often a status is written depends on what falls together."""

    ACTS = "acts"
    STATUSES = "statuses"

    def __call__(self, request: Request) -> bool:
        """Whether a write belongs here. Events are sent beside the reconciles, and one that is lost is lost."""
        status = request.resource == "k3deployments/status"
        return request.resource != "events" and status is (self is Group.STATUSES)


@dataclass(frozen=True)
class Plan:
    """Where the operator is killed: at the write of this number in its group, counted from 1."""

    group: Group
    write: int
    point: Point


@dataclass(frozen=True)
class Outcome:
    """What a run left behind and what it did on the way."""

    state: str
    done: Counter[str]
    """Writes to pods that the server carried out, by verb, and starts of engines."""
    writes: list[str]
    """Every write, in order."""
    counts: dict[Group, int]
    """Writes of each group."""
    killed: bool


@pytest.fixture(scope="module")
def lab(crds: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(crds, tmp_path_factory.mktemp("crash")) as lab:
        yield lab
        assert lab.node.problems == []


@pytest.fixture(scope="module")
def lanes(lab: Lab) -> "Iterator[Queue[Lane]]":
    """Lanes that nobody uses now."""
    contexts = [lab.lane() for _ in range(LANES)]
    free: Queue[Lane] = Queue()
    for context in contexts:
        free.put(context.__enter__())
    yield free
    for context in contexts:
        context.__exit__(None, None, None)


@pytest.mark.nightly
@pytest.mark.parametrize("title", WORKLOADS)
def test_the_end_is_the_same(title: str, lanes: "Queue[Lane]") -> None:
    reference = _in_a_lane(lanes, title, None)
    _compare(lanes, [(title, reference, plan) for plan in _plans(reference)])


def test_the_end_is_the_same_at_sampled_writes(lanes: "Queue[Lane]") -> None:
    """A few writes of every workload; whoever repeats a run sets UMBRA_SEED to the number that it printed."""
    seed = int(os.environ.get("UMBRA_SEED") or secrets.randbits(32))
    print(f"UMBRA_SEED={seed}")
    with ThreadPoolExecutor(LANES) as pool:
        references = list(pool.map(lambda title: _in_a_lane(lanes, title, None), WORKLOADS))
    draw = random.Random(seed)
    plans = [[*_plans(reference)] for reference in references]
    chosen = [
        (title, reference, plan)
        for title, reference, every in zip(WORKLOADS, references, plans, strict=True)
        for plan in draw.sample(every, min(SAMPLED, len(every)))
    ]
    _compare(lanes, chosen)


def _in_a_lane(lanes: "Queue[Lane]", title: str, plan: Plan | None) -> Outcome:
    suffix = f"-{plan.group.value[0]}{plan.write}-{plan.point}" if plan else ""
    lane = lanes.get()
    try:
        return _run(lane, WORKLOADS[title], plan, f"{title.replace(' ', '-')}{suffix}")
    finally:
        lanes.put(lane)


def _compare(lanes: "Queue[Lane]", chosen: Sequence[tuple[str, Outcome, Plan]]) -> None:
    """Runs each workload's plan and compares its end with that of the workload's run without a fault."""
    with ThreadPoolExecutor(LANES) as pool:
        outcomes = list(pool.map(lambda each: _in_a_lane(lanes, each[0], each[2]), chosen))
    problems = []
    for (title, reference, plan), outcome in zip(chosen, outcomes, strict=True):
        problems += [f"{title}, {plan}: {problem}" for problem in _differences(reference, outcome)]
        if plan.group is Group.ACTS and not outcome.killed:
            problems.append(f"{title}, {plan}: not reached, of {reference.writes}")
    assert not problems, "\n\n".join(problems)


def _plans(reference: Outcome) -> Iterator[Plan]:
    for group, count in reference.counts.items():
        for number in range(1, count + 1):
            yield Plan(group, number, "before")
            if group is Group.ACTS:
                yield Plan(group, number, "reply-lost")
        if count:
            yield Plan(group, count, "after")


def _run(lane: Lane, workload: Workload, plan: Plan | None, name: str) -> Outcome:
    stack = lane.stack
    if workload.replicas:
        stack.add(name, replicas=workload.replicas)
        _settle(lane, name, lambda: stack.ready(name), None)
    proxy = lane.lab.proxy
    before, starts = len(proxy.requests(_mine(lane, name))), _starts(lane, name)
    rule = plan and proxy.add(
        Crash(plan.point, lane.operator.kill), _mine(lane, name, plan.group), skip=plan.write - 1, times=1
    )
    try:
        workload.change(stack, name)
        _settle(lane, name, lambda: _gone(lane, name) if workload.gone else stack.ready(name), rule)
        killed = rule is not None and rule.applied > 0
    finally:
        if rule:
            proxy.remove(rule)
    writes = proxy.requests(_mine(lane, name))[before:]
    did = Counter(f"{w.verb} {w.resource}" for w in writes if w.resource == "pods" and (w.status or 999) < 300)
    did["engine starts"] = _starts(lane, name) - starts
    state = _state(lane, name)
    lane.remove(name)
    said = [str(write).replace(name, "NAME") for write in writes]
    counts = {group: sum(map(group, writes)) for group in Group}
    return Outcome(state, did, said, counts, killed)


def _mine(lane: Lane, name: str, group: Group | None = None) -> Match:
    """Writes about one deployment, of one group or of both."""
    groups = [group] if group else [*Group]
    return lane.of(name, verbs=WRITES, where=lambda request: any(each(request) for each in groups))


def _gone(lane: Lane, name: str) -> bool:
    return not any(body["metadata"]["name"].startswith(name) for body in lane.stack.everything())


def _settle(lane: Lane, name: str, done: Callable[[], bool], rule: Rule | None) -> None:
    """Waits until everything is done and nothing more is written; a killed operator is followed by another."""

    def check() -> bool:
        if rule and rule.applied and not lane.operator.alive:
            lane.restart()
        return lane.operator.alive and done()

    try:
        eventually(check, f"{name} in {lane.stack.namespace} is where it should be", COLLECTED_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{lane.operator.log.read_text()[-3000:]}") from None
    quiet, seen = time.monotonic(), -1
    while time.monotonic() - quiet < QUIET_SECONDS:
        count = len(lane.lab.proxy.requests(_mine(lane, name)))
        if count != seen or not check():
            quiet, seen = time.monotonic(), count
        time.sleep(0.1)


def _starts(lane: Lane, name: str) -> int:
    starts = lane.lab.node.engine_starts
    return sum(
        n for (space, pod), n in list(starts.items()) if (space, pod[: len(name)]) == (lane.stack.namespace, name)
    )


def _differences(reference: Outcome, outcome: Outcome) -> Iterator[str]:
    if outcome.state != reference.state:
        lines = difflib.unified_diff(
            reference.state.splitlines(), outcome.state.splitlines(), "reference", "here", lineterm="", n=2
        )
        yield "\n".join(lines)
    if outcome.done != reference.done:
        yield f"did {dict(outcome.done)} instead of {dict(reference.done)}: {outcome.writes}"


_MASKED = (
    *("resourceVersion", "creationTimestamp", "managedFields", "lastTransitionTime", "startTime", "startedAt"),
    *("finishedAt", "epoch", "podIP", "podIPs", "clusterIP", "clusterIPs", "umbra.dev/attempt", "umbra.dev/content"),
    "data",  # of the Secret, random
)


def _state(lane: Lane, name: str) -> str:
    """Everything that bears the name, without what must differ between two runs."""
    bodies = lane.objects(name)
    owner = next((body["metadata"]["uid"] for body in bodies if body["kind"] == "K3Deployment"), "nobody")

    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: masked(each) for key, each in value.items() if key not in _MASKED}
        if isinstance(value, list):
            return [masked(each) for each in value]
        if isinstance(value, str):
            # The attempt in a pod's name counts from the pods that are still terminating.
            value = re.sub(rf"{re.escape(name)}-(\d+)-\d+", r"NAME-\1-*", value)
            value = re.sub(r"kube-api-access-\w+", "kube-api-access", value)
            value = value.replace(name, "NAME").replace(lane.stack.namespace, "NAMESPACE")
            return value.replace(owner, "OWNER").replace(owner[:8], "OWNER")
        return value

    for body in bodies:
        del body["metadata"]["uid"]  # that of an owner stays: an orphan then differs
    return canonical(sorted((masked(body) for body in bodies), key=canonical))
