"""Bytes that change in the memory of the real store, as a broken module or a stray write would change them."""

import ctypes
from pathlib import Path
from typing import Any

from umbra_linker.connection import epoch_at

ENDS = {"kv": "_kv", "draft": "_draft", "mamba": "_temporal"}
"""Of the names of the objects of each pool."""
MARK_BYTES = 64
"""By which an object is found in the store's memory: those of one rank begin differently."""


class Poisoner:
    """Passes every call on to the real client, and changes bytes of the server's memory."""

    def __init__(self, client: Any, address: str, pool: str | None) -> None:
        """``pool`` is the one whose objects change as soon as they were put; None for none."""
        self._client = client
        epoch = epoch_at(address)
        assert epoch is not None
        self._pid = epoch.pid
        self._pool = pool
        self._marks: dict[str, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_put_ranges_from_ptr(self, keys: Any, sizes: Any, pointers: Any, *ranges: Any) -> Any:
        answers = self._client.batch_put_ranges_from_ptr(keys, sizes, pointers, *ranges)
        marks = {key: ctypes.string_at(row[0], MARK_BYTES) for key, row in zip(keys, pointers, strict=True)}
        self._marks |= marks
        if self._pool is not None:
            self._change([mark for key, mark in marks.items() if key.endswith(ENDS[self._pool])])
        return answers

    def change(self, pool: str) -> int:
        """Change one byte of every object of a pool; return how many there were."""
        marks = [mark for key, mark in self._marks.items() if key.endswith(ENDS[pool])]
        self._change(marks)
        return len(marks)

    def _change(self, marks: list[bytes]) -> None:
        if not marks:
            return
        left = set(marks)
        process = Path(f"/proc/{self._pid}")
        with (process / "mem").open("r+b", buffering=0) as memory:
            for line in (process / "maps").read_text().splitlines():
                place, rights, _, _, inode, *_ = line.split()
                begin, end = (int(number, 16) for number in place.split("-"))
                # The tier is anonymous memory; what has a file is the ranks' own, seen by the store.
                if not rights.startswith("rw") or inode != "0" or end - begin < 1 << 20:
                    continue
                memory.seek(begin)
                content = memory.read(end - begin)
                for mark in marks:
                    at = content.find(mark)
                    if at >= 0:
                        memory.seek(begin + at)
                        memory.write(bytes([mark[0] ^ 1]))
                        left.discard(mark)
        assert not left, f"{len(left)} of {len(marks)} objects are not in the store's memory"
