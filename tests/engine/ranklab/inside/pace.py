"""How much a linker moves and how fast, on the real tree; Umbra's and SGLang's own play the same scenes."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from player import Player, linker_config, stock_config
from rank import CHUNK, PAGE, Rank
from recorder import Recorder

LOOKUPS = 20
"""Of each prompt; each asks the store."""
WARMING = 3
"""Prompts of each process that are not counted: they meet threads and memory that are used for the first time."""
STEPS_A_NODE = 10
"""Scheduler steps between two nodes that are to be stored."""
MIB = 1 << 20


def seated(rank: Rank, address: str, stock: bool, *, pages: int, settings: dict[str, Any] | None = None) -> Player:
    """Return a player with SGLang's own linker or Umbra's, and room for so many pages."""
    config = stock_config(address) if stock else linker_config(address, settings)
    return Player.seated(rank, config, tokens=pages * PAGE, states=24)


def prompt(number: int, pages: int) -> list[int]:
    """Return a prompt that shares no page with one of another number."""
    return [number * 1_000_000 + token for token in range(pages * PAGE)]


def timed_lookups(player: Player) -> list[float]:
    """Return a list that gets the milliseconds of each lookup from now on, once it has ended."""
    waits, lookup = [], player.linker.lookup

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        answer = lookup(*arguments)
        waits.append((time.perf_counter() - begin) * 1e3)
        return answer

    player.linker.lookup = timed
    return waits


def written(rank: Rank, address: str, stock: bool, pages: int, answer: int) -> dict[str, int]:
    """Serve a prompt chunk by chunk, and an answer, all in pages; return the bytes that this rank put, by pool."""
    player = seated(rank, address, stock, pages=pages + answer + 2)
    recorder = Recorder.over(player)
    tokens = prompt(1, pages + answer)
    request = SimpleNamespace(rid="r", origin_input_ids=tokens[: pages * PAGE])
    for end in (*range(CHUNK, pages * PAGE, CHUNK), pages * PAGE, len(tokens)):
        with contextlib.nullcontext() if stock else player.cache.linker.inserting(request):
            player.compute(tokens[:end])
    player.settle()
    pools: dict[str, int] = {}
    for key, size in recorder.put:
        pool = key.rsplit("_", 1)[1]
        pools[pool] = pools.get(pool, 0) + size
    return pools


def moved(rank: Rank, address: str, stock: bool, number: int, prompts: int, pages: int, steps: int) -> dict[str, Any]:
    """Store some prompts, look each up, restore it, and take scheduler steps in which small nodes are stored.

    Returns:
        The bytes that this rank put for the prompts; seconds of each offload and load; milliseconds that the scheduler
        waited for each lookup; microseconds of its CPU for each step.
    """
    # Checkpoints as SGLang stores them: what is compared is how, not how much.
    player = seated(rank, address, stock, pages=prompts * pages + steps + 4, settings={"checkpoints": "All"})
    recorder = Recorder.over(player)
    texts = [prompt(number * 100 + one, pages) for one in range(prompts)]
    waits = timed_lookups(player)
    offloads = [_offload_seconds(player, text) for text in texts]
    size = sum(size for _, size in recorder.put)
    player.forget()
    loads = [_load_seconds(player, text) for text in texts]
    return {
        "bytes": size,
        "offloads": offloads[WARMING:],
        "loads": loads[WARMING:],
        "lookups": waits[WARMING * LOOKUPS :],
        "steps": _step_microseconds(player, number, steps),
    }


def _offload_seconds(player: Player, tokens: list[int]) -> float:
    """Return the seconds from when the tree offers a prompt until all ranks know that it is stored."""
    begun: list[float] = []
    offload = player.linker.offload

    def offered(*arguments: Any, **options: Any) -> Any:
        # A rank that made up its bytes sooner would wait for the others, and not for the store.
        if player.rank.group is not None:
            torch.distributed.barrier(player.rank.group)
        begun.append(time.perf_counter())
        return offload(*arguments, **options)

    player.linker.offload = offered
    player.compute(tokens)
    player.linker.offload = offload
    while player.cache.linker.pending_offloads:
        player.step()
        time.sleep(0.0002)
    return time.perf_counter() - begun[0]


def _load_seconds(player: Player, tokens: list[int]) -> float:
    """Look a prompt up several times and restore it once; return the seconds from the load's start to its end."""
    for _ in range(LOOKUPS - 1):
        player.abort(player.match(tokens))
    request = player.match(tokens)
    begin = time.perf_counter()
    player.queue_load(request)
    player.forward([request])
    seconds = time.perf_counter() - begin
    if request.loaded != len(tokens) or not request.landed:
        raise RuntimeError(f"{request.loaded} of {len(tokens)} tokens came back")
    player.abort(request)
    return seconds


def _step_microseconds(player: Player, number: int, steps: int) -> list[float]:
    taken = []
    for step in range(steps):
        if step % STEPS_A_NODE == 0:
            player.compute(prompt(number * 100 + 99, 1) if not step else prompt(number * 100_000 + step, 1))
        begin = time.thread_time_ns()
        player.step()
        taken.append((time.thread_time_ns() - begin) / 1e3)
    player.settle()
    return taken


def held(rank: Rank, address: str, tokens: int, pages: int) -> dict[str, float]:
    """Store and look up so many tokens in prompts of ``pages`` pages; return the MiB that the linker's code keeps."""
    player = seated(rank, address, False, pages=4 * pages)
    # What the pages hold does not matter here, and making it up would take minutes.
    Player._fill = lambda *unused: None  # type: ignore[method-assign]
    tracemalloc.start()
    for number in range(tokens // (pages * PAGE)):
        text = prompt(number, pages)
        player.compute(text)
        player.abort(player.match(text))
        player.settle()
    code = f"{Path(__import__('umbra_linker').__file__).parent}/*"
    found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, code)])
    return {"mib": sum(one.size for one in found.statistics("filename")) / MIB}
