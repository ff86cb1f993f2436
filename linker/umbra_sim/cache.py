"""One engine's cache: its device over its store, with the linker's policy between them.

A prefix can be restored up to the deepest page where the store has the KV from the device's deepest checkpoint on,
and a checkpoint. The rest of the prompt is computed in chunks; each leaves a checkpoint, and new nodes are stored.
What the model leaves out: time that transfers take, locks, and nodes that wait for the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from umbra_linker import policy as linker
from umbra_linker.shape import PAGE_TOKENS
from umbra_sim.device import Device, Node
from umbra_sim.policies import Policy, Recency
from umbra_sim.tier import Objects, Tier
from umbra_sim.trace import Pages

CHUNK_TOKENS = 8192
"""Tokens of a prefill chunk (``--chunked-prefill-size``)."""
DECODE_GRID = 256
"""While it answers, the engine takes checkpoints at multiples of so many tokens (``mamba_track_interval``)."""
TOUCH_MILLISECONDS = 30_000
"""A node is touched at most so often; from 5 to 300 s the interval makes no difference."""
_REMEMBERED_TOUCHES = 1 << 16


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a prompt found, in pages."""

    asked: int
    """Pages that could have been restored."""
    device: int
    """Pages that the device restores."""
    hit: int
    """Pages that device and store restore together."""


class Cache:
    """Device, store and policy."""

    def __init__(
        self,
        policy: Policy,
        recency: Recency,
        device: Device,
        tier: Tier,
        capacity: int | None,
        chunk_tokens: int = CHUNK_TOKENS,
        page_tokens: int = PAGE_TOKENS,
    ) -> None:
        self.tier = tier
        self.page_tokens = page_tokens
        self._policy = policy
        self._reads_refresh = recency is Recency.READS
        self._device = device
        self._checkpoints = linker.CheckpointPolicy(capacity, chunk_tokens)
        self._touches = linker.TouchTimes(_REMEMBERED_TOUCHES)
        self._chunk = max(1, chunk_tokens // page_tokens)
        self._page_numbers = 0

    def new_pages(self, count: int) -> int:
        """Return the first of ``count`` page numbers that nobody has."""
        first = self._page_numbers
        self._page_numbers += count
        self.tier.reserve(self._page_numbers)
        return first

    @property
    def page_numbers(self) -> int:
        """Page numbers that were given out are below this."""
        return self._page_numbers

    def prefill(self, pages: Pages, prompt: int, now: float) -> Lookup:
        """Look a prompt up, restore what there is, compute and store the rest.

        Args:
            pages: the prompt's.
            prompt: tokens of the prompt; at least one is always computed.
            now: seconds.
        """
        asked = min((prompt - 1) // self.page_tokens, len(pages))
        matched, anchor = self._device.match(pages, asked)
        start = anchor.end
        if start and self._policy.touch:
            self._touch(anchor, pages[:start], now)
        hit = self._stored(pages, start, asked)
        self._compute(matched, pages, hit, now)
        return Lookup(asked, start, hit)

    def finish(self, pages: Pages, prompt_pages: int, prompt: int, now: float) -> None:
        """Keep what an answer added: ``pages`` are the prompt's and the answer's, up to the last checkpoint."""
        node = self._device.path(pages, prompt_pages)
        if len(pages) > node.end:
            leaf = self._device.insert(node, pages, len(pages))
            self._offer(leaf, pages, node.end, 0, prompt, now)

    def _stored(self, pages: Pages, start: int, asked: int) -> int:
        """Return up to which page the store can restore the prompt; ``start`` if nothing."""
        present = self.tier.kv.ask(pages[start:asked])
        run = len(present) if present.all() else int(present.argmin())
        ends = np.flatnonzero(self.tier.checkpoints.ask(pages[start : start + run]))
        if not len(ends):
            return start
        hit = start + int(ends[-1]) + 1
        if self._reads_refresh:
            self.tier.touch(self._objects(pages[start:hit], checkpoint=True))
        return hit

    def _compute(self, matched: Node, pages: Pages, hit: int, now: float) -> None:
        """Compute the prompt from ``hit`` on, and keep what the device did not have.

        What was restored is the request's own until then: it becomes part of the first leaf, as if it were computed.
        """
        kv, node = matched.end, matched
        if kv == len(pages) - 1:
            # One token is always computed, so a whole last page is not asked for; the device may have it all the same.
            node = self._device.path(pages, len(pages))
        known = node.end
        for end in _checkpoint_ends(hit, kv, len(pages), self._chunk):
            if end > known:
                leaf = self._device.insert(node, pages, end)
                self._offer(leaf, pages, known, hit, len(pages) * self.page_tokens, now)
                node, known = leaf, end
            else:
                self._device.give_checkpoint(self._device.boundary(node, end))

    def _offer(self, leaf: Node, pages: Pages, begin: int, restored: int, prompt: int, now: float) -> None:
        """Store a new leaf: its KV, and its checkpoint if the policy takes it.

        Args:
            leaf: the node.
            pages: of the whole prefix.
            begin: pages before the leaf.
            restored: pages of the prefix that the request loaded from the store.
            prompt: tokens of the prompt.
            now: seconds.
        """
        end = leaf.end * self.page_tokens
        new = leaf.end - max(begin, min(restored, leaf.end))
        leaf.stored = self._checkpoints.takes(
            int(now * 1000),
            self._policy.checkpoints,
            linker.boundary(end, prompt, self.page_tokens),
            begin * self.page_tokens,
            end,
            kv_bytes=new * self.tier.kv.size,
            checkpoint_bytes=self.tier.checkpoints.size if new else 0,
        )
        self.tier.put(self._objects(pages[begin : leaf.end], checkpoint=leaf.stored), now)

    def _touch(self, anchor: Node, pages: Pages, now: float) -> None:
        if not self._touches.due(anchor.number, int(now * 1000), TOUCH_MILLISECONDS):
            return
        self.tier.touch(self._objects(pages, checkpoint=True))
        if self._policy.rewrite:
            self._rewrite(anchor, pages, now)

    def _rewrite(self, anchor: Node, pages: Pages, now: float) -> None:
        there = self.tier.kv.has(pages)
        checkpoint = bool(self.tier.checkpoints.has(pages[-1:])[0]) if anchor.stored else None
        if there.all() and checkpoint is not False:
            return
        again = linker.rewrite(there.tolist(), checkpoint)
        last = pages[-1:] if again.checkpoint else pages[:0]
        self.tier.put(((self.tier.checkpoints, last), (self.tier.kv, pages[list(again.pages)])), now)

    def _objects(self, pages: Pages, *, checkpoint: bool) -> Objects:
        """The pages and the checkpoint at their end, in the policy's order: what comes first is evicted first."""
        last = (self.tier.checkpoints, pages[-1:] if checkpoint else pages[:0])
        if self._policy.leaf_first:
            return last, (self.tier.kv, pages[::-1])
        return (self.tier.kv, pages), last


def _checkpoint_ends(hit: int, kv: int, prompt: int, chunk: int) -> Iterator[int]:
    """Where a prompt leaves checkpoints: at the end of each chunk, or where the device's KV ended inside it.

    Args:
        hit: pages that were not computed.
        kv: pages of KV that the device had; without a checkpoint there, it is computed again (mamba_branching_seqlen).
        prompt: pages of the prompt.
        chunk: pages of a chunk.
    """
    if 0 < hit == prompt:
        yield hit
    for begin in range(hit, prompt, chunk):
        end = min(begin + chunk, prompt)
        yield kv if begin < kv < end else end
