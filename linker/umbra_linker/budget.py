"""A bound on the CPU time of work that may be left out. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

CORE_PART = 0.01
"""Part of a core that such work may use."""
BUDGET_SECONDS = 10.0
"""Over which that holds, whenever one begins to count."""
REFUSING_PART = 0.05
"""Of that, what is kept for work that is left out: telling so takes some 15 us, too."""
SLICES = 100
"""In so many the span is remembered: each question looks at all of them."""
CALL_PAGES = 50
"""Work on one page takes as long as so many pages in a longer one."""
DEARER = 1.5
"""So much more than all of late, for its size, the next work may take."""


@dataclass(slots=True)
class _Used:
    """What was used in a slice of time."""

    begin: float
    end: float = 0.0
    seconds: float = 0.0
    rate: float = 0.0
    """Seconds a page of what was dearest for its size."""


class CpuBudget:
    """A part of a core that is not exceeded over a span of time, whenever it begins. Pure but for its arguments.

    What work will take is known only afterwards, so it is reckoned from what work of late took for its size. The bound
    holds while none takes more than ``DEARER`` times as much, and none alone takes more than there is.
    """

    def __init__(self, part: float = CORE_PART, seconds: float = BUDGET_SECONDS) -> None:
        """Begin with nothing used."""
        self._most = part * seconds * (1 - REFUSING_PART)
        self._seconds = seconds
        self._used: deque[_Used] = deque()
        self._sum = 0.0

    def allows(self, now: float, pages: int) -> bool:
        """Return whether at ``now``, in monotonic seconds, enough is left for so many pages."""
        while self._used and self._used[0].end <= now - self._seconds:
            self._sum -= self._used.popleft().seconds
        if not self._used:
            self._sum = 0.0  # Sums of fractions drift.
        rate = max((used.rate for used in self._used), default=0.0)
        return self._sum + DEARER * rate * (pages + CALL_PAGES) <= self._most

    def spend(self, now: float, pages: int, seconds: float) -> None:
        """Count CPU seconds that were used up to ``now`` for so many pages; 0 where the work was not done."""
        rate = seconds / (pages + CALL_PAGES) if pages else 0.0
        if not self._used or now - self._used[-1].begin >= self._seconds / SLICES:
            self._used.append(_Used(begin=now))
        used = self._used[-1]
        used.end, used.seconds, used.rate = now, used.seconds + seconds, max(used.rate, rate)
        self._sum += seconds
