"""Umbra's linker: SGLang's UMBP linker with one copy of each KV page, stripes, parallel calls and results per task.

SGLang loads it with ``--unified-cache-external-linker-backend dynamic``. Device pools, registration and the addresses
of a page's ranges are SGLang's (``device``); names (``keys``), ``lookups``, ``loads`` and ``offloads`` are ours, and
so is what runs beside the scheduler (``upkeep``). The scheduler's thread calls every public method.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName
from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import DevicePoolEntry
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.storage.umbp.umbp_direct_linker import (
    RANGES_PER_CALL,
    UMBPDirectLinker,
    _object_sizes_per_page,
)
from sglang.srt.mem_cache.storage.umbp.umbp_store import UMBPStore
from sglang.srt.runtime_context import get_parallel, get_spec, mamba_checkpoint_grid
from sglang.srt.utils import get_device_module

from . import __version__
from .backlog import Backlog
from .canary import SAMPLE_BYTES, Canary
from .connection import StoreWatch, epoch_at, other_name
from .device import DevicePages
from .guard import TESTED, LinkerRefusedError, require_hooks, require_one_tokenizer, require_tested
from .hooks import dead_hooks, settled_tree_core
from .keys import (
    DRAFT_POOL,
    KeyScheme,
    RankPosition,
    draft_digest,
    geometry_digest,
    key_scheme,
    object_keys,
    object_names,
)
from .live import NONE, LiveSettings
from .loads import Loads
from .lookups import Found, Lookups
from .metrics import LinkerMetrics
from .mover import KeysOf, Mover
from .offloads import Offloads
from .planning import owned_pages
from .recent import RecentPages
from .scratch import Scratch
from .settings import SECTION, KeyLayout, Settings
from .sharded import ShardedPool, shape_of, sharded_pools
from .store import CallClock, MoriStore
from .touches import Pool, Touches
from .transfers import run_bounded
from .upkeep import Upkeep
from .writing import Writing

logger = logging.getLogger(__name__)

RESET_SECONDS = 30.0
"""How long ``reset`` waits for a write that the store has not answered."""
CLOSE_SECONDS = 5.0
"""How long each step of ``close`` waits; SGLang kills a scheduler 15 s after it asked it to end."""
DEFAULT_CHUNK_TOKENS = 8192
"""SGLang's own size of a chunk on large devices."""
RECONNECT_MILLISECONDS = 500
"""How long the client's constructor may stop this process, where the store died after its sign of life."""


