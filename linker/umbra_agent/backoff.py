"""How long to wait before the engine is started again after it ended by itself."""

import time
from collections.abc import Mapping
from typing import Any, Literal

BACKOFF_LIMIT_SECONDS = 60.0
# Ready for this long means that the next exit is a new failure, not the same one again.
STABLE_SECONDS = 60.0

StartReason = Literal["First", "Exited", "Revision"]


def backoff_seconds(failures: int) -> float:
    """Wait before the start after the `failures`-th exit in a row: 1, 2, 4 ... 60 s."""
    return min(BACKOFF_LIMIT_SECONDS, 2.0 ** min(max(failures, 1) - 1, 16))


class Backoff:
    """Counts starts, and exits in a row of one revision. Another revision never waits for them."""

    def __init__(self) -> None:
        self.starts = 0
        self.failures = 0
        self._failed_revision: str | None = None
        self._retry_at = 0.0

    def waits(self, revision: str) -> bool:
        """Whether it is too early to start `revision`."""
        return revision == self._failed_revision and time.monotonic() < self._retry_at

    def starting(self, revision: str) -> StartReason:
        """Count a start and say what made it necessary."""
        again = revision == self._failed_revision
        if not again:
            self.failures = 0
        self._failed_revision = None
        self.starts += 1
        if self.starts == 1:
            return "First"
        return "Exited" if again else "Revision"

    def failed(self, revision: str, ready_seconds: float | None) -> float:
        """Count an exit after `ready_seconds` of being ready (None: never was); return the wait in seconds."""
        if ready_seconds is not None and ready_seconds >= STABLE_SECONDS:
            self.failures = 0
        self.failures += 1
        wait = backoff_seconds(self.failures)
        self._retry_at = time.monotonic() + wait
        self._failed_revision = revision
        return wait

    def to_handover(self) -> dict[str, Any]:
        """For the agent that replaces this one; the monotonic clock is the machine's, so it goes on."""
        return {
            "starts": self.starts,
            "failures": self.failures,
            "failedRevision": self._failed_revision,
            "retryAt": self._retry_at,
        }

    def take_over(self, document: Mapping[str, Any]) -> None:
        """Go on where an earlier agent was."""
        self.starts, self.failures = int(document["starts"]), int(document["failures"])
        self._failed_revision, self._retry_at = document["failedRevision"], float(document["retryAt"])
