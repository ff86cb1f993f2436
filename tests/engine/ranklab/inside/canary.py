"""The canary over the real tree and store: bytes that change in the store's memory behind everybody's back."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from player import Player, linker_config
from rank import PAGE, Rank
from recorder import Recorder

from poisoner import Poisoner
from umbra_linker import canary


def watched(rank: Rank, address: str, pages: list[int], poison: dict[str, Any] | None = None, ways: int = 1) -> Any:
    """Compute prompts of so many ``pages``; return what the canary found by pool and result, and its CPU time.

    ``poison`` names a ``rank`` and a ``pool``, each of whose objects has one byte changed as soon as it was put.
    With ``ways`` above 1 so many ranks share the tokens of a page.
    """
    player = _seated(rank, address, pages, ways)
    found = _meter(player)
    if poison is not None and poison["rank"] == rank.rank:
        player.linker.store.client = Poisoner(player.linker.store.client, address, poison["pool"])
    for prompt in _prompts(pages, ways):
        player.compute(prompt)
        player.settle()
    return found


def poisoned_later(rank: Rank, address: str, pages: list[int]) -> Any:
    """Store prompts and compare them; change one byte of every object of KV; let the second look come."""
    player = _seated(rank, address, [*pages, 1])
    found = _meter(player)
    poisoner = player.linker.store.client = Poisoner(player.linker.store.client, address, None)
    first, last = _prompts(pages), _prompts([*pages, 1])[-1]
    for prompt in first:
        player.compute(prompt)
        player.settle()
    before = {pool: dict(results) for pool, results in found.items()}
    changed = poisoner.change("kv")
    player.linker._offloads._canary._clock = lambda: time.monotonic() + 3600
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


def _seated(rank: Rank, address: str, pages: list[int], ways: int = 1) -> Player:
    # These stores have room for all that is looked at, and every look counts.
    canary.MOST_LEASED = 64
    return Player.seated(
        rank, linker_config(address), tokens=(sum(pages) + 2) * PAGE * ways, states=len(pages) + 8, ways=ways
    )


def _prompts(pages: list[int], ways: int = 1) -> list[list[int]]:
    return [[number * 1_000_000 + token for token in range(count * PAGE * ways)] for number, count in enumerate(pages)]


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
