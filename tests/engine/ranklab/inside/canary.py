"""The canary over the real tree and store: bytes that change in the store's memory behind everybody's back."""

from __future__ import annotations

import ctypes
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from player import Player, linker_config
from rank import PAGE, Rank
from recorder import Recorder

from umbra_linker.connection import epoch_at

ENDS = {"kv": "_kv", "draft": "_draft", "mamba": "_temporal"}
"""Of the names of the objects of each pool."""
MARK_BYTES = 64
"""By which an object is found in the store's memory: no two of a player's begin alike."""


def watched(rank: Rank, address: str, pages: list[int], poison: dict[str, Any] | None = None) -> Any:
    """Compute prompts of so many ``pages``; return what the canary found by pool and result, and its CPU time.

    ``poison`` names a ``rank`` and a ``pool``, each of whose objects has one byte changed as soon as it was put.
    """
    player = _seated(rank, address, pages)
    found = _meter(player)
    if poison is not None and poison["rank"] == rank.rank:
        player.linker.store.client = _Poisoner(player.linker.store.client, address, poison["pool"])
    for prompt in _prompts(pages):
        player.compute(prompt)
        player.settle()
    return found


def poisoned_later(rank: Rank, address: str, pages: list[int]) -> Any:
    """Store prompts and compare them; change one byte of every object of KV; let the second look come."""
    player = _seated(rank, address, [*pages, 1])
    found = _meter(player)
    poisoner = player.linker.store.client = _Poisoner(player.linker.store.client, address, None)
    first, last = _prompts(pages), _prompts([*pages, 1])[-1]
    for prompt in first:
        player.compute(prompt)
        player.settle()
    before = {pool: dict(results) for pool, results in found.items()}
    changed = poisoner.change("kv")
    canary = player.linker._offloads._canary
    canary._clock = lambda: time.monotonic() + 3600
    for _ in range(8):
        # Each batch has one second look.
        last = [token + PAGE for token in last]
        player.compute(last)
        player.settle()
        player.forget()
    return {"before": before, "after": found, "changed": changed}


def computed_again(rank: Rank, address: str) -> Any:
    """Store a prompt, lose it from the device, and compute it again with other bytes: the store keeps the first."""
    player = _seated(rank, address, [4])
    (prompt,) = _prompts([4])
    recorder = Recorder.over(player)
    player.compute(prompt)
    player.settle()
    player.forget()
    found = _meter(player)
    written = len(recorder.put)
    fill = Player._fill

    def fill_otherwise(seated: Player, tokens: list[int], begin: int, slots: Any, state: Any) -> None:
        fill(seated, [token + 1 for token in tokens], begin, slots, state)

    Player._fill = fill_otherwise  # type: ignore[method-assign]
    player.compute(prompt)
    player.settle()
    return {"found": found, "put again": len(recorder.put) - written}


def _seated(rank: Rank, address: str, pages: list[int]) -> Player:
    return Player.seated(rank, linker_config(address), tokens=(sum(pages) + 2) * PAGE, states=len(pages) + 8)


def _prompts(pages: list[int]) -> list[list[int]]:
    return [[number * 1_000_000 + token for token in range(count * PAGE)] for number, count in enumerate(pages)]


def _meter(player: Player) -> dict[str, dict[str, int]]:
    """Count from now on what the canary finds, by pool and result."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    metrics = player.linker.metrics
    tell = metrics.canary

    def counted(pool: str, result: Any) -> None:
        tell(pool, result)
        found[pool][str(result)] += 1

    metrics.canary = counted
    return found


class _Poisoner:
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
