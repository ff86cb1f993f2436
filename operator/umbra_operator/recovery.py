"""When a replica whose pod has ended gets another one. Pure.

The first successor comes at once, the next ones after ever longer waits and at most as often as spec.recovery says: a
cause that stays, such as a full disk of the node, would otherwise make pods without end. Each pod carries when those
before it ended, so an operator that restarts forgets nothing; a pod of another revision begins anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from umbra_operator.api.v1alpha1.rollout import Recovery
from umbra_operator.records import PodRecord

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 10, 300
"""Before the second successor within the window, and at most before a later one; the wait doubles in between. As the
kubelet waits before it starts a container again."""
WINDOW_SECONDS = 3600
"""Where spec.recovery says nothing."""


@dataclass(frozen=True, slots=True)
class Succession:
    """What follows a replica's pods that have ended."""

    ends: tuple[tuple[int, int], ...]
    """Attempt and Unix seconds of each end that counts, oldest first; for the successor to carry."""
    wait_seconds: float
    """Until the successor may be made; 0 or less means now."""
    stopped: str | None
    """The sentence for a replica that gets no successor."""


def succession(pods: Iterable[PodRecord], recovery: Recovery | None, revision: str, now: float) -> Succession:
    """What follows these pods of one replica. Only those of this launch revision count; ``now``: Unix seconds."""
    same = sorted((pod for pod in pods if pod.launch_revision == revision), key=lambda pod: pod.attempt)
    ended = [(pod, pod.end) for pod in same if pod.end is not None]
    if not ended:
        return Succession((), 0.0, None)
    pod, last = ended[-1]
    known = {(pod.attempt, end.at) for pod, end in ended}.union(*(pod.earlier_ends for pod in same))
    window = recovery.window_seconds if recovery else WINDOW_SECONDS
    # Up to the last end, not up to now: what is stopped does not begin again because time passes.
    ends = tuple(sorted((attempt, at) for attempt, at in known if at >= last.at - window))
    if recovery and len(ends) > recovery.max_restarts:
        stopped = (
            f"{pod.name} has ended ({last.cause}) and was replaced {recovery.max_restarts} times in {window} s, as "
            "often as spec.recovery allows: it stays until restart.id or the spec changes, or until you delete it"
        )
        return Succession(ends, 0.0, stopped)
    return Succession(ends, last.at + _wait(len(ends)) - now, None)


def _wait(ends: int) -> float:
    """How long after the last of so many ends the successor is made."""
    return 0.0 if ends < 2 else min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** min(ends - 2, 16))
