"""A store that fails, freezes and is replaced, under ranks that do not have the same clock or the same luck."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from player import Player, linker_config
from rank import CHUNK, PAGE, Rank

from freezing import freeze

PAGES, STATES = 40, 14


class _Unlucky:
    """The real client; what of its answers turns into a failure is this rank's own luck."""

    def __init__(self, client: Any, luck: random.Random) -> None:
        self._client = client
        self._luck = luck

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_put_ranges_from_ptr(self, *arguments: Any) -> list[bool]:
        if self._luck.random() < 0.05:
            raise OSError("the connection was reset")
        return self._spoilt(self._client.batch_put_ranges_from_ptr(*arguments))

    def batch_get_ranges_into_ptr(self, *arguments: Any) -> list[bool]:
        return self._spoilt(self._client.batch_get_ranges_into_ptr(*arguments))

    def _spoilt(self, answers: Any) -> list[bool]:
        return [bool(answer) and self._luck.random() > 0.03 for answer in answers]


class _Decisions:
    """What a rank decided, in order; nothing of it may depend on its clock or its luck."""

    def __init__(self, player: Player) -> None:
        self.made: list[Any] = []
        self.reductions = 0
        wrapper, linker, cache = player.cache.linker, player.linker, player.cache
        offload, commit, reduce = linker.offload, wrapper.commit_completed_offloads, cache._all_reduce_attn_groups

        def offloads(transfers: list[Any], **options: Any) -> bool:
            queued: bool = offload(transfers, **options)
            self.made.append(["offered", [[t.name.value, list(t.keys)] for t in transfers], queued])
            return queued

        def commits(successes: list[bool]) -> None:
            self.made.append(["stored", successes])
            commit(successes)

        def reduces(*arguments: Any) -> None:
            self.reductions += 1
            reduce(*arguments)

        linker.offload, wrapper.commit_completed_offloads = offloads, commits
        cache._all_reduce_attn_groups = reduces


def decided(rank: Rank, address: str, pid: int, seed: int, skew_ms: int, ways: int) -> dict[str, Any]:
    """Serve random prompts while the store fails and freezes; return what this rank decided, and what it reached.

    The second rank's clock is ``skew_ms`` ahead. Clocks run 1,000 times as fast, so that touches are due.
    """
    real_ns, real = time.monotonic_ns, time.monotonic
    time.monotonic_ns = lambda: real_ns() * 1000 + rank.rank * skew_ms * 1_000_000
    time.monotonic = lambda: real() + rank.rank * skew_ms / 1000
    own, shared = random.Random(f"{seed}-{rank.rank}"), random.Random(seed)
    settings = {
        "offloadBackpressurePercent": 20, "touchIntervalSeconds": 1, "lookupDeadlineMilliseconds": 50,
        "checkpoints": "Adaptive", "storeBytes": 24 << 20,
    }  # fmt: skip
    player = Player.seated(
        rank, linker_config(address, settings), tokens=PAGES * PAGE * ways, states=STATES, layers=4, ways=ways
    )
    decisions, frozen, hits = _Decisions(player), False, []
    player.linker.store.client = _Unlucky(player.linker.store.client, own)
    prompts: list[list[int]] = []
    for turn in range(150):
        kind = shared.choices(["new", "again", "flush", "freeze", "thaw"], [6, 10, 2, 1, 3])[0]
        if kind in ("freeze", "thaw"):
            frozen = kind == "freeze"
            send(rank, pid, signal.SIGSTOP if frozen else signal.SIGCONT)
            if not frozen and shared.random() < 0.5:
                _wait_until_asked_again(player)
        elif kind == "flush" and not frozen:
            # A frozen store would hold it up: its answers are waited for.
            player.forget()
        elif kind == "new" or not prompts:
            prompts.append(_compute(player, turn, shared))
        else:
            request = player.match(shared.choice(prompts))
            hits.append([request.device, request.loaded])
            if not frozen:
                # A load from a frozen store would end it.
                player.queue_load(request)
                player.forward([request])
                hits[-1].append(request.landed)
                assert not request.landed or not player.differences(request)
            player.abort(request)
        time.sleep(own.random() * 0.01)
        player.step()
    if frozen:
        send(rank, pid, signal.SIGCONT)
    player.settle()
    player.cache.sanity_check()
    assert player.leaked() == {}
    return {"decisions": decisions.made, "hits": hits, "reductions": decisions.reductions}


