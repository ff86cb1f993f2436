"""Pauses between trials that fail, each twice as long as the one before. Pure but for the clock it is given."""

from __future__ import annotations

import time
from collections.abc import Callable

FIRST_SECONDS = 1.0
LAST_SECONDS = 30.0
"""No pause is longer."""


class Pauses:
    """For one thread that begins pauses; another may ask whether one is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a pause; ``clock`` gives monotonic seconds."""
        self._clock = clock
        self._next = FIRST_SECONDS
        self._end = float("-inf")

    @property
    def over(self) -> bool:
        """Whether the present pause has ended; true without any."""
        return self._clock() >= self._end

    def begin(self) -> None:
        """A trial failed."""
        self._end = self._clock() + self._next
        self._next = min(2 * self._next, LAST_SECONDS)

    def start_anew(self) -> None:
        """A trial succeeded: the pause after the next failure is the first one again."""
        self._next = FIRST_SECONDS
