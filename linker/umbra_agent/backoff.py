"""How long to wait before the engine is started again after it ended by itself, and when not to any more."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

BACKOFF_LIMIT_SECONDS = 60.0
# As the API bounds spec.recovery.maxRestarts.
MOST_RESTARTS = 1000
# Ready for this long means that the next exit is a new failure, not the same one again.
STABLE_SECONDS = 60.0

StartReason = Literal["First", "Exited", "Revision"]


def backoff_seconds(failures: int) -> float:
    """Wait before the start after the `failures`-th exit in a row: 1, 2, 4 ... 60 s."""
    return min(BACKOFF_LIMIT_SECONDS, 2.0 ** min(max(failures, 1) - 1, 16))


@dataclass(frozen=True)
class Budget:
    """How often an engine that ends by itself is started again within so many seconds."""

    restarts: int
    seconds: int


def budget(live: Mapping[str, Any]) -> Budget | None:
    """The budget in a launch document's live settings; None where none bounds the restarts."""
    found = live.get("recovery")
    if not isinstance(found, dict):
        return None
    restarts, seconds = found.get("maxRestarts"), found.get("windowSeconds")
    return Budget(restarts, seconds) if isinstance(restarts, int) and isinstance(seconds, int) else None


class Backoff:
    """Counts starts, and exits in a row of one revision. Another revision never waits for them."""

    def __init__(self) -> None:
        self.starts = 0
        self.failures = 0
        self.stopped = False
        """The budget of the revision that failed last is spent: it is not started any more."""
        self._exits: deque[float] = deque(maxlen=MOST_RESTARTS + 1)
        """When the engine ended by itself, monotonic seconds; of one revision."""
        self._failed_revision: str | None = None
        self._retry_at = 0.0

    def waits(self, revision: str, allowed: Budget | None) -> bool:
        """Whether it is too early to start `revision`, or too late by the budget that it has now."""
        if revision != self._failed_revision:
            return False
        self.stopped = self.stopped and self._spent(allowed)
        return self.stopped or time.monotonic() < self._retry_at

    def _spent(self, allowed: Budget | None) -> bool:
        """Whether the exits up to the last one are more than allowed: that time passes brings none back."""
        if allowed is None or not self._exits:
            return False
        return sum(self._exits[-1] - ended <= allowed.seconds for ended in self._exits) > allowed.restarts

    def starting(self, revision: str) -> StartReason:
        """Count a start and say what made it necessary."""
        again = revision == self._failed_revision
        if not again:
            self.failures, self.stopped = 0, False
            self._exits.clear()
        self._failed_revision = None
        self.starts += 1
        if self.starts == 1:
            return "First"
        return "Exited" if again else "Revision"

    def failed(self, revision: str, ready_seconds: float | None, allowed: Budget | None = None) -> float:
        """Count an exit after `ready_seconds` of being ready (None: never was); return the wait in seconds.

        With the exit after the last restart that `allowed` has, `stopped` becomes true.
        """
        if ready_seconds is not None and ready_seconds >= STABLE_SECONDS:
            self.failures = 0
        self.failures += 1
        wait = backoff_seconds(self.failures)
        now = time.monotonic()
        self._exits.append(now)
        self.stopped = self._spent(allowed)
        self._retry_at = now + wait
        self._failed_revision = revision
        return wait

    def to_handover(self) -> dict[str, Any]:
        """For the agent that replaces this one; the monotonic clock is the machine's, so it goes on."""
        return {
            "starts": self.starts,
            "failures": self.failures,
            "failedRevision": self._failed_revision,
            "retryAt": self._retry_at,
            "stopped": self.stopped,
            "exits": list(self._exits),
        }

    def take_over(self, document: Mapping[str, Any]) -> None:
        """Go on where an earlier agent was."""
        self.starts, self.failures = int(document["starts"]), int(document["failures"])
        self._failed_revision, self._retry_at = document["failedRevision"], float(document["retryAt"])
        self.stopped = bool(document.get("stopped", False))
        self._exits.extend(document.get("exits", ()))
