"""The device: SGLang's radix tree of KV pages, some of whose nodes end with a checkpoint.

KV and checkpoints have an order of recency each. A match refreshes the KV of its whole path, but the checkpoint only at
the deepest boundary that has one. KV is evicted leaf by leaf, with its checkpoint. A checkpoint's eviction takes the KV
of its node along if that is a leaf, but never the KV above: SGLang keeps a node as long as it has KV
(unified_tree_core.py, _iteratively_delete_tombstone_ancestors). KV without a checkpoint restores nothing, and what the
store has lost of it is not written again.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict

import numpy as np

from umbra_sim.trace import Pages


class Node:
    """A run of pages."""

    __slots__ = ("begin", "checkpoint", "children", "end", "number", "pages", "parent", "stored", "used")

    def __init__(self, number: int, pages: Pages, begin: int, end: int, parent: Node | None, used: int) -> None:
        self.number = number
        """Never used twice."""
        self.pages = pages
        """The whole prefix up to the node's end, or more."""
        self.begin = begin
        self.end = end
        """Pages before the node, and up to its end."""
        self.parent = parent
        self.children: dict[int, Node] = {}
        self.checkpoint = False
        self.stored = False
        """Whether the checkpoint was put in the store, too."""
        self.used = used


class Device:
    """The tree of one engine."""

    def __init__(self, pages: int, checkpoints: int) -> None:
        """Take how many pages and checkpoints the device holds; at least one checkpoint.

        A device of no pages holds what a request computes until the next one begins.
        """
        self._pages = pages
        self._slots = checkpoints
        self._clock = 0
        self._numbers = 1
        self._forget()

    def _forget(self) -> None:
        self.resident = 0
        """Pages in the tree."""
        self.root = Node(0, np.zeros(0, dtype=np.int64), 0, 0, None, 0)
        self._checkpoints: OrderedDict[Node, None] = OrderedDict()
        self._leaves: list[tuple[int, int, Node]] = []

    def match(self, pages: Pages, limit: int) -> tuple[Node, Node]:
        """Find the longest prefix of the first ``limit`` pages, for a request that begins there.

        Returns:
            The node where it ends (one is made if it ends inside a node), and the deepest one on the way that has a
            checkpoint, or the root.
        """
        if not self._pages:
            self._forget()
        node, deepest = self._walk(pages, limit)
        if deepest.checkpoint:
            self._checkpoints.move_to_end(deepest)
        return node, deepest

    def path(self, pages: Pages, limit: int) -> Node:
        """Return the node where the longest prefix of the first ``limit`` pages ends, for KV to be added there."""
        return self._walk(pages, limit)[0]

    def _walk(self, pages: Pages, limit: int) -> tuple[Node, Node]:
        self._clock += 1
        node = deepest = self.root
        while node.end < limit:
            child = node.children.get(pages.item(node.end))
            if child is None:
                break
            last = child.end - 1
            if last >= limit or child.pages.item(last) != pages.item(last):
                stop = min(child.end, limit)
                same = child.pages[node.end : stop] == pages[node.end : stop]
                child = self._split(child, stop if same.all() else node.end + int(same.argmin()))
            node = child
            node.used = self._clock
            if node.checkpoint:
                deepest = node
        return node, deepest

    def insert(self, parent: Node, pages: Pages, end: int) -> Node:
        """Add a leaf with a checkpoint below ``parent``, and evict what then is too much."""
        node = self._add(pages, parent.end, end, parent)
        self.resident += end - parent.end
        self._leaves_push(node)
        self.give_checkpoint(node)
        self._evict_pages()
        return node

    def boundary(self, node: Node, end: int) -> Node:
        """Return the node that ends after ``end`` pages on the way to ``node``; it is made if there is none."""
        while node.begin >= end:
            assert node.parent  # noqa: S101 - only the root has none
            node = node.parent
        return node if node.end == end else self._split(node, end)

    def give_checkpoint(self, node: Node) -> None:
        """Keep a checkpoint at the end of a node, as the latest used."""
        node.checkpoint = True
        self._checkpoints[node] = None
        self._checkpoints.move_to_end(node)
        while len(self._checkpoints) > self._slots:
            oldest = next(iter(self._checkpoints))
            del self._checkpoints[oldest]
            oldest.checkpoint = False
            self._prune(oldest)

    def _add(self, pages: Pages, begin: int, end: int, parent: Node) -> Node:
        node = Node(self._numbers, pages, begin, end, parent, self._clock)
        self._numbers += 1
        parent.children[pages.item(begin)] = node
        return node

    def _split(self, node: Node, end: int) -> Node:
        """Cut a node in two; the lower part keeps its number, children and checkpoint."""
        assert node.parent  # noqa: S101 - only the root has none
        upper = self._add(node.pages, node.begin, end, node.parent)
        upper.used = node.used
        node.begin, node.parent = end, upper
        upper.children[node.pages.item(end)] = node
        return upper

    def _leaves_push(self, node: Node) -> None:
        heapq.heappush(self._leaves, (node.used, node.number, node))

    def _evict_pages(self) -> None:
        while self.resident > self._pages and self._leaves:
            used, _, node = self._leaves[0]
            if node.children or node.parent is None:
                heapq.heappop(self._leaves)
            elif node.used != used:
                heapq.heapreplace(self._leaves, (node.used, node.number, node))
            elif used == self._clock:
                return  # the request's own path stays, even if it alone is more than the device holds
            else:
                heapq.heappop(self._leaves)
                self._checkpoints.pop(node, None)
                node.checkpoint = False
                self._prune(node)

    def _prune(self, node: Node) -> None:
        """Remove a node that lost its checkpoint, if it is a leaf; but none of the last match."""
        parent = node.parent
        if parent is None or node.children or node.used == self._clock:
            return
        del parent.children[node.pages.item(node.begin)]
        self.resident -= node.end - node.begin
        node.parent = None
        if parent.parent is not None and not parent.children:
            self._leaves_push(parent)
