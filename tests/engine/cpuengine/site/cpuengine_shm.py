"""Host cache pools moved into UMBP shared memory before SGLang's UMBP linker registers them.

NOT genuine: on a GPU the pools are device memory that the store opens by IPC; a store without a GPU accepts only
buffers of UMBP's own shared-memory allocator. Same tensors, same shapes, same code above.
"""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

_buffers: list[Any] = []  # owners of the memory below the tensors; they live as long as the process


def _shared_copy(tensor: Any) -> Any:
    import mori.umbp as umbp
    import torch

    allocator = umbp.UMBPHostMemAllocator()
    handle = allocator.alloc(max(tensor.nbytes, 4096), umbp.UMBPHostBufferBacking.AnonymousShm)
    _buffers.append((allocator, handle))
    memory = (ctypes.c_uint8 * tensor.nbytes).from_address(handle.ptr)
    shared = torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)
    shared.copy_(tensor)
    return shared


def _move(kvcache: Any, params: Any) -> None:
    import torch

    pool = kvcache.full_kv_pool
    pool.kv_buffer = [_shared_copy(buffer) for buffer in pool.kv_buffer]
    pool.data_ptrs = torch.tensor([buffer.data_ptr() for buffer in pool.kv_buffer], dtype=torch.uint64)
    states = params.req_to_token_pool.mamba_pool.mamba_cache
    object.__setattr__(states, "temporal", _shared_copy(states.temporal))
    object.__setattr__(states, "conv", [_shared_copy(state) for state in states.conv])


def install(module: ModuleType) -> None:
    """Wrap the function with which SGLang's UMBP linker collects the pools it will register."""
    collect = module.resolve_hybrid_device_pool_group

    def collect_shared(*, kvcache: Any, page_size: int, params: Any, components: Any) -> Any:
        if os.environ.get("CPUENGINE_SHARED_POOLS", "1") == "1" and hasattr(kvcache, "full_kv_pool"):
            _move(kvcache, params)
        return collect(kvcache=kvcache, page_size=page_size, params=params, components=components)

    module.resolve_hybrid_device_pool_group = collect_shared
