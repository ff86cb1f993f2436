"""What is stored, in which order, what is touched and what is written again. Pure: no clock, no torch, no SGLang.

The ranks of an engine must decide alike, so every input is one that they share: milliseconds that were reduced over the
ranks, counts, and bytes. All arithmetic is on whole numbers below 2**63, so that a compiled twin can be proven equal.

A checkpoint (KDA state) weighs as much as 508 pages of KV in K3, and a prefix can be restored only where one stands.
Which ones are worth their bytes depends on how long the store keeps them, and that on how fast this engine writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from .bounded import Bounded
from .settings import Checkpoints

Item = TypeVar("Item")

WINDOW_MILLISECONDS = 30 * 60 * 1000
"""How long a store should keep what is written before chunk ends are thinned: half an hour of an agent's session."""
SPACING_CHUNKS = 4
"""Of this many chunk ends in a row one is kept while the store keeps things for less than the window."""
RATE_SECONDS = 60
"""Over which the write rate is averaged; each second older weighs 1/60 less."""
FORGOTTEN_SECONDS = 1800
"""After so long without a write the rate is zero: 30 time constants leave 6 bytes of 64 TB."""
KEPT_MILLISECONDS = RATE_SECONDS * 1000 * 4 // 5
"""A store evicts between its watermarks, so about four fifths of it hold what is young."""


class Boundary(StrEnum):
    """Why a node of the tree ends where it does."""

    CHUNK_END = "chunk_end"
    """A prompt is computed in chunks, and the engine takes a checkpoint after each."""
    PROMPT_END = "prompt_end"
    """The last checkpoint of a prompt: where the next turn of a conversation begins."""
    DECODE_END = "decode_end"
    """Behind some of the answer. The next prompt seldom holds it unchanged; its KV continues a prompt all the same."""


def boundary(end: int, prompt: int, grid: int) -> Boundary:
    """Say what a checkpoint after ``end`` tokens is to a request whose prompt has ``prompt`` tokens.

    Args:
        end: tokens before the checkpoint.
        prompt: tokens of the prompt.
        grid: the engine takes checkpoints at multiples of so many tokens.
    """
    if end > prompt:
        return Boundary.DECODE_END
    return Boundary.PROMPT_END if prompt - end < grid else Boundary.CHUNK_END


class WriteRate:
    """Bytes a second that the engine writes, averaged over the last minute."""

    def __init__(self) -> None:
        """Begin with nothing written."""
        self._level = 0  # bytes, each weighted by its age: the rate times RATE_SECONDS
        self._second = 0

    def add(self, now_ms: int, size: int) -> None:
        """Count ``size`` bytes written at ``now_ms``. Time that goes back counts as standing still."""
        self._age(now_ms)
        self._level += size

    def window_ms(self, now_ms: int, store_bytes: int) -> int:
        """Return for how long a store of ``store_bytes`` keeps what is written at this rate."""
        self._age(now_ms)
        return store_bytes * KEPT_MILLISECONDS // max(1, self._level)

    def _age(self, now_ms: int) -> None:
        second = max(self._second, now_ms // 1000)
        elapsed, self._second = second - self._second, second
        if elapsed >= FORGOTTEN_SECONDS:
            self._level = 0
        while elapsed and self._level:
            self._level -= (self._level + RATE_SECONDS - 1) // RATE_SECONDS
            elapsed -= 1


def keeps_checkpoint(
    checkpoints: Checkpoints, end_kind: Boundary, begin: int, end: int, *, chunk: int, window_ms: int
) -> bool:
    """Return whether the checkpoint at the end of a node is stored.

    Of chunk ends the choice depends on the position alone, so requests with a common prefix choose the same ones.

    Args:
        checkpoints: the policy.
        end_kind: what the node's end is.
        begin: tokens before the node.
        end: tokens up to the node's end.
        chunk: tokens of a chunk; positive.
        window_ms: see ``WriteRate.window_ms``; only ``Adaptive`` looks at it.
    """
    if checkpoints is Checkpoints.ALL or end_kind is Boundary.PROMPT_END:
        return True
    if checkpoints is Checkpoints.PROMPT_END or end_kind is Boundary.DECODE_END:
        return False
    if window_ms >= WINDOW_MILLISECONDS:
        return True
    spacing = SPACING_CHUNKS * chunk
    return window_ms >= WINDOW_MILLISECONDS // 2 and end // spacing != begin // spacing


class CheckpointPolicy:
    """Decides node by node, in the order in which the tree offers them."""

    def __init__(self, store_bytes: int | None, chunk: int) -> None:
        """Take the capacity of the store (None: not known, nothing is thinned) and the tokens of a chunk."""
        self.store_bytes = store_bytes
        """May be changed between nodes."""
        self._chunk = chunk
        self._rate = WriteRate()

    def takes(
        self,
        now_ms: int,
        checkpoints: Checkpoints,
        end_kind: Boundary,
        begin: int,
        end: int,
        *,
        kv_bytes: int,
        checkpoint_bytes: int,
    ) -> bool:
        """Return whether the node's checkpoint is stored beside its KV, and count the bytes that are.

        Args:
            now_ms: reduced time.
            checkpoints: the policy in force.
            end_kind: see ``boundary``.
            begin: tokens before the node.
            end: tokens up to the node's end.
            kv_bytes: of the node's pages, all copies on all ranks; 0 for pages that came from the store.
            checkpoint_bytes: of its checkpoint on all ranks.
        """
        window = WINDOW_MILLISECONDS
        if self.store_bytes is not None:
            window = self._rate.window_ms(now_ms, self.store_bytes)
        kept = keeps_checkpoint(checkpoints, end_kind, begin, end, chunk=self._chunk, window_ms=window)
        self._rate.add(now_ms, kv_bytes + (checkpoint_bytes if kept else 0))
        return kept


def leaf_first(prefix: Sequence[Item]) -> list[Item]:
    """Return the pages of a prefix (or the nodes of a path) in the order in which they are put and touched.

    The checkpoint at the end goes before all of them. A store evicts what was used longest ago: a prefix so loses its
    end first, and what is left of it can still be restored. The other way round it loses page 0, and is worth nothing.
    """
    return list(reversed(prefix))


class TouchTimes:
    """When each node was touched last. Nodes are numbers that are never used twice."""

    def __init__(self, most: int) -> None:
        """Remember at most ``most`` nodes; the one touched longest ago is forgotten first."""
        self._touched: Bounded[int, int] = Bounded(most)

    def due(self, node: int, now_ms: int, interval_ms: int) -> bool:
        """Return whether ``node`` is to be touched now, and if so take it as touched."""
        last = self._touched.get(node)
        if last is not None and now_ms - last < interval_ms:
            return False
        self._touched[node] = now_ms
        return True

    def clear(self) -> None:
        """Forget all nodes."""
        self._touched.clear()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What a touch found missing and the device still has."""

    pages: tuple[int, ...]
    """Indices of KV pages in the touched prefix, leaf first."""
    checkpoint: bool
    """Whether the checkpoint at its end goes before them."""

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return self.checkpoint or bool(self.pages)


def rewrite(pages_present: Sequence[bool], checkpoint_present: bool | None) -> Rewrite:
    """Decide what to put again after a touch.

    Args:
        pages_present: for each KV page of the touched prefix, whether every rank that asked found it.
        checkpoint_present: the same of the checkpoint at the end; None when it was not touched, because the policy did
            not store it.
    """
    missing = [page for page, present in enumerate(pages_present) if not present]
    return Rewrite(tuple(leaf_first(missing)), checkpoint_present is False)
