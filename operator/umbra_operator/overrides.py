"""What ``autonomy: Act`` changes while engines run: one setting at a time, for a while, never the spec. Pure.

An override is live: no engine restarts for it. What is in force is remembered in ``status.overrides`` alone, so an
operator that restarts goes on with it, and ``autonomy: Advise`` gives the spec's values back at once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from umbra_operator.advice import TOO_SMALL
from umbra_operator.api.v1alpha1 import K3DeploymentSpec
from umbra_operator.api.v1alpha1.cache import CachePolicy, Checkpoints, TouchMode, TouchPolicy
from umbra_operator.api.v1alpha1.deployment import Autonomy
from umbra_operator.conditions import Reason
from umbra_operator.judge import Assessment
from umbra_operator.render.engine import LINKER_DEFAULTS

COOL_DOWN_SECONDS = 1800
"""Between two actions: twice the longest window of a rule, so that what the last one did is seen before the next."""
LASTS_SECONDS = 86400
"""How long an override stays: a day has all hours of traffic, and whoever wants it for good sets it in the spec."""
LEAST_BACKPRESSURE_PERCENT = 20
"""Below it next to nothing would be stored."""


@dataclass(frozen=True, slots=True)
class Override:
    """One field of the spec that engines follow in another value."""

    setting: str
    """Path of the field below ``spec``."""
    value: str
    message: str
    since: int
    """Unix seconds, like until."""
    until: int

    def to_status(self) -> dict[str, str]:
        """The entry of ``status.overrides``."""
        return {
            "setting": self.setting,
            "value": self.value,
            "message": self.message,
            "since": _time(self.since),
            "expiresAt": _time(self.until),
        }


@dataclass(frozen=True, slots=True)
class _Action:
    """What can be done about some findings, as a change of ``spec.cache.policy``."""

    setting: str
    about: frozenset[Reason]
    change: Callable[[CachePolicy], CachePolicy | None]
    """None where it would change nothing."""
    value: Callable[[CachePolicy], object]
    """The field in a policy."""


def _touch(policy: CachePolicy) -> CachePolicy | None:
    if policy.touch is None or policy.touch.mode is not TouchMode.OFF:
        return None
    return policy.model_copy(update={"touch": policy.touch.model_copy(update={"mode": TouchMode.AUTO})})


def _checkpoints(policy: CachePolicy) -> CachePolicy | None:
    if policy.checkpoints is not Checkpoints.ALL:
        return None
    return policy.model_copy(update={"checkpoints": Checkpoints.ADAPTIVE})


def _backpressure(policy: CachePolicy) -> CachePolicy | None:
    """Half of what may wait now."""
    now = policy.offload_backpressure_percent or LINKER_DEFAULTS.offload_backpressure_percent
    half = max(LEAST_BACKPRESSURE_PERCENT, now // 2)
    return policy.model_copy(update={"offload_backpressure_percent": half}) if half < now else None


_ACTIONS: Mapping[str, _Action] = {
    action.setting: action
    for action in (
        # The most urgent first: an engine without a free checkpoint slot ends.
        _Action(
            "cache.policy.offloadBackpressurePercent",
            frozenset({Reason.CHECKPOINTS_LOCKED}),
            _backpressure,
            lambda policy: policy.offload_backpressure_percent,
        ),
        _Action("cache.policy.touch.mode", TOO_SMALL, _touch, lambda policy: (policy.touch or TouchPolicy()).mode),
        _Action("cache.policy.checkpoints", TOO_SMALL, _checkpoints, lambda policy: policy.checkpoints),
    )
}


def overrides(
    spec: K3DeploymentSpec, status: Mapping[str, Any], assessment: Assessment | None, now: float
) -> tuple[Override, ...]:
    """What is in force from ``now`` on, in Unix seconds: at most one more than in the ``status`` that was written last.

    Without an ``assessment``, as after a start of the operator, nothing new begins.
    """
    if spec.autonomy is not Autonomy.ACT:
        return ()
    policy = spec.cache.policy or CachePolicy()
    kept = tuple(each for each in _remembered(policy, status) if now < each.until)
    if assessment is None or any(now - each.since < COOL_DOWN_SECONDS for each in kept):
        return kept
    done = {each.setting for each in kept}
    begun = (each for each in _possible(policy, assessment, int(now)) if each.setting not in done)
    return (*kept, *islice(begun, 1))


def _remembered(policy: CachePolicy, status: Mapping[str, Any]) -> Iterator[Override]:
    """Those in the status that still change something: the user may have set the field meanwhile."""
    for entry in status.get("overrides") or ():
        action = _ACTIONS.get(entry["setting"])
        changed = action.change(policy) if action else None
        if action and changed:
            since, until = (int(datetime.fromisoformat(entry[name]).timestamp()) for name in ("since", "expiresAt"))
            yield Override(action.setting, str(action.value(changed)), entry["message"], since, until)


def _possible(policy: CachePolicy, assessment: Assessment, now: int) -> Iterator[Override]:
    for action in _ACTIONS.values():
        finding = next((each for each in assessment.findings if each.reason in action.about), None)
        changed = action.change(policy)
        if finding and changed:
            value, own = str(action.value(changed)), action.value(policy) or "the default"
            message = f"{finding.reason} at {finding.pod}: {value} instead of {own}; set it in the spec to keep it"
            yield Override(action.setting, value, message, now, now + LASTS_SECONDS)


def look_again_seconds(in_force: Iterable[Override], now: float) -> float | None:
    """When the next override ends or the next action may follow; None when none is in force."""
    times = [time for each in in_force for time in (each.until, each.since + COOL_DOWN_SECONDS) if time > now]
    return min(times) - now if times else None


def effective(spec: K3DeploymentSpec, in_force: Iterable[Override]) -> K3DeploymentSpec:
    """The spec that engines follow."""
    policy = spec.cache.policy or CachePolicy()
    for override in in_force:
        policy = _ACTIONS[override.setting].change(policy) or policy
    if policy == (spec.cache.policy or CachePolicy()):
        return spec
    return spec.model_copy(update={"cache": spec.cache.model_copy(update={"policy": policy})})


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
