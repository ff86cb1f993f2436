"""A bounded memory of what was stored, to tell a page that the store evicted from one that it never had. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

CAPACITY = 1 << 17
"""Pages remembered: 8 million tokens at 64 a page, in about 15 MiB."""


class RecentPages:
    """The pages stored last. Not thread-safe for writers; a reader on another thread sees a recent state."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        """Remember at most ``capacity`` pages."""
        self._capacity = capacity
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, hashes: Iterable[str]) -> None:
        """Remember pages by their hash; the oldest are forgotten first."""
        for name in hashes:
            self._pages[_number(name)] = None
        while len(self._pages) > self._capacity:
            self._pages.popitem(last=False)

    def __contains__(self, name: object) -> bool:
        """Whether the page with this hash was stored and is still remembered."""
        return isinstance(name, str) and _number(name) in self._pages

    def __len__(self) -> int:
        """Return the number of pages remembered."""
        return len(self._pages)


def _number(name: str) -> int:
    # 60 bits: an int of this size is half as large as the string, and a collision costs one wrong label.
    return hash(name) & ((1 << 60) - 1)
