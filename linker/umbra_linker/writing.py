"""Which checkpoints this engine stores: the write policy with the sizes and the time that all ranks share.

No SGLang, no clock. Every rank asks with the same arguments in the same order, and so decides alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .keys import MAMBA_POOL
from .metrics import LinkerMetrics
from .policy import CheckpointPolicy, boundary
from .settings import Settings


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the tree that is offered to the store, in tokens."""

    begin: int
    """Before the node."""
    end: int
    """Up to the node's end."""
    prompt: int | None
    """Of the request that inserted it; None when nobody knows, as for a node that is offered again."""
    restored: int = 0
    """From the beginning on, what came from the store and so adds nothing to it."""


class Writing:
    """One rank's write policy. For the scheduler's thread."""

    def __init__(
        self,
        settings: Settings,
        metrics: LinkerMetrics,
        page_bytes: Mapping[str, int],
        *,
        page: int,
        chunk: int,
        grid: int,
    ) -> None:
        """Begin with nothing written.

        Args:
            settings: which checkpoints to keep, and the size of the store.
            metrics: of this rank.
            page_bytes: per pool, what a page (or a state) adds to the store: every copy and every rank's part.
            page: tokens a page.
            chunk: tokens that the engine computes between two checkpoints.
            grid: checkpoints stand at multiples of so many tokens.
        """
        self._metrics = metrics
        self._checkpoint_bytes = page_bytes.get(MAMBA_POOL, 0)
        self._kv_bytes = sum(size for pool, size in page_bytes.items() if pool != MAMBA_POOL)
        self._page = page
        self._grid = grid
        self._policy = CheckpointPolicy(None, chunk)
        self.configure(settings)
        self.now_ms = 0
        """The time that all ranks have: of the rank whose clock is furthest behind."""

    def configure(self, settings: Settings) -> None:
        """Take other settings from the next node on."""
        self._checkpoints = settings.checkpoints
        self._policy.store_bytes = settings.store_bytes or None

    def agree(self, now_ms: int) -> None:
        """Take the reduced time."""
        self.now_ms = now_ms

    def keeps_checkpoint(self, node: Node) -> bool:
        """Return whether the checkpoint at the node's end is stored with its KV; count it where it is not."""
        if node.prompt is None:
            return True
        kind = boundary(node.end, node.prompt, self._grid)
        new_pages = (node.end - max(node.begin, min(node.restored, node.end))) // self._page
        kept = self._policy.takes(
            self.now_ms, self._checkpoints, kind, node.begin, node.end,
            kv_bytes=new_pages * self._kv_bytes,
            checkpoint_bytes=self._checkpoint_bytes if new_pages else 0,
        )  # fmt: skip
        if not kept:
            self._metrics.dropped_checkpoint(kind)
        return kept
