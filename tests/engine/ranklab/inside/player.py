"""The scheduler's part, played by a test on one rank: prompts are computed, restored, kept or aborted.

A prompt's bytes are a function of its tokens (and, where a pool is sharded, of the rank), so anybody can say what a
page or a state must hold without remembering who wrote it. Every rank calls in the same order, as SGLang's do.
"""

from __future__ import annotations

import itertools
import time
import zlib
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rank import CHUNK, PAGE, Pools, Rank, make_cache, make_pools, publish
from sglang.srt.layers.dcp.layout import maybe_dcp_kernel_indices
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey

SETTLE_SECONDS = 30.0


def linker_config(address: str, settings: dict[str, Any] | None = None, linker: str = "umbra_linker.linker") -> Any:
    """Return SGLang's description of Umbra's linker with the store at ``address``."""
    # Pools of a few pages and eight ranks on few cores: neither bound is what is tested here.
    umbra = {"lookupDeadlineMilliseconds": 5000, "offloadBackpressurePercent": 100} | (settings or {})
    extra = {"standalone_address": address, "standalone_auto_start": False, "umbra": umbra}
    return {"linker": "UmbraLinker", "linker_module_path": linker, "linker_extra_config": extra}


def stock_config(address: str) -> Any:
    """Return SGLang's description of its own UMBP linker with the store at ``address``."""
    module = "sglang.srt.mem_cache.storage.umbp.umbp_direct_linker"
    extra = {"standalone_address": address, "standalone_auto_start": False}
    return {"linker": "UMBPDirectLinker", "linker_module_path": module, "linker_extra_config": extra}


@dataclass(slots=True, eq=False)
class Request:
    """A prompt that was matched; ``own`` are its slots beyond the tree, ``state`` its KDA state."""

    tokens: list[int]
    device: int
    """Tokens of the prefix that the tree has on the device."""
    loaded: int
    """Tokens beyond it that are restored from the store into ``own``."""
    own: Any
    state: Any
    lock: Any
    fields: Any
    """What SGLang reads and sets of a request."""
    landed: bool = False