def replaced(rank: Rank, address: str, pid: int) -> dict[str, int]:
    """Kill the store and wait for the next one, which is empty. Use one of two prompts that the device has.

    Returns:
        How many pages of each can be restored afterwards, the used one with what was computed behind it.
    """
    settings = {"touchIntervalSeconds": 1, "checkpoints": "All"}
    player = Player.seated(rank, linker_config(address, settings), tokens=PAGES * PAGE, states=STATES, layers=4)
    page, client = player.page, player.linker.store.client
    used, unused = list(range(4 * page)), list(range(1_000_000, 1_000_000 + 4 * page))
    for prompt in (used, unused):
        player.compute(prompt)
    player.settle()
    send(rank, pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while player.linker.store.client is client:
        assert time.monotonic() < end
        time.sleep(0.01)
    player.step()
    longer = [*used, *range(2 * page)]
    player.abort(player.match(longer))
    while player.cache.linker._hinted:
        assert time.monotonic() < end
        player.step()
    player.compute(longer)
    player.settle()
    player.forget()
    found = {}
    for name, prompt in (("used", longer), ("unused", unused)):
        request = player.restore(prompt)
        found[name] = request.loaded // page
        assert not player.differences(request)
        player.abort(request)
    return found


def away(rank: Rank, address: str, pid: int, gone_seconds: float, hold: str) -> dict[str, Any]:
    """Ask a store that is away for so long; then, without the file ``hold``, the next one comes.

    Returns:
        How often the linker tried to connect to it, and what is restored from it.
    """
    player = Player.seated(rank, linker_config(address), tokens=PAGES * PAGE, states=STATES, layers=4)
    tokens = list(range(4 * PAGE))
    watch, client, trials = player.linker._upkeep._watch, player.linker.store.client, []
    connect_anew = watch._connect_anew
    watch._connect_anew = lambda: trials.append(1) or connect_anew()
    send(rank, pid, signal.SIGKILL)
    end = time.monotonic() + gone_seconds
    while time.monotonic() < end:
        player.abort(player.match(tokens))
        time.sleep(0.05)
    Path(hold).unlink()
    while player.linker.store.client is client:
        assert time.monotonic() < end + 20
        time.sleep(0.01)
    player.compute(tokens)
    player.settle()
    player.forget()
    request = player.restore(tokens)
    return {"trials": len(trials), "restored": [request.loaded // PAGE, player.differences(request)]}


def _wait_until_asked_again(player: Player) -> None:
    """Let the linker see that the store answers; until then it asks nothing."""
    end = time.monotonic() + 10
    while player.linker._lookups._breaker.open:
        assert time.monotonic() < end
        time.sleep(0.01)


def _compute(player: Player, turn: int, shared: random.Random) -> list[int]:
    """Compute a prompt of a few chunks, and some pages of an answer, as far as locks leave room; return the prompt."""
    pages = shared.randint(1, 8)
    tokens = [turn * 100_000 + token for token in range((pages + 2) * player.page)]
    fields = SimpleNamespace(rid=f"c{turn}", origin_input_ids=tokens[: pages * player.page])
    chunk = CHUNK * player.ways
    with player.cache.linker.inserting(fields):
        for end in [*range(chunk, pages * player.page, chunk), pages * player.page, len(tokens)]:
            if player.compute(tokens[:end]) is None:
                break
    return tokens[: pages * player.page]


def send(rank: Rank, pid: int, number: signal.Signals) -> None:
    """Send the store a signal, before any rank goes on."""
    if rank.rank == 0 and number is signal.SIGSTOP:
        freeze(pid)
    elif rank.rank == 0:
        os.kill(pid, number)
    if rank.group is not None:
        torch.distributed.barrier(rank.group)
