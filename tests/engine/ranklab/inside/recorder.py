"""A client of the store that remembers what the linker puts through it."""

from __future__ import annotations

from typing import Any

from player import Player


class Recorder:
    """The real client, and what went through it, in order: of each object that was put the key and size."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.put: list[tuple[str, int]] = []
        self.asked: list[int] = []
        """Objects of each existence check."""

    @classmethod
    def over(cls, player: Player) -> Recorder:
        """Stand between a player's linker, Umbra's or SGLang's own, and its client from now on."""
        door = player.linker.store if hasattr(player.linker, "store") else player.linker.storage
        recorder = door.client = cls(door.client)
        return recorder

    @property
    def keys(self) -> list[str]:
        """The objects that were put, in order."""
        return [key for key, _ in self.put]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_put_ranges_from_ptr(self, keys: Any, sizes: Any, *ranges: Any) -> Any:
        self.put += zip(keys, sizes, strict=True)
        return self._client.batch_put_ranges_from_ptr(keys, sizes, *ranges)

    def batch_exists(self, keys: Any) -> Any:
        self.asked.append(len(keys))
        return self._client.batch_exists(keys)
