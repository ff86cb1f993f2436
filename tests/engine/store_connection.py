"""Runs inside the engine's Python: a client of a running store, with a buffer that the store may read and write."""

from typing import Any

import mori.umbp as umbp
from mori.cpp import UMBPClient


def connect(address: str, size: int) -> tuple[Any, Any, bool]:
    """Return a client, its shared buffer of `size` bytes, and whether the store took the buffer."""
    process = umbp.UMBPStandaloneProcessConfig()
    process.address, process.auto_start, process.startup_timeout_ms = address, False, 5000
    config = umbp.UMBPConfig()
    config.standalone_process = process
    client = UMBPClient(config)
    buffer = umbp.UMBPHostMemAllocator().alloc(size, umbp.UMBPHostBufferBacking.AnonymousShm)
    return client, buffer, client.register_memory(buffer.ptr, buffer.mapped_size)