class UmbraLinker(UMBPDirectLinker):  # type: ignore[misc]  # sglang is untyped
    """One rank's linker.

    Raises:
        LinkerRefusedError: from the constructor, outside the tested versions, when a hook is not live, or when the
            store does not take the device's memory.
        SettingsError: from the constructor, for settings that cannot be used.
    """

    _pending: dict[str, list[Any]]
    _closed: bool
    storage: Any

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Any,
        extra_config: dict[str, Any] | None = None,
        forward_stream: Any = None,
    ) -> None:
        require_tested({entry.distribution: _installed_version(entry.distribution) for entry in TESTED})
        require_hooks(dead_hooks())
        require_one_tokenizer(server_args.tokenizer_worker_num)
        extra = dict(extra_config or {})
        base = Settings.from_mapping(extra.pop(SECTION, {}))
        self._live = LiveSettings(Path(base.live_file), base)
        self.version, self.settings = NONE, base
        self.position = _rank_position(params)
        address = extra.get("standalone_address") or os.environ.get("UMBP_STANDALONE_ADDRESS")
        # Before there is a client: a store that is replaced meanwhile is then noticed afterwards.
        epoch = epoch_at(address) if address else None
        chunk = _chunk_tokens(server_args)
        with sharded_pools(self.position.decode_context_size, shape_of(params, components, chunk)):
            super().__init__(
                server_args, params, components=components, extra_config=extra, forward_stream=forward_stream
            )
        self._names = {name: _object_names(entry) for name, entry in self.pools.items()}
        self._object_sizes = {name: _object_sizes_per_page(entry) for name, entry in self.pools.items()}
        self.scheme, self._prefix = self._choose_scheme(extra.get("extra_backend_tag"))
        self.metrics = LinkerMetrics(self.position.tensor)
        self._calls = CallClock(self.metrics.call)
        self.store = MoriStore(self.storage.client, self._calls)
        self._mover = Mover(
            self.store, self.settings, self.metrics, most_ranges=RANGES_PER_CALL, rank=self.position.tensor
        )
        # None: the store is part of this process.
        self._address = address if self._standalone_process_mode else None
        watch = StoreWatch(self._address, epoch, self._reconnect) if self._address else None
        recent = RecentPages()
        device = DevicePages(self, self._object_sizes)
        self._lookups = Lookups(self.metrics, recent, self.position.tensor)
        self._loads = Loads(device, self.layer_done_counter, self._mover, self.metrics, self.position.tensor)
        self._scratch = Scratch(
            SAMPLE_BYTES, [buffer for pool in self.pools.values() for buffer in pool.get_hybrid_pool_buffer()]
        )
        self._scratch.register(self.storage.client)
        self._offloads = Offloads(
            device, self._mover, Canary(self.store, self.metrics, self._scratch), self.metrics, self._new_backlog(),
            recent, position=self.position, striped=self.scheme.shared_kv, coalesce_pages=self._offload_coalesce_pages,
        )  # fmt: skip
        self.writing = Writing(
            self.settings, self.metrics, self._page_bytes(), page=self.page_size,
            chunk=chunk or DEFAULT_CHUNK_TOKENS, grid=mamba_checkpoint_grid(self.page_size),
        )  # fmt: skip
        self.touches = Touches(
            self.store, self.metrics, {name.value: self._touched_pool(name, device) for name in self.pools},
            self.position.tensor,
        )  # fmt: skip
        self._upkeep = Upkeep(
            watch, self._address, self._calls, self._lookups, self.metrics, self._live,
            load_deadline_seconds=self.settings.load_deadline_seconds,
            oldest_offload=self._offloads.oldest_seconds, held_pages=self._offloads.held_pages,
            rank=self.position.tensor,
        )  # fmt: skip
        self._announce()

    def _choose_scheme(self, parent_tag: str | None) -> tuple[KeyScheme, str]:
        kv = self.pools.get(PoolName.KV)
        sizes = {name.value: sizes for name, sizes in self._object_sizes.items()}
        types = {name.value: _data_types(entry) for name, entry in self.pools.items()}
        scheme = key_scheme(
            self.settings.key_layout,
            self.position,
            kv_replicated=kv is not None and type(kv.device_pool) is MLATokenToKVPool,
            store_shared=self._standalone_process_mode,
            geometry=geometry_digest(
                {pool: sizes for pool, sizes in sizes.items() if pool != DRAFT_POOL},
                types,
                page_size=self.page_size,
                tensor_size=self.position.tensor_size,
            ),
            draft=draft_digest(get_spec().speculative_draft_model_path, sizes[DRAFT_POOL], types[DRAFT_POOL])
            if DRAFT_POOL in sizes
            else None,
            parent_tag=parent_tag,
        )
        # The store client built its prefix from the caller's tag and the model; ours holds the caller's tag too.
        prefix = self.storage.config_prefix or ""
        model = prefix.removeprefix(f"{parent_tag}").removeprefix("_") if parent_tag else prefix
        return scheme, f"{scheme.tag}_{model}" if model else scheme.tag

    def _new_backlog(self) -> Backlog:
        pages = {name.value: entry._row_count // entry._row_span for name, entry in self.pools.items()}
        self.metrics.pools(pages)
        return Backlog(pages, self.settings.offload_backpressure_percent)

    def _page_bytes(self) -> dict[str, int]:
        """Return what a page of each pool adds to the store, by all ranks together."""
        return {
            name.value: sum(sizes) * (1 if self.scheme.shared_kv and name == PoolName.KV else self.position.tensor_size)
            for name, sizes in self._object_sizes.items()
        }

    def _touched_pool(self, name: PoolName, device: DevicePages) -> Pool:
        def keys_of(pages: Sequence[str]) -> list[str]:
            return object_keys(self._prefix, pages, self.scheme.suffix(name.value), self._names[name])

        ranks = self.position.tensor_size if self.scheme.shared_kv and name == PoolName.KV else 1
        rank = self.position.tensor % ranks

        def mine(pages: Sequence[str]) -> list[int]:
            return owned_pages(pages, per_page=1, rank=rank, ranks=ranks)

        return Pool(keys_of, device.scratch(name), mine)

    def _load_thread_func(self) -> None:
        """SGLang's own thread has nothing to do."""

    def _offload_thread_func(self) -> None:
        """SGLang's own thread has nothing to do."""

    def _register_buffers(self) -> None:
        """Let the store reach the device pools, at the start and after each new connection."""
        try:
            super()._register_buffers()
        except RuntimeError as error:
            raise LinkerRefusedError(
                f"the store does not take this rank's device memory ({error}): it must run on this node as the same "
                "user, and its log says more; restart the store, then this engine"
            ) from error

    def _reconnect(self) -> Any:
        """Make a client for the store that listens now, with all buffers registered; return the old one.

        Runs on the heartbeat's thread. Calls under way end with the old client; each call after it has the new one.
        """
        old = self.storage
        extra = dict(old.storage_config.extra_config or {})
        address = other_name(str(extra.get("standalone_address") or self._address))
        extra |= {"standalone_address": address, "standalone_startup_timeout_ms": RECONNECT_MILLISECONDS}
        fresh = UMBPStore(
            dataclasses.replace(old.storage_config, extra_config=extra), mem_pool_host=None, per_rank_keyspace=True
        )
        # What SGLang's constructor sets on the first one.
        for name in ("mem_pool_host", "_kv_anchor_is_logical", "registered_pools", "mla_suffix", "mha_suffix"):
            setattr(fresh, name, getattr(old, name))
        self.storage = fresh
        try:
            self._register_buffers()
            self._scratch.register(fresh.client)
        except BaseException:
            self.storage = old
            raise
        self.store.client = fresh.client
        return old

    @property
    def newest_settings(self) -> tuple[int, Settings]:
        """The settings that this rank has read last, and their version; in force are ``settings`` of ``version``."""
        return self._live.latest

    def adopt(self, version: int, settings: Settings) -> None:
        """Bring settings into force that every rank has read."""
        self.version, self.settings = version, settings
        self._mover.configure(settings)
        self._offloads.configure(settings)
        self._upkeep.load_deadline_seconds = settings.load_deadline_seconds
        self.writing.configure(settings)
        self.metrics.settings(settings)
        logger.info("live settings in force: %s", settings.to_mapping())

    def _announce(self) -> None:
        layout = KeyLayout.AUTO if self.scheme.shared_kv else KeyLayout.PER_RANK
        labels = {"key_layout": str(layout), "kv_suffix": self.scheme.kv_suffix, "tag": self.scheme.tag}
        self.metrics.info({"version": __version__} | labels)
        self.metrics.settings(self.settings)
        self.metrics.tree_core(settled_tree_core())
        logger.info("Umbra linker %s %s", __version__, self.scheme.describe(self.position))

    # ---- names ----

    def _object_keys_for_pages(self, page_keys: list[str], transfer: Any) -> tuple[list[str], int]:
        """Lookup, load and offload all take their object names from here."""
        names = self._names[transfer.name]
        return object_keys(self._prefix, page_keys, self.scheme.suffix(transfer.name.value), names), len(names)

    # ---- lookup ----

    def lookup(self, rid: str, transfers: Any) -> list[int]:
        """Return the restorable prefix lengths in pages, ascending; SGLang intersects them over the ranks.

        A store that gives no usable answer in time is a miss.
        """
        begin = time.perf_counter()
        expanded = self.pool_group.resolve_transfers(transfers)
        pages = next((list(t.keys or ()) for t in transfers if t.name == PoolName.KV), [])
        if not expanded or not pages:
            return []
        seconds = self.settings.lookup_deadline_milliseconds / 1000
        lengths, reason = self._lookups.ask(rid, pages, lambda: self._look_up(pages, expanded), seconds)
        hit = lengths[-1] if lengths else 0
        self.metrics.lookup(
            seconds=time.perf_counter() - begin,
            pages=len(pages),
            hit_pages=hit,
            hit_tokens=hit * self.page_size,
            hit_objects=self._objects_of_hit(expanded, hit),
        )
        if reason is not None:
            self.metrics.missed(len(pages) - hit, reason)
        return lengths

    def _look_up(self, pages: list[str], expanded: list[Any]) -> Found:
        """Run on the lookup thread."""
        lengths = list(range(1, len(pages) + 1))
        kv_present: list[bool] = []
        without_draft = 0
        answers: list[list[bool]] = []
        # The draft last: what it takes away is then what the other pools have.
        ordered = sorted(expanded, key=lambda transfer: transfer.name == PoolName.DRAFT)
        for place, transfer in enumerate(ordered):
            # No policy looks beyond the longest length that is still possible.
            possible = lengths[-1]
            if place == len(answers):
                answers += self._mover.exists(pages[:possible], [self._keys_in(pool) for pool in ordered[place:]])
            present = answers[place][:possible]
            if transfer.name == PoolName.KV:
                kv_present = present
            lengths = self._apply_hit_policy(lengths, present, transfer)
            if transfer.name != PoolName.DRAFT:
                without_draft = lengths[-1] if lengths else 0
            if not lengths:
                break
        return Found(lengths, kv_present, without_draft)

    def _objects_of_hit(self, expanded: list[Any], hit: int) -> dict[str, int]:
        # A pool with a trailing window is read only at the end of the prefix.
        pages = {
            t.name: hit if t.hit_policy == PoolHitPolicy.ALL_PAGES else min(hit, len(t.keys or ())) for t in expanded
        }
        return {name.value: len(self._names[name]) * count for name, count in pages.items()}

    def _keys_in(self, transfer: Any) -> KeysOf:
        return lambda pages: self._object_keys_for_pages(list(pages), transfer)[0]

    # ---- load ----

    def start_layer_wise_loading(self) -> int:
        """Start the queued loads and return their counter index, -1 without any."""
        if not self._pending:
            return -1
        self._freeze_gc_once()
        pending: dict[str, list[Any]] = self._pending
        self._pending = {}
        ready = get_device_module().Event()
        ready.record()
        return self._loads.begin(list(pending.values()), ready)

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait for a batch of loads; True when every request's objects were read."""
        return all(self.finish_loads(counter_index))

    def finish_loads(self, counter_index: int) -> list[bool]:
        """Wait until a batch of loads no longer writes to the device; say for each of its requests whether it landed.

        The order is the one in which the requests were queued. Without such a batch the list is empty.
        """
        return self._loads.finish(counter_index)

    # ---- offload ----

    def offload(self, transfers: Any, session_id: str | None = None) -> bool:
        """Queue a tree node to be stored; False when it is not.

        The answer depends on the transfers and on what was queued and taken before, so it is the same on all ranks.
        """
        expanded = self.pool_group.resolve_transfers(transfers, allow_partial=True)
        if not expanded:
            return False
        if not self._offloads.admits(expanded):
            return False
        self._freeze_gc_once()
        self._offloads.submit(expanded, self.record_offload_ready())
        return True

    def num_completed_offloads(self) -> int:
        """Return how many results can be taken; SGLang takes as many as every rank has."""
        return self._offloads.results()

    def pop_completed_offload(self) -> bool:
        """Return whether this rank stored its part of the oldest node."""
        return self._offloads.take_result()

    # ---- ending ----

    def queued_loads(self) -> int:
        """Return how many requests have a load that has not started; the same on every rank."""
        return len(self._pending)

    def reset(self) -> None:
        """Let queued work fail and wait for what the store was already asked.

        Raises:
            TimeoutError: when the store has not answered after ``RESET_SECONDS``. The caller would hand out slots that
                the store may still read or write, so the engine has to end.
        """
        self._pending.clear()
        if not self._quiesce(RESET_SECONDS):
            raise TimeoutError(
                f"the store has not answered a call for {self._calls.oldest_seconds():.0f} s, and the cache's memory "
                "cannot be given to anybody else meanwhile: restart the store and this engine"
            )
        self._offloads.forget()
        self.touches.forget()
        self._loads.forget()

    def _quiesce(self, seconds: float) -> bool:
        self._offloads.cancel_waiting()
        end = time.monotonic() + seconds
        idle = self._loads.wait_until_idle(seconds)
        return self._offloads.wait_until_idle(max(0.0, end - time.monotonic())) and idle

    def close(self) -> None:
        """End the threads and release the store's view of our memory. Takes 3 x ``CLOSE_SECONDS`` at most."""
        if self._closed:
            return
        self._closed = True
        self._upkeep.stop()
        quiet = self._quiesce(CLOSE_SECONDS)
        quiet = quiet and self._loads.stop(1.0) and self._offloads.stop(1.0) and self.touches.stop(1.0)
        # Releasing asks the store, too; a frozen one must not keep the engine from ending.
        if not quiet or not run_bounded(self._release, CLOSE_SECONDS, "umbra-close"):
            logger.warning("the store does not answer; the engine ends without taking leave of it")

    def _release(self) -> None:
        if self._standalone_process_mode and self._registered:
            self.storage.client.deregister_memory(self._registered[0][0])  # one call releases all buffers
        self.storage.close()


def _object_names(entry: Any) -> tuple[str, ...]:
    if type(entry) not in (DevicePoolEntry, ShardedPool):
        raise LinkerRefusedError(
            f"the Umbra linker refuses to start: pool {entry.name.value} is a {type(entry).__name__}, and only "
            f"{DevicePoolEntry.__name__} was tested"
        )
    return object_names(entry.name.value, len(entry.components), packed=entry.packed)


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _rank_position(params: Any) -> RankPosition:
    rank, size = 0, 1
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank = torch.distributed.get_rank(group=params.tp_cache_group)
        size = torch.distributed.get_world_size(group=params.tp_cache_group)
    return RankPosition(
        tensor=rank,
        tensor_size=size,
        context=params.attn_cp_rank,
        pipeline=params.pp_rank,
        decode_context_size=get_parallel().attn_dcp_size,
    )


def _chunk_tokens(server_args: Any) -> int | None:
    # Without chunks a prompt has no checkpoint but its last.
    size: int | None = server_args.chunked_prefill_size
    return size if size and size > 0 else None


def _data_types(entry: Any) -> str:
    return ",".join(sorted({str(buffer.dtype) for buffer in entry.get_hybrid_pool_buffer()}))
