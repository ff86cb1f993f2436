"""What Act does and undoes: one setting at a time, for a day at most, with no restart, never in the spec."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from builders import DEPLOYMENT_SPEC, NOW, World, deployment_spec, edited
from umbra_operator.api.v1alpha1 import K3DeploymentSpec
from umbra_operator.conditions import Reason, Type
from umbra_operator.events import Done, of_overrides
from umbra_operator.judge import Assessment, CacheNumbers, Finding
from umbra_operator.overrides import COOL_DOWN_SECONDS, LASTS_SECONDS, effective, look_again_seconds, overrides
from umbra_operator.plan import PatchPod
from umbra_operator.render import names
from umbra_operator.status import status

START = 1_764_662_400.0
TOUCH, CHECKPOINTS = "cache.policy.touch.mode", "cache.policy.checkpoints"
BACKPRESSURE = "cache.policy.offloadBackpressurePercent"
WASTEFUL: dict[str, Any] = {"touch": {"mode": "Off", "intervalSeconds": 40}, "checkpoints": "All"}


def spec(autonomy: str = "Act", **policy: Any) -> K3DeploymentSpec:
    return deployment_spec(autonomy=autonomy, cache__policy=policy)


def found(*reasons: Reason) -> Assessment:
    findings = tuple(Finding(Type.CACHE_EFFECTIVE, reason, "k3-0-0", "it is so") for reason in reasons)
    return Assessment(findings, CacheNumbers(None, None, None))


HOT, LOCKED, WELL = found(Reason.HOT_PAGES_EVICTED), found(Reason.CHECKPOINTS_LOCKED), found()


class Clock:
    """An operator over time: what it wrote last is all that it remembers."""

    def __init__(self, spec: K3DeploymentSpec) -> None:
        self.spec = spec
        self.now = START
        self.status: dict[str, Any] = {}

    def looks(self, assessment: Assessment | None, after: float = 0.0) -> dict[str, str]:
        """Settings and values in force after so many seconds more."""
        self.now += after
        in_force = overrides(self.spec, self.status, assessment, self.now)
        self.status = {"overrides": [override.to_status() for override in in_force]}
        return {override.setting: override.value for override in in_force}


def test_only_act_acts() -> None:
    assert Clock(spec("Advise", **WASTEFUL)).looks(HOT) == {}
    assert Clock(spec(**WASTEFUL)).looks(HOT) == {TOUCH: "Auto"}
    assert Clock(spec(**WASTEFUL)).looks(WELL) == {}
    assert Clock(spec(**WASTEFUL)).looks(None) == {}
    assert Clock(spec()).looks(HOT) == {}, "nothing that engines could follow would help"


def test_one_action_at_a_time_and_the_next_one_after_its_effect_was_seen() -> None:
    clock = Clock(spec(**WASTEFUL))
    assert clock.looks(HOT) == {TOUCH: "Auto"}
    both = found(Reason.HOT_PAGES_EVICTED, Reason.CHECKPOINTS_LOCKED)
    assert clock.looks(both, COOL_DOWN_SECONDS - 1) == {TOUCH: "Auto"}
    assert clock.looks(both, 1) == {TOUCH: "Auto", BACKPRESSURE: "37"}, "the most urgent first"
    assert clock.looks(both, COOL_DOWN_SECONDS) == {TOUCH: "Auto", BACKPRESSURE: "37", CHECKPOINTS: "Adaptive"}
    assert len(clock.looks(both, COOL_DOWN_SECONDS)) == 3, "there is nothing more to do"


def test_an_override_ends_after_a_day_and_can_come_again() -> None:
    clock = Clock(spec(**WASTEFUL))
    clock.looks(HOT)
    assert clock.looks(WELL, LASTS_SECONDS - 1) == {TOUCH: "Auto"}, "it may be well because of it"
    assert clock.looks(WELL, 1) == {}
    assert clock.looks(HOT, 600) == {TOUCH: "Auto"}


def test_a_restarted_operator_goes_on_with_what_the_status_says() -> None:
    clock = Clock(spec(**WASTEFUL))
    before = clock.looks(HOT), clock.status
    assert (clock.looks(None, 60), clock.status) == before, "and writes nothing"


@pytest.mark.parametrize("edit", [{"autonomy": "Advise"}, {"cache__policy": {}}, {"cache__policy__touch": None}])
def test_the_users_word_ends_it_at_once(edit: dict[str, Any]) -> None:
    clock = Clock(spec(touch={"mode": "Off"}))
    clock.looks(HOT)
    clock.spec = deployment_spec(**{"autonomy": "Act", "cache__policy": {"touch": {"mode": "Off"}}, **edit})
    assert clock.looks(HOT, 60) == {}


@pytest.mark.parametrize(("own", "half"), [(None, "37"), (60, "30"), (30, "20"), (20, None), (5, None)])
def test_backpressure_is_halved_but_never_switches_storing_off(own: int | None, half: str | None) -> None:
    policy = {"offloadBackpressurePercent": own} if own else {}
    assert Clock(spec(**policy)).looks(LOCKED).get(BACKPRESSURE) == half


def test_the_operator_looks_again_when_something_ends_or_may_begin() -> None:
    in_force = overrides(spec(**WASTEFUL), {}, HOT, START)
    assert look_again_seconds(in_force, START) == COOL_DOWN_SECONDS
    assert look_again_seconds(in_force, START + COOL_DOWN_SECONDS) == LASTS_SECONDS - COOL_DOWN_SECONDS
    assert look_again_seconds((), START) is None


def test_running_engines_follow_and_none_restarts() -> None:
    wasteful = edited(DEPLOYMENT_SPEC, {"autonomy": "Act", "cache.policy": WASTEFUL})
    world = World(wasteful)
    world.run()
    spec_ = world.observe().deployment.spec
    assert spec_
    followed = effective(spec_, overrides(spec_, {}, HOT, START))
    assert effective(spec_, ()) is spec_
    world.edit(edited(wasteful, {"cache.policy.touch.mode": "Auto"}))
    as_if_edited = world.plan()
    world.edit(followed.dump())
    assert world.plan().actions == as_if_edited.actions
    (patch,) = world.plan().actions
    assert isinstance(patch, PatchPod)
    assert patch.annotations[names.ANNOTATION_REVISION] == world.observe().pods[0].launch_revision
    live = json.loads(patch.annotations[names.ANNOTATION_LAUNCH])["live"]
    assert (live["touch"], live["touchIntervalSeconds"], live["checkpoints"]) == ("Auto", 40, "All")


def test_the_status_and_events_say_what_until_when_and_why() -> None:
    world = World(edited(DEPLOYMENT_SPEC, {"autonomy": "Act", "cache.policy": WASTEFUL}))
    world.run()
    observed = world.observe()
    assert observed.deployment.spec
    now = datetime.fromisoformat(NOW).timestamp()
    in_force = overrides(observed.deployment.spec, {}, HOT, now)
    told = status(observed, world.plan(), world.agents, NOW, HOT, in_force)
    assert told["overrides"] == [
        {
            "setting": TOUCH,
            "value": "Auto",
            "message": "HotPagesEvicted at k3-0-0: Auto instead of Off; set it in the spec to keep it",
            "since": NOW,
            "expiresAt": (datetime.fromtimestamp(now, UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
    ]
    (begun,), (ended,) = of_overrides({}, told), of_overrides(told, {})
    assert (begun.reason, ended.reason) == (Done.OVERRIDE_BEGUN, Done.OVERRIDE_ENDED)
    assert begun.note.startswith("spec.cache.policy.touch.mode: HotPagesEvicted")
    assert list(of_overrides(told, told)) == []