@dataclass(slots=True)
class Player:
    """One rank's cache, and the hands that use it."""

    rank: Rank
    pools: Pools
    cache: Any
    ways: int = 1
    """Ranks that share the tokens of a prompt; a page of the tree has so many times ``PAGE`` tokens."""
    _numbers: Any = field(default_factory=itertools.count)

    @classmethod
    def seated(
        cls, rank: Rank, linker: Any, *, tokens: int, states: int, layers: int = 8, backend: str = "dynamic",
        ways: int = 1, draft: str | None = "draft",
    ) -> Player:  # fmt: skip
        """Build pools for ``tokens`` tokens and ``states`` states, and the cache with its linker."""
        # A draft is refused where the tokens are shared.
        draft = draft if ways == 1 else None
        arguments = publish(rank, linker, backend, ways=ways, chunk=CHUNK * ways, draft=draft)
        pools = make_pools(rank, tokens=tokens, states=states, layers=layers, draft=draft is not None, ways=ways)
        return cls(rank, pools, make_cache(rank, pools, arguments), ways)

    @property
    def page(self) -> int:
        """Tokens of a page of the tree."""
        return PAGE * self.ways

    @property
    def linker(self) -> Any:
        """This rank's linker."""
        return self.cache.linker.cache_linker

    # ---- what a forward computes ----

    def compute(self, tokens: list[int]) -> Any:
        """Compute what the device lacks of ``tokens`` (whole pages) and give it to the tree.

        Returns:
            The node, or None where locks of others leave no room; nothing has changed then but what was evicted.
        """
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))
        lock = self.cache.lock(match.last_device_node)
        own = self._slots(len(tokens) - match.device_prefix_len)
        state = self._state()
        node = None
        if own is not None and state is not None:
            self._fill(tokens, match.device_prefix_len, own, state)
            node = self._insert(tokens, match.device_prefix_len, match.last_device_node, own, state)
        else:
            self._free(own, state)
        self.cache.unlock(lock)
        return node

    def step(self) -> None:
        """Do what a scheduler does in each step: agree on the offloads that ended."""
        self.cache.check_hicache_events()

    def settle(self) -> None:
        """Take steps until nothing is to be stored any more."""
        end = time.monotonic() + SETTLE_SECONDS
        while self.cache.linker.pending_offloads:
            self.step()
            if time.monotonic() > end:
                raise TimeoutError(f"{len(self.cache.linker.pending_offloads)} offloads never ended")
            time.sleep(0.001)

    # ---- what the store gives back ----

    def match(self, tokens: list[int]) -> Request:
        """Look ``tokens`` up in the tree and in the store, and hold what the tree has."""
        fields = SimpleNamespace(rid=f"r{next(self._numbers)}", kv=ReqKvInfo(), session=None, swa_branching_seqlen=None)
        result = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens), req=fields))
        fields.last_node, fields.result = result.last_device_node, result
        lock = self.cache.lock(result.last_device_node)
        return Request(tokens, result.device_prefix_len, result.host_hit_length, None, None, lock, fields)

    def queue_load(self, request: Request) -> None:
        """Queue the load of what the store has; without room the request has nothing loaded."""
        result = request.fields.result
        if not request.loaded:
            return
        loaded, _ = self.cache.init_load_back(
            InitLoadBackParams(
                best_match_node=result.best_match_node, host_hit_length=result.host_hit_length, req=request.fields
            )
        )
        request.loaded = loaded
        if loaded:
            request.own = self.cache.linker.private_load_indices[request.fields.rid]
            request.state = request.fields.kv.mamba_pool_idx.reshape(1)

    def forward(self, requests: list[Request]) -> None:
        """Run the loads of a batch: the forward waits for each layer, then all ranks agree on who is aborted."""
        index = self.cache.ready_to_load_host_cache()
        counter = self.linker.layer_done_counter
        counter.set_consumer(index)
        for layer in range(self.linker.num_layers):
            counter.wait_until(layer)
        everyone = [request.fields for request in requests]
        failed = {fields.rid for fields in self.cache.finish_external_linker_loads(everyone)}
        for request in requests:
            request.landed = request.fields.rid not in failed

    def restore(self, tokens: list[int]) -> Request:
        """Match, load and run one request."""
        request = self.match(tokens)
        self.queue_load(request)
        self.forward([request])
        return request

    def keep(self, request: Request) -> None:
        """End a request that landed: the tree takes over what it restored."""
        if request.loaded:
            tokens = request.tokens[: request.device + request.loaded]
            self._insert(tokens, request.device, request.fields.last_node, request.own, request.state)
        self._release(request)

    def abort(self, request: Request) -> None:
        """End a request whose bytes must not be used: its slots are free again, the tree never saw them."""
        self.cache.linker.release_request(request.fields.rid)
        self._free(request.own, request.state)
        self._release(request)

    def forget(self) -> None:
        """Empty the device as a flush does, overwriting every byte; what the store holds stays."""
        self.cache.reset()
        self.pools.allocator.clear()
        self.pools.requests.mamba_allocator.clear()
        for _, _, buffers in self._page_buffers():
            for buffer in buffers:
                buffer.view(torch.uint8).fill_(0xA5)
        states = self.pools.requests.mamba_pool.mamba_cache
        for buffer in (states.temporal, *states.conv):
            buffer.view(torch.uint8).fill_(0xA5)

    def evict(self, tokens: int, states: int = 0) -> None:
        """Take device memory back from the tree."""
        self.cache.evict(EvictParams(num_tokens=tokens, mamba_num=states))

    # ---- the oracle ----

    def differences(self, request: Request) -> list[str]:
        """Return which restored bytes are not what computing the prompt would have given."""
        if not request.loaded:
            return []
        return self._wrong(
            request.tokens[: request.device + request.loaded], request.device, request.own, request.state
        )

    def device_differences(self, tokens: list[int]) -> list[str]:
        """Return which bytes in the tree's own prefix of ``tokens`` are wrong."""
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))
        if not match.device_prefix_len:
            return []
        slots = self.cache.path_device_indices(match.last_device_node)
        state = self.cache.tree_core.get_component_device_value(match.best_match_node, _mamba_component())
        return self._wrong(tokens[: match.device_prefix_len], 0, slots, state)

    def device_prefix(self, tokens: list[int]) -> Any:
        """Return the slots of the prefix of ``tokens`` that the tree has on the device, without asking the store."""
        match = self.cache.match_prefix(MatchPrefixParams(key=_key(tokens)))
        return self.cache.path_device_indices(match.last_device_node)[: match.device_prefix_len]

    def leaked(self) -> dict[str, int]:
        """Return slots that neither the allocators nor the tree have, by pool, once no request holds any."""
        cache, pools = self.cache, self.pools
        kv = pools.allocator.available_size() + cache.full_evictable_size() + cache.full_protected_size()
        states = pools.requests.mamba_allocator.available_size()
        states += cache.mamba_evictable_size() + cache.mamba_protected_size()
        lost = {"kv": pools.allocator.size - kv, "mamba": pools.requests.mamba_allocator.size - states}
        return {name: count for name, count in lost.items() if count}

    # ---- slots and bytes ----

    def _slots(self, count: int) -> Any:
        allocator = self.pools.allocator
        if not count:
            return torch.empty(0, dtype=torch.int64)
        if count > allocator.available_size():
            self.evict(count - allocator.available_size())
        slots = allocator.alloc(count)
        return None if slots is None else slots.to(torch.int64)

    def _state(self) -> Any:
        allocator = self.pools.requests.mamba_allocator
        if not allocator.available_size():
            self.evict(0, 1)
        return allocator.alloc(1)

    def _free(self, slots: Any, state: Any) -> None:
        if slots is not None and len(slots):
            self.pools.allocator.free(slots)
        if state is not None:
            self.pools.requests.mamba_allocator.free(state)

    def _insert(self, tokens: list[int], device: int, node: Any, own: Any, state: Any) -> Any:
        slots = torch.cat([self.cache.path_device_indices(node).to(torch.int64), own])
        result = self.cache.insert(
            InsertParams(key=_key(tokens), value=slots, mamba_value=state, prev_prefix_len=device)
        )
        if result.mamba_exist:
            self.pools.requests.mamba_allocator.free(state)
        return result.last_device_node

    def _release(self, request: Request) -> None:
        self.cache.unlock(request.lock)
        request.lock = None

    def _fill(self, tokens: list[int], begin: int, slots: Any, state: Any) -> None:
        for _, where, content in self._expected(tokens, begin, slots, state):
            where[:] = torch.from_numpy(content).view(where.shape)

    def _wrong(self, tokens: list[int], begin: int, slots: Any, state: Any) -> list[str]:
        return [
            name
            for name, where, content in self._expected(tokens, begin, slots, state)
            if not torch.equal(where, torch.from_numpy(content).view(where.shape))
        ]

    def _expected(self, tokens: list[int], begin: int, slots: Any, state: Any) -> Any:
        """Yield name, bytes in memory and right bytes, of each page from token ``begin`` on and of the end's state."""
        seed = zlib.crc32(array("q", tokens[:begin]).tobytes())
        for page in range(begin, len(tokens), self.page):
            seed = zlib.crc32(array("q", tokens[page : page + self.page]).tobytes(), seed)
            rows = self._rows(slots[page - begin : page - begin + self.page])
            for pool, owner, buffers in self._page_buffers():
                for number, buffer in enumerate(buffers):
                    where = buffer[rows].view(torch.uint8)
                    whole = _random((seed, owner, number), where.numel() * self.ways, pool)
                    mine = whole.reshape(self.page, -1)[self.rank.rank % self.ways :: self.ways]
                    yield f"{pool} page {page // self.page}", where, mine.reshape(-1)
        states = self.pools.requests.mamba_pool.mamba_cache
        for number, buffer in enumerate([states.temporal, *states.conv]):
            for layer in range(buffer.shape[0]):
                where = buffer[layer, int(state)].reshape(-1).view(torch.uint8)
                content = _random((seed, self.rank.rank, number * 1000 + layer), where.numel(), "mamba")
                yield f"mamba at token {len(tokens)}", where, content

    def _rows(self, slots: Any) -> slice:
        """Return where this rank has the tokens of a page that are its own, by SGLang's own rule."""
        rows = maybe_dcp_kernel_indices(slots, self.ways, self.rank.rank % self.ways)
        assert torch.equal(rows, torch.arange(int(rows[0]), int(rows[0]) + PAGE)), "no page of the pool"
        return slice(int(rows[0]), int(rows[-1]) + 1)

    def _page_buffers(self) -> list[tuple[str, int, Any]]:
        # MLA KV is the same on every rank; draft KV is sharded over the heads.
        draft = self.pools.draft
        return [
            ("kv", 0, self.pools.kv.full_kv_pool.kv_buffer),
            ("draft", self.rank.rank, [*draft.k_buffer, *draft.v_buffer] if draft is not None else []),
        ]


def _key(tokens: list[int]) -> Any:
    return RadixKey(array("q", tokens))


def _random(seed: tuple[int, int, int], size: int, pool: str) -> Any:
    words = np.random.default_rng([*seed, len(pool)]).bytes(size)
    return np.frombuffer(words, dtype=np.uint8).copy()


def _mamba_component() -> Any:
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    return ComponentType.MAMBA
