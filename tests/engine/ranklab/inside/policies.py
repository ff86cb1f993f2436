"""The write policy on the real tree and store, with clocks that differ between the ranks."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from faults import send
from player import Player, linker_config
from rank import CHUNK, PAGE, Rank
from recorder import Recorder

MILLION = 1_000_000


def seated(
    rank: Rank, address: str, settings: dict[str, Any], *, pages: int = 40, states: int = 16, ways: int = 1
) -> tuple[Player, Recorder]:
    """Return a player and what its linker asks of the store."""
    player = Player.seated(
        rank, linker_config(address, settings), tokens=pages * PAGE * ways, states=states, layers=4, ways=ways
    )
    return player, Recorder.over(player)


def serve(player: Player, number: int, prompt: int, answer: int = 0) -> None:
    """Compute a prompt chunk by chunk, and then some pages of an answer; all in pages."""
    page, chunk = player.page, CHUNK * player.ways
    tokens = [number * 100_000 + token for token in range((prompt + answer) * page)]
    ends = [*range(chunk, prompt * page, chunk), prompt * page]
    if answer:
        ends.append((prompt + answer) * page)
    request = SimpleNamespace(rid=f"s{number}", origin_input_ids=tokens[: prompt * page])
    for end in ends:
        with player.cache.linker.inserting(request):
            player.compute(tokens[:end])


def stored(rank: Rank, address: str, checkpoints: str, store_bytes: int = 0, ways: int = 1) -> dict[str, Any]:
    """Serve a prompt of nine pages with an answer of two; return how many pages and checkpoints were put."""
    player, recorder = seated(rank, address, {"checkpoints": checkpoints, "storeBytes": store_bytes}, ways=ways)
    player.step()
    serve(player, 1, prompt=9, answer=2)
    player.settle()
    order = [key.rsplit("_", 1)[1] for key in recorder.keys]
    player.forget()
    found = {}
    for pages in (2, 4, 6, 8, 9, 11):
        request = player.match([100_000 + token for token in range(pages * player.page)])
        found[str(pages)] = request.loaded // player.page
        player.abort(request)
    return {"kv": order.count("kv"), "checkpoints": order.count("temporal"), "found": found}


def order_of_puts(rank: Rank, address: str) -> bool:
    """Store one node; return whether its checkpoint was put first and its pages leaf first."""
    player, recorder = seated(rank, address, {"rpcParallelism": 1})
    node = player.compute(list(range(7 * PAGE)))
    player.settle()
    hashes = [*player.cache.get_prefix_hash_values(node), *player.cache.tree_core.get_hash_values(node)]
    leaf = recorder.keys[0]
    kv = [key for key in recorder.keys if key.endswith("_kv")]
    return (
        hashes[-1] in leaf
        and leaf.endswith("_temporal")
        and all(page in key for page, key in zip(reversed(hashes), kv, strict=True))
    )


def agreement(rank: Rank, address: str, seed: int, skew_ms: int) -> dict[str, Any]:
    """Serve random prompts on ranks whose clocks differ and whose pauses are their own; return what was decided.

    The clocks run 2,000 times as fast, so that minutes pass.
    """
    real, own, shared = time.monotonic_ns, random.Random(f"{seed}-{rank.rank}"), random.Random(seed)
    time.monotonic_ns = lambda: real() * 2000 + rank.rank * skew_ms * MILLION
    player, recorder = seated(rank, address, {"checkpoints": "Adaptive", "storeBytes": 24 << 20})
    times: list[int] = []
    for number in range(40):
        serve(player, seed * 1000 + number, prompt=shared.randint(1, 12), answer=shared.randint(0, 2))
        time.sleep(own.random() * 0.01)
        player.step()
        times.append(player.linker.writing.now_ms)
        if shared.random() < 0.3:
            player.settle()
    player.settle()
    return {
        # Nodes that wait are put together, so only the order depends on a rank's own speed.
        "checkpoints": sorted(key.rsplit("_tp", 1)[0] for key in recorder.keys if key.endswith("_temporal")),
        "times": times,
    }


def switched(rank: Rank, address: str, folder: str) -> dict[str, Any]:
    """Change the live settings of one rank, later of the other; return what was in force in each step, and stored."""
    file = Path(folder, f"live-{rank.rank}.json")
    player, recorder = seated(rank, address, {"checkpoints": "PromptEnd", "liveFile": str(file)})
    serve(player, 1, prompt=6)
    in_force = []
    for step in range(60):
        if step == 25 * rank.rank:
            file.write_text(json.dumps({"revision": "0" * 12, "live": {"checkpoints": "All", "rpcParallelism": 2}}))
        player.step()
        in_force.append(str(player.linker.settings.checkpoints))
        time.sleep(0.05)
    player.settle()
    before = len(recorder.keys)
    serve(player, 2, prompt=6)
    player.settle()
    return {
        "in force": in_force,
        "checkpoints before": len([key for key in recorder.keys[:before] if key.endswith("_temporal")]),
        "checkpoints after": len([key for key in recorder.keys[before:] if key.endswith("_temporal")]),
        "parallelism": player.linker.settings.rpc_parallelism,
    }


def switched_to_fewer(rank: Rank, address: str, folder: str) -> list[list[int]]:
    """Serve a prompt of nine pages and an answer of two under All, and another under PromptEnd, which is live by then.

    Returns:
        For each of both, how much of its first 2, 4, 6, 8, 9 and 11 pages can be restored afterwards.
    """
    file = Path(folder, "live.json")
    player, _ = seated(rank, address, {"checkpoints": "All", "liveFile": str(file)})
    serve(player, 1, prompt=9, answer=2)
    file.write_text(json.dumps({"revision": "0" * 12, "live": {"checkpoints": "PromptEnd"}}))
    end = time.monotonic() + 20
    while player.linker.settings.checkpoints != "PromptEnd":
        assert time.monotonic() < end
        player.step()
        time.sleep(0.05)
    serve(player, 2, prompt=9, answer=2)
    player.settle()
    player.forget()
    found: list[list[int]] = []
    for number in (1, 2):
        found.append([])
        for pages in (2, 4, 6, 8, 9, 11):
            request = player.match([number * 100_000 + token for token in range(pages * player.page)])
            found[-1].append(request.loaded // player.page)
            player.abort(request)
    return found


def in_use(rank: Rank, address: str, touch: str, rewrite: str, while_filling: bool, ways: int = 1) -> dict[str, Any]:
    """Use a prompt on the device while others, or before others, fill the store; return what the store has of it.

    The device holds everything; the store holds some forty pages.
    """
    settings = {"touch": touch, "touchIntervalSeconds": 1, "rewriteMissing": rewrite, "checkpoints": "All"}
    player, _ = seated(rank, address, settings, pages=300, states=64, ways=ways)
    real, page = time.monotonic_ns, player.page
    time.monotonic_ns = lambda: real() * 2000
    used, unused = list(range(4 * page)), list(range(1_000_000, 1_000_000 + 4 * page))
    for prompt in (used, unused):
        player.compute(prompt)
        player.settle()
    for number in range(24):
        if while_filling:
            use(player, used)
        player.compute(list(range((number + 20) * 100_000, (number + 20) * 100_000 + 4 * page)))
        player.settle()
    use(player, used)
    player.settle()
    player.forget()
    found = {}
    for name, prompt in (("used", used), ("unused", unused)):
        request = player.restore(prompt)
        found[name] = request.loaded // page
        assert not player.differences(request)
        player.abort(request)
    return found


def use(player: Player, prompt: list[int]) -> None:
    """A request for a prompt that the device has arrives and goes; wait until its touch is answered."""
    player.step()
    player.abort(player.match([*prompt, *range(player.page)][: len(prompt)]))
    end = time.monotonic() + 5
    for _ in range(200):
        player.step()
        time.sleep(0.002)
        if not player.cache.linker._hinted:
            break
    assert time.monotonic() < end


def held_back(rank: Rank, address: str, pid: int, evicted: bool, ways: int = 1) -> dict[str, Any]:
    """Offer eight prompts of two pages to a frozen store; return how many nodes wait, and what it has after its thaw.

    Three states may wait. A prompt that found no room is split by a ninth; the half without a state has room. With
    ``evicted`` the device gives up what is not locked. ``order`` is the one in which the prompts found room.
    """
    player, _ = seated(rank, address, {"offloadBackpressurePercent": 20, "checkpoints": "All"}, ways=ways)
    player.step()
    order, offload = [], player.linker.offload

    def noted(transfers: list[Any], **options: Any) -> bool:
        queued: bool = offload(transfers, **options)
        if queued:
            order.append(transfers[0].keys[-1])
        return queued

    player.linker.offload = noted
    send(rank, pid, signal.SIGSTOP)
    page = player.page
    prompts = [list(range(number * 100_000, number * 100_000 + 2 * page)) for number in range(8)]
    prompts.append([*prompts[-1][:page], *range(900_000, 900_000 + page)])
    ends = [player.cache.tree_core.get_hash_values(player.compute(prompt))[-1] for prompt in prompts]
    waiting = len(player.cache.linker.pending_offloads)
    if evicted:
        player.evict(40 * page, 16)
    send(rank, pid, signal.SIGCONT)
    player.settle()
    player.forget()
    found = []
    for prompt in prompts:
        request = player.restore(prompt)
        found.append(request.loaded // page)
        assert not player.differences(request)
        player.abort(request)
    return {
        "waiting": waiting,
        "found": found,
        "order": [ends.index(end) for end in order if end in ends],
        "leaked": player.leaked(),
    }


def held_back_by_kind(rank: Rank, address: str, pid: int) -> dict[str, Any]:
    """Let a node of KV wait behind a checkpoint, and then one node of KV end while the checkpoints stay where they are.

    Eight pages and three states may wait.

    Returns:
        How many nodes found no room before and after, how many wait for the store then, and what the store has at last.
    """
    player, _ = seated(rank, address, {"offloadBackpressurePercent": 20, "checkpoints": "PromptEnd"})
    player.step()
    send(rank, pid, signal.SIGSTOP)
    # A chunk end first, so that KV alone is what ends first. The fourth checkpoint finds no room, and so, of the last
    # prompt, does a chunk end for its KV and the rest for its checkpoint.
    lengths = (4, 1, 2, 1, 3)
    for number, pages in enumerate(lengths):
        serve(player, number, prompt=pages)
    wrapper, ended = player.cache.linker, player.linker.num_completed_offloads
    before, waiting = len(wrapper._skipped), len(wrapper.pending_offloads)
    send(rank, pid, signal.SIGCONT)
    end = time.monotonic() + 20
    while not ended():
        assert time.monotonic() < end
        time.sleep(0.001)
    # As if another rank had one result so far.
    player.linker.num_completed_offloads = lambda: 1
    player.step()
    after, taken = len(wrapper._skipped), waiting - 1
    admitted = len(wrapper.pending_offloads) - taken
    player.linker.num_completed_offloads = ended
    player.settle()
    player.forget()
    found = []
    for number, pages in enumerate(lengths):
        request = player.restore([number * 100_000 + token for token in range(pages * PAGE)])
        found.append(request.loaded // PAGE)
        assert not player.differences(request)
        player.abort(request)
    return {"before": before, "after": after, "admitted": admitted, "found": found, "leaked": player.leaked()}


def without_a_state(rank: Rank, address: str) -> dict[str, Any]:
    """Look up a stored prompt while requests hold every state of the device; return what is loaded then and later."""
    player, _ = seated(rank, address, {})
    prompt = list(range(4 * player.page))
    player.compute(prompt)
    player.settle()
    player.forget()
    allocator = player.pools.requests.mamba_allocator
    held = allocator.alloc(allocator.available_size())
    request = player.match(prompt)
    hit = request.loaded // player.page
    player.queue_load(request)
    without = request.loaded
    player.forward([request])
    player.abort(request)
    allocator.free(held)
    request = player.restore(prompt)
    assert not player.differences(request)
    player.abort(request)
    return {"hit": hit, "without": without, "with": request.loaded // player.page, "leaked": player.leaked()}
