"""A draft model's KV, on its way to the store and back together with its target's."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
from player import Player, linker_config
from policies import seated, serve, use
from prometheus_client import REGISTRY
from rank import PAGE, Rank

PROMPT, ANSWER = 5, 2
"""Pages."""


class _Client:
    """The real client; counts what is touched, and lets the objects of draft pages go another way."""

    def __init__(self, player: Player, put_drafts: Any = None) -> None:
        self._client = player.linker.store.client
        self._put_drafts = put_drafts
        self.touched: list[str] = []
        player.linker.store.client = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_put_ranges_from_ptr(self, keys: Any, *ranges: Any) -> Any:
        put = self._client.batch_put_ranges_from_ptr
        if self._put_drafts is None or not keys[0].endswith("_draft"):
            return put(keys, *ranges)
        return self._put_drafts(put, keys, *ranges)

    def batch_get_ranges_into_ptr(self, keys: Any, *ranges: Any) -> Any:
        if ranges[1][0] == [64]:
            self.touched += keys
        return self._client.batch_get_ranges_into_ptr(keys, *ranges)


def life(rank: Rank, address: str) -> dict[str, Any]:
    """Serve a prompt in chunks, use it, and restore it; return what was put, touched and restored, by pool."""
    player, recorder = seated(rank, address, {"checkpoints": "PromptEnd", "touchIntervalSeconds": 1})
    real = time.monotonic_ns
    time.monotonic_ns = lambda: real() * 2000
    client = _Client(player)
    player.step()
    serve(player, 1, prompt=PROMPT, answer=ANSWER)
    player.settle()
    tokens = [100_000 + token for token in range(PROMPT * PAGE)]
    client.touched.clear()
    use(player, tokens)
    player.forget()
    request = player.restore(tokens)
    return {
        "put": Counter(key.rsplit("_", 1)[1] for key in recorder.keys),
        "touched": Counter(key.rsplit("_", 1)[1] for key in client.touched),
        "restored": [request.loaded // PAGE, request.landed, player.differences(request)],
    }


def poisoned(rank: Rank, address: str) -> list[str]:
    """Let the last rank put other bytes for its draft pages than it has; return what is wrong in what is restored."""
    player, _ = seated(rank, address, {})
    buffers = [*player.pools.draft.k_buffer, *player.pools.draft.v_buffer]

    def put_others(put: Any, *arguments: Any) -> Any:
        right = [buffer.clone() for buffer in buffers]
        for buffer in buffers:
            buffer.view(torch.uint8).bitwise_xor_(1)
        answers = put(*arguments)
        for buffer, content in zip(buffers, right, strict=True):
            buffer.copy_(content)
        return answers

    if rank.rank == rank.size - 1:
        _Client(player, put_others)
    tokens = list(range(3 * PAGE))
    player.compute(tokens)
    player.settle()
    player.forget()
    request = player.restore(tokens)
    assert (request.loaded, request.landed) == (3 * PAGE, True)
    return sorted(set(player.differences(request)))


def lost(rank: Rank, address: str, rewrite: str) -> dict[str, Any]:
    """Lose the draft pages of the last rank on their way, use the prompt, and restore what is found of it."""
    player, _ = seated(rank, address, {"touchIntervalSeconds": 1, "rewriteMissing": rewrite})
    real = time.monotonic_ns
    time.monotonic_ns = lambda: real() * 2000
    client = _Client(player, lambda put, keys, *ranges: [True] * len(keys))
    if rank.rank != rank.size - 1:
        client._put_drafts = None
    player.step()
    tokens = list(range(3 * PAGE))
    player.compute(tokens)
    player.settle()
    client._put_drafts = None
    use(player, tokens)
    player.settle()
    player.forget()
    request = player.restore(tokens)
    return {"found": request.loaded // PAGE, "wrong": player.differences(request)}


def found_with(rank: Rank, address: str, draft: str | None) -> dict[str, Any]:
    """Return what an engine with this draft model finds of a prompt, and why not more; leave all of it in the store."""
    player = Player.seated(rank, linker_config(address), tokens=8 * PAGE, states=8, layers=4, draft=draft)
    tokens = list(range(3 * PAGE))
    request = player.restore(tokens)
    assert not player.differences(request)
    player.abort(request)
    player.compute(tokens)
    player.settle()
    return {"found": request.loaded // PAGE, "missed": missed_pages()}


def missed_pages() -> dict[str, int]:
    """Return the pages that this rank's lookups did not find, by reason."""
    (metric,) = [one for one in REGISTRY.collect() if one.name == "umbra_linker_missed_pages"]
    return {one.labels["reason"]: int(one.value) for one in metric.samples if one.name.endswith("_total") and one.value}
