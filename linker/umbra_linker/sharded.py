"""Device pools under decode context parallelism, which SGLang's own pool group refuses. Adapter to SGLang.

See ``decode_context`` for what is shared. Addresses within a pool stay SGLang's: only which rows a page of the tree has
is ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache import linker_pool_assembler as assembler
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _stage_local_layer_mapping
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, HybridLinearKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from .decode_context import CacheShape, require_shardable


def shape_of(params: Any, components: Any, chunk: int | None) -> CacheShape:
    """Describe the cache that SGLang is building: its ``CacheInitParams`` and the components of its tree."""
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    full = getattr(pool, "full_kv_pool", pool)
    return CacheShape(
        page=params.page_size,
        rows=full.page_size,
        chunk=chunk,
        sparse=isinstance(full, DSATokenToKVPool),
        windows=ComponentType.SWA in components,
        draft=bool(params.sidecar_draft_device_pools or params.mtp_draft_device_pools),
        linear=type(pool) is HybridLinearKVPool and type(full) is MLATokenToKVPool,
    )


class ShardedPool(assembler.DevicePoolEntry):  # type: ignore[misc]  # sglang is untyped
    """One rank's part of a pool that several ranks share token by token; asked with widened locations."""

    def __init__(self, *, ways: int, page_size: int, **fields: Any) -> None:
        """Take what SGLang's entry takes; ``page_size`` is the tree's, of which this rank holds one of ``ways``."""
        super().__init__(page_size=page_size // ways, rows_are_pages=False, **fields)
        self._ways = ways
        self.page_size = page_size
        self._page_offsets = torch.arange(page_size)

    def _rows(self, indices: torch.Tensor) -> list[int]:
        """Return the first row of each page; raise ``ValueError`` where the locations are not whole pages."""
        locations = indices.detach().to(device="cpu", dtype=torch.int64).flatten()
        if locations.numel() % self.page_size:
            raise ValueError(f"pool {self.name}: {locations.numel()} locations are no whole pages of {self.page_size}")
        pages = locations.reshape(-1, self.page_size)
        first = pages[:, 0]
        if torch.any(first % self.page_size) or not torch.equal(pages, first[:, None] + self._page_offsets):
            raise ValueError(f"pool {self.name}: a page's locations are not one after the other from its beginning on")
        rows: list[int] = (first // self._ways).tolist()
        if rows and not 0 <= min(rows) <= max(rows) <= self._row_count - self._row_span:
            raise ValueError(f"pool {self.name}: rows {min(rows)} to {max(rows)} are not in its {self._row_count}")
        return rows


def _pool_group(kvcache: Any, params: Any, page_size: int, ways: int) -> Any:
    """Return what SGLang's ``_build_mamba_device_pool_group`` would, had it no DCP gate."""
    full = kvcache.full_kv_pool
    kv = ShardedPool(
        ways=ways,
        name=PoolName.KV,
        indices_from_pool=PoolName.KV,
        device_pool=full,
        components=[full.kv_buffer],
        layer_mapping=_stage_local_layer_mapping(kvcache.full_attention_layer_id_mapping, kvcache.start_layer),
        page_size=page_size,
    )
    entries = [kv, assembler._mamba_device_pool_entry(params.req_to_token_pool, kvcache.start_layer)]
    layers = 1 + max(layer for entry in entries for layer in entry.layer_mapping)
    return assembler.DevicePoolGroup(entries, layers, page_size)


@contextmanager
def sharded_pools(ways: int, shape: CacheShape) -> Iterator[None]:
    """Let SGLang's linker build its pools sharded ``ways`` ways meanwhile; with 1, as it does by itself.

    Raises:
        LinkerRefusedError: where a cache of this shape cannot be sharded.
    """
    if ways == 1:
        yield
        return
    require_shardable(shape, ways)
    own = assembler._build_mamba_device_pool_group
    assembler._build_mamba_device_pool_group = lambda kvcache, params, page: _pool_group(kvcache, params, page, ways)
    try:
        yield
    finally:
        assembler._build_mamba_device_pool_group = own
