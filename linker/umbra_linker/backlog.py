"""How much of the device's pools waits to be stored, and when that is enough. Pure.

A node that waits for the store is locked: the device cannot evict it. A store that does not answer would so take one
pool after the other, until a request finds no slot and the engine ends. Ranks submit and take results in one order, so
they decide alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


class Backlog:
    """The pages that unfinished offloads hold, by pool."""

    def __init__(self, pool_pages: Mapping[str, int], percent: int) -> None:
        """Allow unfinished offloads ``percent`` of each pool's pages, at least one."""
        self._pool_pages = dict(pool_pages)
        self.allow(percent)
        self._held = dict.fromkeys(pool_pages, 0)
        self._nodes: deque[dict[str, int]] = deque()

    @property
    def held(self) -> dict[str, int]:
        """The pages that unfinished offloads hold, by pool; from any thread."""
        return dict(self._held)

    def allow(self, percent: int) -> None:
        """Change the part that may be held; what waits already goes on waiting."""
        self._most = {pool: max(1, pages * percent // 100) for pool, pages in self._pool_pages.items()}

    def admits(self, pages: Mapping[str, int]) -> bool:
        """Return whether a node of these pages may be stored, too; the first one always may."""
        return not self._nodes or all(
            self._held[pool] + count <= self._most[pool] for pool, count in pages.items() if count
        )

    def add(self, pages: Mapping[str, int]) -> None:
        """Count a node that was submitted."""
        self._nodes.append(dict(pages))
        for pool, count in pages.items():
            self._held[pool] += count

    def finish_oldest(self) -> None:
        """Count the oldest node as finished."""
        for pool, count in self._nodes.popleft().items():
            self._held[pool] -= count

    def clear(self) -> None:
        """Forget all nodes."""
        self._nodes.clear()
        self._held = dict.fromkeys(self._held, 0)
