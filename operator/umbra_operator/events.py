"""What a user is told as a Kubernetes Event: pure, from a status that changes and from what was done to a pod.

Only what happens makes an event, never what merely is: the same status again makes none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from umbra_operator.conditions import Reason, Type
from umbra_operator.plan import Action, DeletePod, PatchPod
from umbra_operator.records import Observed, PodRecord
from umbra_operator.render import names
from umbra_operator.rules import RULES


class Done(StrEnum):
    """Reasons of the events about what the operator did; all others are reasons of conditions."""

    ENGINE_RESTART_ASKED = "EngineRestartAsked"
    LIVE_SETTINGS_SENT = "LiveSettingsSent"
    OVERRIDE_BEGUN = "OverrideBegun"
    OVERRIDE_ENDED = "OverrideEnded"
    POD_REPLACED = "PodReplaced"
    POD_ENDED = "PodEnded"
    REPLICA_REMOVED = "ReplicaRemoved"


MEANINGS: Mapping[Done, str] = {
    Done.ENGINE_RESTART_ASKED: "A pod got another launch document: the engine drains and restarts, the store is kept.",
    Done.LIVE_SETTINGS_SENT: "A pod got other live settings: its engine follows while it runs.",
    Done.OVERRIDE_BEGUN: "Engines follow another value of a setting for a while (autonomy Act); the message says why.",
    Done.OVERRIDE_ENDED: "Engines follow the spec's value of a setting again.",
    Done.POD_REPLACED: "A pod was deleted because the change needs another one; the store of the new one starts empty.",
    Done.POD_ENDED: "A pod that had ended, as after an eviction, was deleted when another had taken its place.",
    Done.REPLICA_REMOVED: "A pod was deleted because spec.replicas is smaller by now.",
}

_WARNED = frozenset(
    {
        Reason.CHECK_FAILED,
        Reason.UNSCHEDULABLE,
        Reason.IMAGE_UNAVAILABLE,
        Reason.STORE_FAILED,
        Reason.OUT_OF_MEMORY,
        Reason.ENGINE_FAILED,
        Reason.RECOVERY_STOPPED,
        Reason.CRD_OUTDATED,
    }
)
"""Worth a warning besides every reason for which ConfigValid is False."""
_UNWELL = frozenset(rule.reason for rule in RULES)
"""Worth a warning, and no second one soon: numbers can come and go."""
UNWELL_PAUSE_SECONDS = 600.0
_WAITS = frozenset(
    {Reason.ROLLOUT_PAUSED, Reason.WAITING_FOR_DELETION, Reason.ACKNOWLEDGEMENT_REQUIRED, Reason.IMAGE_BACK_OFF}
)
"""Worth a word: the user has held the change, and may wait for it all the same, or the kubelet delays it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event about a K3Deployment."""

    warning: bool
    reason: str
    note: str
    pause_seconds: float = 0.0
    """For so long the same reason is not told again about the same object."""


def of_overrides(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Event]:
    """One event for each setting that engines follow otherwise than in the status before."""
    was, now = ({each["setting"]: each for each in status.get("overrides") or ()} for status in (before, after))
    for setting, override in now.items():
        if setting not in was:
            yield Event(False, Done.OVERRIDE_BEGUN, f"spec.{setting}: {override['message']}")
    for setting in was.keys() - now.keys():
        yield Event(False, Done.OVERRIDE_ENDED, f"spec.{setting}: engines follow the spec again")


def of_status(before: Sequence[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[Event]:
    """One event for each reason that a condition took on between two lists of conditions and that a user should see."""
    was = {condition["type"]: condition for condition in before}
    told: dict[str, Event] = {}
    for condition in after:
        old = was.get(condition["type"], {})
        reason, status = condition["reason"], condition["status"]
        if (old.get("status"), old.get("reason")) == (status, reason):
            continue
        kind = condition["type"]
        changed = kind == Type.AVAILABLE and "True" in (status, old.get("status"))
        lost = changed and reason == Reason.NO_REPLICA_SERVES
        unwell = reason in _UNWELL
        warning = lost or unwell or reason in _WARNED or (kind == Type.CONFIG_VALID and status == "False")
        if warning or changed or reason in _WAITS:
            pause = UNWELL_PAUSE_SECONDS if unwell else 0.0
            told.setdefault(reason, Event(warning, reason, condition["message"], pause))
    return [*told.values()]


def presses(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a status must follow the one before at once; the rest tells how a start goes on, and may wait a moment.

    At once: another generation, a flip of ConfigValid or Ready, the end of Available, what Act does, and
    whatever is worth a warning.
    """
    if before.get("observedGeneration") != after["observedGeneration"]:
        return True
    was, now = ({each["type"]: each["status"] for each in side.get("conditions") or ()} for side in (before, after))
    flipped = any(was.get(kind) != now[kind] for kind in (Type.CONFIG_VALID, Type.READY))
    if flipped or (was.get(Type.AVAILABLE), now[Type.AVAILABLE]) == ("True", "False"):
        return True
    if before.get("overrides") != after.get("overrides"):
        return True
    return any(event.warning for event in of_status(before.get("conditions") or (), after["conditions"]))


def of_action(action: Action, observed: Observed) -> Event | None:
    """The event about an action that was done; None where the status or the object itself tells enough."""
    match action:
        case PatchPod(pod, uid, _, _, annotations):
            revision, record = annotations[names.ANNOTATION_REVISION], _record(uid, observed)
            if record and record.launch_revision == revision:
                if record.live_revision == annotations[names.ANNOTATION_LIVE]:
                    return None  # it only gets back what somebody took away
                note = f"pod {pod} gets other live settings; its engine goes on and follows them"
                return Event(False, Done.LIVE_SETTINGS_SENT, note)
            note = f"pod {pod} gets launch revision {revision}; its engine restarts in place"
            return Event(False, Done.ENGINE_RESTART_ASKED, note)
        case DeletePod(pod, uid):
            return _deleted(pod, uid, observed)
    return None


def _deleted(pod: str, uid: str, observed: Observed) -> Event | None:
    record, spec = _record(uid, observed), observed.deployment.spec
    if record is None or spec is None:
        return None
    if record.ordinal >= spec.replicas:
        return Event(False, Done.REPLICA_REMOVED, f"pod {pod} is deleted: spec.replicas is {spec.replicas}")
    if record.over and record.end:
        return Event(True, Done.POD_ENDED, f"pod {pod} has ended ({record.end.cause}); another has taken its place")
    return Event(False, Done.POD_REPLACED, f"pod {pod} is deleted: the change needs another pod")


def _record(uid: str, observed: Observed) -> PodRecord | None:
    return next((pod for pod in observed.pods if pod.uid == uid), None)
