"""Negative control: a linker that restores zeros. If outputs did not change, comparing them would prove nothing."""

import ctypes
from typing import Any

from umbra_linker.linker import UmbraLinker


class _ZeroingClient:
    """Passes every call on to the real client, then overwrites what a read delivered."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_get_ranges_into_ptr(self, keys: Any, pointers: Any, sizes: Any, offsets: Any) -> Any:
        results = self._client.batch_get_ranges_into_ptr(keys, pointers, sizes, offsets)
        for row, lengths in zip(pointers, sizes, strict=True):
            for pointer, length in zip(row, lengths, strict=True):
                ctypes.memset(pointer, 0, length)
        return results


class ZeroingLinker(UmbraLinker):
    """Umbra's linker over a client that delivers zeros."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.store.client = _ZeroingClient(self.store.client)
