"""One rank of a group: gloo, SGLang's configuration and plugins, device pools of CPU tensors, the real cache.

NOT genuine: no model and no scheduler. A test plays the scheduler's part and calls the cache as SGLang's does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

PAGE = 64
CHUNK = 2 * PAGE
"""Tokens that are computed between two checkpoints of a prompt."""


@dataclass(frozen=True, slots=True)
class Rank:
    """This process among its peers."""

    rank: int
    size: int
    group: Any
    """gloo group of all ranks, None for one rank."""

    @classmethod
    @contextmanager
    def join(cls, rank: int, size: int, store: str) -> Iterator[Rank]:
        """Join the group that meets in the file ``store``, and load SGLang's plugins as an engine does."""
        from sglang.srt.plugins import load_plugins

        group = None
        if size > 1:
            torch.distributed.init_process_group(
                "gloo", store=torch.distributed.FileStore(store, size), rank=rank, world_size=size
            )
            group = torch.distributed.group.WORLD
        load_plugins()
        yield cls(rank, size, group)


@dataclass(slots=True)
class Pools:
    """The device pools of a KDA and MLA model."""

    requests: Any
    kv: Any
    allocator: Any
    draft: Any = None
    """KV of a draft model, None without one."""


def publish(
    rank: Rank, linker: dict[str, Any] | None, backend: str = "dynamic", *, ways: int = 1, chunk: int = CHUNK,
    draft: str | None = None,
) -> Any:  # fmt: skip
    """Publish SGLang's configuration of this process, as its scheduler does; return the server arguments.

    Args:
        rank: this process.
        linker: SGLang's description of one, None without.
        backend: of the linker.
        ways: ranks that share the tokens of a prompt (decode context parallelism).
        chunk: tokens that are computed between two checkpoints of a prompt.
        draft: path of a draft model, None without one.
    """
    from sglang.srt.runtime_context import get_parallel, get_spec
    from sglang.srt.runtime_context import publish as publish_arguments
    from sglang.srt.server_args import prepare_server_args

    argv = ["--model-path", os.environ["RANKLAB_MODEL"], "--device", "cpu", "--page-size", str(PAGE)]
    argv += ["--attention-backend", "triton", "--skip-tokenizer-init", "--load-format", "dummy"]
    argv += ["--chunked-prefill-size", str(chunk), "--dcp-size", str(ways)]
    argv += ["--max-mamba-cache-size", "32", "--mamba-radix-cache-strategy", "extra_buffer"]
    argv += ["--tp-size", str(rank.size)]
    if linker is not None:
        argv += ["--enable-unified-cache-external-linker", "--unified-cache-external-linker-backend", backend]
        argv += ["--unified-cache-external-linker-config", json.dumps(linker)]
    arguments = prepare_server_args(argv)
    publish_arguments(arguments, role="scheduler")
    shared = {"dcp_rank": rank.rank % ways, "attn_dcp_rank": rank.rank % ways} if ways > 1 else {}
    get_parallel().override_permanently(tp_rank=rank.rank, pp_rank=0, **shared)
    # As an argument it would be read from the disk.
    get_spec()._set("speculative_draft_model_path", draft)
    return arguments


def make_pools(
    rank: Rank, *, tokens: int, states: int, heads: int = 8, layers: int = 4, draft: bool = False, ways: int = 1
) -> Pools:
    """Make pools for ``tokens`` tokens and ``states`` checkpoints; every fourth of ``layers`` layers is MLA.

    A rank has one of ``ways`` tokens, and the allocator counts all of them, as SGLang's configurator does it.
    """
    from sglang.srt.configs.mamba_utils import KimiLinearCacheParams, KimiLinearStateShape
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool

    full = list(range(3, layers, 4))
    linear = [layer for layer in range(layers) if layer not in full]
    shape = KimiLinearStateShape.create(tp_world_size=rank.size, num_heads=heads, head_dim=32, conv_kernel_size=4)
    requests = HybridReqToTokenPool(
        size=16, mamba_size=states, mamba_spec_state_size=16, max_context_len=tokens, device="cpu",
        enable_memory_saver=False, cache_params=KimiLinearCacheParams(shape=shape, layers=linear),
        mamba_layer_ids=linear, enable_mamba_extra_buffer=True, enable_overlap_schedule=True,
    )  # fmt: skip
    kv = HybridLinearKVPool(
        size=tokens // ways, dtype=torch.bfloat16, page_size=PAGE, head_num=heads, head_dim=32,
        full_attention_layer_ids=full, device="cpu", mamba_pool=requests.mamba_pool, use_mla=True,
        kv_lora_rank=256, qk_rope_head_dim=32,
    )  # fmt: skip
    allocator = PagedTokenToKVPoolAllocator(
        size=tokens, page_size=PAGE * ways, dtype=torch.bfloat16, device="cpu", kvcache=kv, need_sort=False
    )
    return Pools(requests, kv, allocator, _draft_pool(rank, tokens, heads) if draft else None)


def _draft_pool(rank: Rank, tokens: int, heads: int) -> Any:
    """One layer of MHA KV, sharded over the heads, where the store can reach it (see cpuengine_shm)."""
    from cpuengine_shm import _shared_copy
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    pool = MHATokenToKVPool(
        size=tokens, page_size=PAGE, dtype=torch.bfloat16, head_num=heads // rank.size, head_dim=32, layer_num=1,
        device="cpu", enable_memory_saver=False,
    )  # fmt: skip
    pool.k_buffer = [_shared_copy(buffer) for buffer in pool.k_buffer]
    pool.v_buffer = [_shared_copy(buffer) for buffer in pool.v_buffer]
    return pool


def cache_parameters(rank: Rank, pools: Pools) -> Any:
    """Return what SGLang's scheduler would say about the cache."""
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

    return CacheInitParams(
        disable=False, req_to_token_pool=pools.requests, token_to_kv_pool_allocator=pools.allocator,
        page_size=pools.allocator.page_size,
        tp_cache_group=rank.group, attn_tp_cache_group=rank.group, enable_mamba_extra_buffer=True,
        chunked_prefill_size=8192, sidecar_draft_device_pools=() if pools.draft is None else (pools.draft,),
    )  # fmt: skip


def make_cache(rank: Rank, pools: Pools, arguments: Any) -> Any:
    """Build the tree cache through SGLang's own factory."""
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext, create_tree_cache

    worker = SimpleNamespace(
        model_runner=SimpleNamespace(forward_stream=None), register_hicache_layer_transfer_counter=lambda counter: None
    )
    return create_tree_cache(
        TreeCacheBuildContext(
            server_args=arguments, params=cache_parameters(rank, pools), is_hybrid_swa=False, is_hybrid_ssm=True,
            enable_hierarchical_cache=False, disable_radix_cache=False, tp_worker=worker, model_config=None,
            tp_size=rank.size, tp_rank=rank.rank, tp_group=rank.group,
        )
    )  # fmt: skip
