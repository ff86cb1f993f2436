"""Page hashes from the root to the end of a node, remembered because asking the tree costs 65 ns a page. Pure.

What a node's end stands for never changes: a split takes its beginning away and leaves its number and its end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

MOST_PAGES = 1 << 17
"""Pages remembered, of all paths together: 8 million tokens at 64 a page, in about 15 MiB."""


class Paths:
    """The paths of the nodes that were used last. For one thread."""

    def __init__(self, most_pages: int = MOST_PAGES) -> None:
        """Remember at most ``most_pages``."""
        self._most_pages = most_pages
        self._pages = 0
        self._paths: OrderedDict[int, Sequence[str]] = OrderedDict()

    def of(self, node: int, ask: Callable[[], Sequence[str]]) -> Sequence[str]:
        """Return the path of ``node``; ``ask`` gives it where it is not remembered."""
        path = self._paths.get(node)
        if path is None:
            path = ask()
        self.put(node, path)
        return path

    def put(self, node: int, path: Sequence[str]) -> None:
        """Remember the path of ``node``; the one used longest ago is forgotten first."""
        self._pages += len(path) - len(self._paths.pop(node, ()))
        self._paths[node] = path
        while self._pages > self._most_pages and len(self._paths) > 1:
            self._pages -= len(self._paths.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all paths."""
        self._paths.clear()
        self._pages = 0
