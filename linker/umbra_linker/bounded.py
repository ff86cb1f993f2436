"""A mapping that cannot grow without end. Pure."""

from __future__ import annotations

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bounded(dict[Key, Value]):
    """A mapping that forgets what was set longest ago. For one thread; only ``[]`` may set an entry."""

    def __init__(self, most: int) -> None:
        """Remember at most ``most`` entries."""
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        """Set an entry, which is the youngest then."""
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            del self[next(iter(self))]
