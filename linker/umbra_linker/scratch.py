"""The memory that the canary compares. Adapter to torch and mori."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from mori import umbp

logger = logging.getLogger(__name__)


class Scratch:
    """Host memory that a store takes whose process is another one, and the device pools of this rank."""

    def __init__(self, size: int, buffers: Iterable[Any]) -> None:
        """Take ``size`` bytes, and the tensors that the pools are made of."""
        # The memory lives as long as both.
        self._allocator = umbp.UMBPHostMemAllocator()
        self._memory = self._allocator.alloc(size, umbp.UMBPHostBufferBacking.AnonymousShm)
        self._storages = {int(each.untyped_storage().data_ptr()): each.untyped_storage() for each in buffers}
        self._registered = False
        self._streams: dict[Any, Any] = {}

    @property
    def scratch(self) -> int | None:
        """Address of the memory, None while no store takes it."""
        return int(self._memory.ptr) if self._registered else None

    def register(self, client: Any) -> None:
        """Let a store write here, too. Without it nothing is compared, and all else goes on."""
        self._registered = bool(self._memory) and bool(
            client.register_memory(self._memory.ptr, self._memory.mapped_size)
        )
        if not self._registered:
            logger.warning("the store does not take the canary's memory: what it stores is not compared")

    def written(self, size: int) -> bytes:
        """Return the first bytes of the memory."""
        return ctypes.string_at(self._memory.ptr, size)

    def device(self, pointers: list[int], lengths: list[int]) -> bytes:
        """Return ranges of the pools, one after the other.

        Raises:
            ValueError: for a range that is in no pool.
        """
        return b"".join(self._copy(*each) for each in zip(pointers, lengths, strict=True))

    def _copy(self, pointer: int, length: int) -> bytes:
        for begin, storage in self._storages.items():
            if begin <= pointer and pointer + length <= begin + storage.nbytes():
                view = torch.empty(0, dtype=torch.uint8, device=storage.device)
                view.set_(storage, pointer - begin, (length,))
                # A copy on the device's main stream would wait for the forward.
                with self._stream(storage.device):
                    copied: bytes = view.cpu().numpy().tobytes()
                return copied
        raise ValueError(f"{length} bytes at {pointer:#x} are in no pool of this rank")

    def _stream(self, device: Any) -> Any:
        if device.type == "cpu":
            return nullcontext()
        module = torch.get_device_module(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device=device)
        return module.stream(self._streams[device])
