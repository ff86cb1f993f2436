"""When to stop asking a store that answers late, and when to ask again. Pure but for the clock it is given.

Ranks need no agreement here: SGLang takes the shortest of the ranks' answers, so one rank's miss is everybody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .pauses import Pauses


class Breaker:
    """Open while the store is not asked. One thread tells it of answers, another may mend it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed; ``clock`` gives monotonic seconds."""
        self._pauses = Pauses(clock)
        self._open = False

    @property
    def open(self) -> bool:
        """Whether lookups are answered with a miss without asking."""
        return self._open

    def late(self) -> None:
        """The store did not answer in time."""
        self._pauses.begin()
        self._open = True

    def answered(self) -> None:
        """The store answered a lookup in time."""
        self._pauses.start_anew()

    def due(self) -> bool:
        """Return whether it is time to look if the store is back."""
        return self._open and self._pauses.over

    def mend(self) -> None:
        """The store gave a sign of life: the next lookup may ask it."""
        self._open = False
