"""One page from the tree to the store and back, on several ranks."""

from __future__ import annotations

from typing import Any

import torch
from player import Player, linker_config
from rank import PAGE, Rank
from recorder import Recorder


def stored_and_restored(
    rank: Rank, address: str, pages: list[int], settings: dict[str, Any] | None = None, ways: int = 1
) -> Any:
    """Compute prompts of so many ``pages`` one after the other, empty the device, and restore each prompt."""
    page = PAGE * ways
    player = Player.seated(
        rank, linker_config(address, settings), tokens=(sum(pages) + 2) * page, states=len(pages) + 8, ways=ways
    )
    prompts = [[number * 1_000_000 + token for token in range(count * page)] for number, count in enumerate(pages)]
    recorder = Recorder.over(player)
    for prompt in prompts:
        player.compute(prompt)
    player.settle()
    player.forget()
    restored, asked = [], []
    for prompt in prompts:
        # What is asked while something is stored is the canary's.
        recorder.asked.clear()
        request = player.restore(prompt)
        asked += recorder.asked
        restored.append({"loaded": request.loaded, "landed": request.landed, "wrong": player.differences(request)[:5]})
        player.keep(request)
    player.cache.sanity_check()
    return {
        "restored": restored,
        "wrote": dict(recorder.put),
        "asked": asked,
        "leaked": player.leaked(),
        "core": type(player.cache.tree_core).__name__,
    }


def oracle_notices(rank: Rank, address: str) -> list[list[str]]:
    """Restore two pages, then change one byte of each pool in turn; return what the oracle says each time."""
    player = Player.seated(rank, linker_config(address), tokens=4 * PAGE, states=8)
    prompt = list(range(2 * PAGE))
    player.compute(prompt)
    player.settle()
    player.forget()
    request = player.restore(prompt)
    last = int(request.own[-1])
    states = player.pools.requests.mamba_pool.mamba_cache
    said = [player.differences(request)]
    for buffer in (
        player.pools.kv.full_kv_pool.kv_buffer[-1][last],
        player.pools.draft.v_buffer[0][last],
        states.temporal[-1, int(request.state)],
        states.conv[0][0, int(request.state)],
    ):
        byte = buffer.reshape(-1).view(torch.uint8)[-1:]
        byte ^= 1
        said.append(player.differences(request))
        byte ^= 1
    return said
