"""When to stop asking a store that answers late, and when to ask again. Pure but for the clock it is given.

Ranks need no agreement here: SGLang takes the shortest of the ranks' answers, so one rank's miss is everybody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_PAUSE_SECONDS = 1.0
"""Between a late answer and the first look whether the store is back."""
LAST_PAUSE_SECONDS = 30.0
"""The pause doubles with each trial that is late again, up to this."""


class Breaker:
    """Open while the store is not asked. One thread tells it of answers, another may mend it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed; ``clock`` gives monotonic seconds."""
        self._clock = clock
        self._late_in_a_row = 0
        self._look_at = 0.0
        self._open = False

    @property
    def open(self) -> bool:
        """Whether lookups are answered with a miss without asking."""
        return self._open

    def late(self) -> None:
        """The store did not answer in time."""
        pause = min(FIRST_PAUSE_SECONDS * 2**self._late_in_a_row, LAST_PAUSE_SECONDS)
        self._late_in_a_row = min(self._late_in_a_row + 1, 16)
        self._look_at = self._clock() + pause
        self._open = True

    def answered(self) -> None:
        """The store answered a lookup in time."""
        self._late_in_a_row = 0

    def due(self) -> bool:
        """Return whether it is time to look if the store is back."""
        return self._open and self._clock() >= self._look_at

    def mend(self) -> None:
        """The store gave a sign of life: the next lookup may ask it."""
        self._open = False
