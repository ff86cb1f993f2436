"""Nodes that found no room to wait for the store, in the order in which they are offered again. Pure.

They stand in two lines, because each pool has room of its own: checkpoints are few and their room is the first to end.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from .bounded import Bounded


class Waiting:
    """Nodes that found no room, and what was decided of each. For one thread."""

    def __init__(self, most: int) -> None:
        """Remember at most ``most`` nodes of a line; the one that has waited longest is forgotten first."""
        self._lines: tuple[Bounded[int, bool], Bounded[int, bool]] = (Bounded(most), Bounded(most))

    def put(self, node: int, *, carries: bool, kept: bool) -> None:
        """Remember a node; one that stands in its line already keeps its place.

        Args:
            node: its number.
            carries: whether it needs room for a checkpoint.
            kept: whether its checkpoint is to be stored, should it have one.
        """
        line, other = self._lines if carries else reversed(self._lines)
        other.pop(node, None)
        if node not in line:
            line[node] = kept

    def decided(self, node: int) -> bool | None:
        """Return whether the node's checkpoint is to be stored, None for a node that does not wait."""
        return next((line[node] for line in self._lines if node in line), None)

    def drop(self, node: int) -> None:
        """Let a node wait no more."""
        for line in self._lines:
            line.pop(node, None)

    def offered(self, most: int) -> Iterator[int]:
        """Yield the first ``most`` nodes of each line, those with a checkpoint first.

        A line ends early where the node that was yielded last still waits in it: it found no room again, and nobody of
        its kind overtakes it.
        """
        for line in self._lines:
            for node in list(islice(line, most)):
                yield node
                if node in line:
                    break

    def clear(self) -> None:
        """Forget all nodes."""
        for line in self._lines:
            line.clear()

    def __len__(self) -> int:
        """Return how many nodes wait."""
        return sum(map(len, self._lines))
