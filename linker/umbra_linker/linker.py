"""Umbra's linker: SGLang's own UMBP linker with one copy of each KV page for all ranks, written in stripes.

SGLang loads it with ``--unified-cache-external-linker-backend dynamic``. Everything about transfers, layers and
completion is SGLang's; this class decides names (``keys``), who writes (``planning``) and counts (``metrics``).
"""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
from sglang.srt.mem_cache.storage.umbp.umbp_direct_linker import (
    UMBPDirectLinker,
    _object_sizes_per_page,
    _PoolRangePlan,
)
from sglang.srt.runtime_context import get_parallel

from . import __version__
from .guard import TESTED, require_hooks, require_tested
from .hooks import dead_hooks, settled_tree_core
from .keys import KeyScheme, RankPosition, geometry_digest, key_scheme
from .metrics import LinkerMetrics
from .planning import owned_pages
from .settings import SECTION, KeyLayout, Settings

logger = logging.getLogger(__name__)

Transferred = list[tuple[str, int, int]]
"""Per pool: its name, the number of objects and their bytes together."""


class UmbraLinker(UMBPDirectLinker):  # type: ignore[misc]  # sglang is untyped
    """One rank's linker.

    Raises:
        LinkerRefusedError: from the constructor, outside the tested versions or when a hook is not live.
        SettingsError: from the constructor, for settings that cannot be used.
    """

    metrics: LinkerMetrics

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
        extra = dict(extra_config or {})
        self.settings = Settings.from_mapping(extra.pop(SECTION, {}))
        self.position = _rank_position(params)
        super().__init__(server_args, params, components=components, extra_config=extra, forward_stream=forward_stream)
        self.scheme = self._choose_scheme(extra.get("extra_backend_tag"))
        self._storing: Transferred = []
        self._planned: Transferred = []
        self._loading: dict[int, Transferred] = {}
        self.metrics = LinkerMetrics(self.position.tensor)
        self.metrics.info(
            {
                "version": __version__,
                "key_layout": str(KeyLayout.AUTO if self.scheme.shared_kv else KeyLayout.PER_RANK),
                "kv_suffix": self.scheme.kv_suffix,
                "tag": self.scheme.tag,
            }
        )
        self.metrics.tree_core(settled_tree_core())
        logger.info("Umbra linker %s %s", __version__, self.scheme.describe(self.position))

    def _choose_scheme(self, parent_tag: str | None) -> KeyScheme:
        kv = self.pools.get(PoolName.KV)
        scheme = key_scheme(
            self.settings.key_layout,
            self.position,
            kv_replicated=kv is not None and type(kv.device_pool) is MLATokenToKVPool,
            store_shared=self._standalone_process_mode,
            geometry=geometry_digest(
                {name.value: _object_sizes_per_page(entry) for name, entry in self.pools.items()},
                {name.value: _data_types(entry) for name, entry in self.pools.items()},
                page_size=self.page_size,
                tensor_size=self.position.tensor_size,
            ),
            parent_tag=parent_tag,
        )
        # The store built its prefix from the caller's tag alone; no key has been used yet.
        prefix = self.storage.config_prefix or ""
        rest = prefix.removeprefix(f"{parent_tag}").removeprefix("_") if parent_tag else prefix
        self.storage.config_prefix = f"{scheme.tag}_{rest}" if rest else scheme.tag
        return scheme

    # ---- names and stripes ----

    def _object_keys_for_pages(self, page_keys: list[str], transfer: Any) -> tuple[list[str], int]:
        """Lookup, load and offload all take their object names from here."""
        keys, per_page = self.storage._get_hybrid_page_component_keys(
            page_keys, transfer, rank_suffix=self.scheme.suffix(transfer.name.value)
        )
        entry = self.pools[transfer.name]
        expected = 1 if entry.packed else len(entry.components)
        if per_page != expected:
            raise ValueError(f"pool {transfer.name}: {per_page} keys a page, but its layout has {expected} objects")
        return keys, per_page

    def _build_load_plans(
        self, request_transfers: Any, *, materialize_indices: Callable[[Any], Any] | None = None
    ) -> list[Any]:
        """Plan a batch; SGLang uses it for loads and, with ``materialize_indices``, for offloads."""
        plans: list[Any] = super()._build_load_plans(request_transfers, materialize_indices=materialize_indices)
        if materialize_indices is None:
            self._planned = self._sizes(plans)
            return plans
        if self.scheme.shared_kv:
            plans = [self._striped(plan) if plan.name == PoolName.KV else plan for plan in plans]
            plans = [plan for plan in plans if plan.keys]
        self._storing = self._sizes(plans)
        return plans

    def _striped(self, plan: Any) -> Any:
        per_page = plan.entries_per_page
        pages = owned_pages(plan.keys, per_page=per_page, rank=self.position.tensor, ranks=self.position.tensor_size)
        keys = [key for page in pages for key in plan.keys[page * per_page : (page + 1) * per_page]]
        return _PoolRangePlan(plan.name, keys, [plan.locations[page] for page in pages], per_page)

    def _sizes(self, plans: list[Any]) -> Transferred:
        return [
            (plan.name.value, len(plan.keys), sum(_object_sizes_per_page(self.pools[plan.name])) * len(plan.locations))
            for plan in plans
        ]

    # ---- counting ----

    def lookup(self, rid: str, transfers: Any) -> list[int]:
        """Return the restorable prefix lengths in pages, ascending (SGLang reduces them over the ranks)."""
        begin = time.perf_counter()
        found: list[int] = super().lookup(rid, transfers)
        seconds = time.perf_counter() - begin
        asked = next((len(t.keys or ()) for t in transfers if t.name == PoolName.KV), 0)
        self.metrics.lookup(seconds=seconds, pages=asked, hit_pages=found[-1] if found else 0)
        return found

    def start_layer_wise_loading(self) -> int:
        """Start the queued loads and return their counter index, -1 without any."""
        index = int(super().start_layer_wise_loading())
        if index >= 0:
            self._loading[index] = self._planned
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        """Wait for a batch of loads; False when one of its objects could not be read."""
        landed = bool(super().finish_layer_wise_loading(counter_index))
        for pool, objects, size in self._loading.pop(counter_index, []):
            if landed:
                self.metrics.read(pool, objects=objects, size=size)
        return landed

    def _run_offload(self, tasks: Any) -> bool:
        stored = bool(super()._run_offload(tasks))
        if stored:
            for pool, objects, size in self._storing:
                self.metrics.stored(pool, objects=objects, size=size)
        return stored


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


def _data_types(entry: Any) -> str:
    return ",".join(sorted({str(buffer.dtype) for buffer in entry.get_hybrid_pool_buffer()}))
