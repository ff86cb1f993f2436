"""A mapping that cannot grow without end. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bounded(OrderedDict[Key, Value]):
    """A mapping that forgets what was set longest ago. For one thread; only ``[]`` may set an entry.

    Not a plain dict: that finds its first entry by passing over all that were removed before it, 50 us each time in a
    full one of 65,536.
    """

    def __init__(self, most: int) -> None:
        """Remember at most ``most`` entries."""
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, which is the youngest then."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > self._most:
            self.popitem(last=False)
