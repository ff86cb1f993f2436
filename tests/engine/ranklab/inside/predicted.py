"""What the linker puts and touches for a short trace, as the numbers of the trace's pages."""

from __future__ import annotations

import re
import time
from types import SimpleNamespace
from typing import Any

from player import Player
from policies import seated
from rank import CHUNK, PAGE, Rank

SECONDS = 10
"""Between two requests."""
POOLS = {"kv": "kv", "temporal": "checkpoints"}
"""The last word of an object's name, and what it is; a page has one object of each."""


def served(rank: Rank, address: str, requests: list[Any], checkpoints: str, store_bytes: int) -> dict[str, Any]:
    """Serve requests, each a prompt and an answer in page numbers; the device holds everything.

    Returns:
        The bytes of a page and of a checkpoint in the store, and the numbers of the pages that were put and touched,
        of the KV and of the checkpoints at their ends.
    """
    settings = {"checkpoints": checkpoints, "storeBytes": store_bytes, "rewriteMissing": "Disabled"}
    player, recorder = seated(rank, address, settings, pages=400, states=200)
    clock = [0]
    time.monotonic_ns = lambda: clock[0] * 1_000_000_000
    touched: list[str] = []
    touch = player.linker.store.touch

    def noted(keys: Any, *arguments: Any) -> Any:
        touched.extend(keys)
        return touch(keys, *arguments)

    player.linker.store.touch = noted
    numbers: dict[str, int] = {}
    for count, (prompt, answer) in enumerate(requests):
        clock[0] = 1000 + count * SECONDS
        tokens = [page * PAGE + at for page in (*prompt, *answer) for at in range(PAGE)]
        asked = len(prompt) * PAGE
        player.step()
        request = player.match(tokens[:asked])
        begin = request.device
        player.abort(request)
        with player.cache.linker.inserting(SimpleNamespace(rid=f"s{count}", origin_input_ids=tokens[:asked])):
            for end in (*range(begin + CHUNK, asked, CHUNK), asked, len(tokens)):
                node = player.compute(tokens[:end])
        numbers |= zip(player.cache.linker._path(node), (*prompt, *answer), strict=True)
        player.settle()
        _until_answered(player)
    sizes = player.linker._page_bytes()
    kv = sum(size for pool, size in sizes.items() if pool != "mamba")
    return {
        "sizes": [kv, sizes["mamba"]],
        "put": _by_kind(recorder.keys, numbers),
        "touched": _by_kind(touched, numbers),
    }


def _until_answered(player: Player) -> None:
    end = time.monotonic() + 10
    while player.cache.linker._hinted:
        assert time.monotonic() < end
        player.step()
        time.sleep(0.001)


def _by_kind(keys: list[str], numbers: dict[str, int]) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {kind: set() for kind in POOLS.values()}
    for key in keys:
        kind = POOLS.get(key.rsplit("_", 1)[1])
        page = re.search("[0-9a-f]{64}", key)
        if kind and page:
            found[kind].add(numbers[page[0]])
    return {kind: sorted(pages) for kind, pages in found.items()}
