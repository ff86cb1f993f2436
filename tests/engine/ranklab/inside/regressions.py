"""Scenes around public reports about keys, restores and trees; each returns what a test judges."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import torch
from player import Player, linker_config
from rank import PAGE, Rank
from sglang.srt.managers.schedule_batch import ReqKvInfo, ScheduleBatch
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.unified_cache.components import ComponentType


def prompt(number: int, pages: int, page: int = PAGE) -> list[int]:
    """Return a prompt that shares no page with one of another number; ``page`` are its page's tokens."""
    return [number * 100_000 + token for token in range(pages * page)]


def seated(rank: Rank, address: str, *, pages: int = 24, states: int = 10, ways: int = 1) -> Player:
    """Return a player with room for so many pages."""
    return Player.seated(rank, linker_config(address), tokens=pages * PAGE * ways, states=states, ways=ways)


class _Failing:
    """The real client, whose answers to some calls are replaced by failures."""

    def __init__(self, client: Any, *calls: str) -> None:
        self._client = client
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if name in self._calls:
            return lambda keys, *ranges: [False] * len(keys)
        return getattr(self._client, name)


def names(rank: Rank, address: str) -> dict[str, list[str]]:
    """Store a prompt and look it up; return the names that were written and that were asked for."""
    player = seated(rank, address)
    seen: dict[str, list[str]] = {}
    client = player.linker.store.client

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            def call(keys: Any, *rest: Any) -> Any:
                seen.setdefault(name, []).extend(keys)
                return getattr(client, name)(keys, *rest)

            return call

    player.linker.store.client = Recorder()
    player.compute(prompt(1, 3))
    player.settle()
    player.forget()
    player.abort(player.restore(prompt(1, 3)))
    return {name: sorted(keys) for name, keys in seen.items()}


def evicted_from_device(rank: Rank, address: str) -> dict[str, Any]:
    """Let the device evict a stored prompt, without a flush, and restore it."""
    player = seated(rank, address)
    player.compute(prompt(1, 5))
    player.settle()
    player.evict(24 * PAGE, 10)
    request = player.restore(prompt(1, 5))
    return {"device": request.device, "loaded": request.loaded, "wrong": player.differences(request)}


def shorter(rank: Rank, address: str) -> list[int]:
    """Store a prompt of five pages; return what prefixes of 2, 5 and 7 pages find of it."""
    player = seated(rank, address)
    player.compute(prompt(1, 5))
    player.settle()
    player.forget()
    found = []
    for pages in (2, 5, 7):
        request = player.match(prompt(1, 7)[: pages * PAGE])
        found.append(request.loaded)
        player.abort(request)
    return found


def private(rank: Rank, address: str) -> dict[str, Any]:
    """Restore a prompt; look at the tree before the request ends, and after."""
    player = seated(rank, address)
    player.compute(prompt(1, 4))
    player.settle()
    player.forget()
    request = player.restore(prompt(1, 4))
    other = player.match(prompt(1, 4))
    before = {"device": other.device, "tree": player.cache.full_evictable_size() + player.cache.full_protected_size()}
    player.abort(other)
    player.keep(request)
    after = player.match(prompt(1, 4))
    player.abort(after)
    player.settle()
    return {"before": before, "after": after.device, "wrong": player.device_differences(prompt(1, 4))}


def evicted_between(rank: Rank, address: str, ways: int = 1) -> dict[str, Any]:
    """Let the store evict a prompt between its lookup and its load; another request is in the same batch."""
    player = seated(rank, address, pages=64, states=20, ways=ways)
    page = player.page
    player.compute(prompt(1, 6, page))
    player.settle()
    player.forget()
    gone = player.match(prompt(1, 6, page))
    for number in range(2, 9):
        player.compute(prompt(number, 6, page))
        player.settle()
    player.evict(64 * page, 20)
    there = player.match(prompt(8, 6, page))
    for request in (gone, there):
        player.queue_load(request)
    player.forward([gone, there])
    wrong = player.differences(there)
    player.keep(there)
    player.abort(gone)
    again = player.match(prompt(1, 6, page))
    player.abort(again)
    player.settle()
    player.cache.sanity_check()
    return {
        "found": [gone.loaded, there.loaded],
        "landed": [gone.landed, there.landed],
        "wrong": wrong,
        "in the tree": again.device,
        "leaked": player.leaked(),
    }


def one_rank_fails(rank: Rank, address: str, call: str, ways: int = 1) -> dict[str, Any]:
    """Let the last rank alone fail to write, or to read; all ranks must draw the same conclusion."""
    player = seated(rank, address, ways=ways)
    tokens = prompt(1, 4, player.page)
    client = player.linker.store.client
    failing = _Failing(client, call) if rank.rank == rank.size - 1 else client
    player.linker.store.client = failing if "put" in call else client
    player.compute(tokens)
    player.settle()
    player.forget()
    player.linker.store.client = failing if "get" in call else client
    request = player.restore(tokens)
    found, landed = request.loaded, request.landed
    player.abort(request)
    player.linker.store.client = client
    player.compute(tokens)
    player.settle()
    player.forget()
    repaired = player.restore(tokens)
    return {
        "found": found,
        "landed": landed,
        "repaired": [repaired.loaded, repaired.landed, player.differences(repaired)],
    }


def waiting(rank: Rank, address: str) -> dict[str, Any]:
    """A waiting request's prefix is touched, then the device needs room; return what is left of two prompts."""
    from sglang.srt.mem_cache.common import touch_waiting_prefix

    player = seated(rank, address)
    for number in (1, 2):
        player.compute(prompt(number, 4))
    player.settle()
    asked: list[str] = []
    player.linker.lookup = lambda rid, transfers: asked.append(rid) or []
    waiter = SimpleNamespace(
        origin_input_ids=array("q", prompt(1, 4)), output_ids=array("q"), extra_key=None, cache_salt=None
    )
    touch_waiting_prefix(waiter, player.cache)
    looked_up = len(asked)
    player.evict(4 * PAGE)
    left = [len(player.device_prefix(prompt(number, 4))) for number in (1, 2)]
    return {"left": left, "looked up": looked_up}


def overwritten(rank: Rank, address: str) -> dict[str, Any]:
    """A checkpoint is overwritten in place at a boundary, for want of a slot; then the request ends.

    Returns what would be stored: the length that the state is said to belong to, before and after.
    """
    player = seated(rank, address)
    pool, component = player.pools.requests, player.cache.components[ComponentType.MAMBA]
    slots = pool.mamba_allocator.alloc(1)
    kv = ReqKvInfo(
        mamba_ping_pong_track_buffer=torch.tensor([int(slots[0]), -1]), mamba_ping_pong_empty=[False, True],
        mamba_next_track_idx=0, mamba_last_track_idx=0, mamba_last_track_seqlen=PAGE,
    )  # fmt: skip
    request = SimpleNamespace(kv=kv)
    before = component.prepare_for_caching_req(request, InsertParams(), 4 * PAGE, is_finished=True)
    pool.mamba_allocator.alloc(pool.mamba_allocator.available_size())
    batch = SimpleNamespace(req_to_token_pool=pool, reqs=[request], seq_lens_cpu=torch.tensor([4 * PAGE]))
    ScheduleBatch.mamba_lazy_prealloc_at_boundary(batch, 4 * PAGE)
    after = component.prepare_for_caching_req(request, InsertParams(), 4 * PAGE, is_finished=True)
    return {"before": before, "after": after}
