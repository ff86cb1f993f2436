"""A fault of the store meets each operation of the linker in turn, and after each the cache serves on.

The store is a real one. Somebody outside starts an empty one whenever it has died, unless the file ``hold`` is there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from faults import send
from player import Player, Request, linker_config
from rank import PAGE, Rank

import umbra_linker.linker
import umbra_linker.upkeep
from freezing import freeze
from umbra_linker.connection import epoch_at
from umbra_linker.hooks import linker_work

PAGES, STATES = 64, 24
PROMPT_PAGES = 6
OTHERS = 8
"""Prompts that fill the store, so that it evicts all that it had."""
STEPS = 200
"""Scheduler steps, 10 ms apart, in which a store that answers has answered."""
SECONDS = 20.0
"""How long something may take that must come."""
CLOSE_SECONDS, BEAT_SECONDS = 1.0, 0.1
"""What the linker takes 5 s and 1 s for."""

Undo = Callable[[], None]


def cells(rank: Rank, address: str, hold: str, fault: str) -> dict[str, Any]:
    """Let one fault meet every operation.

    Returns:
        What happened, by operation, and how often this rank reduced something.
    """
    umbra_linker.linker.CLOSE_SECONDS = CLOSE_SECONDS
    umbra_linker.upkeep.INTERVAL_SECONDS = BEAT_SECONDS
    scene = _Scene(rank, address, Path(hold), fault)
    happened = {}
    for operation in (lookup, load, offload, flush):
        happened[operation.__name__] = operation(scene)
        scene.require_recovery()
    happened[close.__name__] = close(scene)
    return {"happened": happened, "reductions": scene.reductions}


class _Scene:
    """One rank's cache before, under and after a fault."""

    def __init__(self, rank: Rank, address: str, hold: Path, fault: str) -> None:
        self.rank = rank
        self.address = address
        self._hold = hold
        self._fault: Callable[[], Undo] = getattr(self, f"_{fault}")
        # Whoever answers in the end is waited for here, also where eight processes share a core.
        frozen = fault == "frozen"
        settings = {
            "lookupDeadlineMilliseconds": 50 if frozen else 5000,
            "loadDeadlineSeconds": 1 if frozen else 20,
            "checkpoints": "All",
        }
        self.player = Player.seated(rank, linker_config(address, settings), tokens=PAGES * PAGE, states=STATES)
        self._numbers = itertools.count(1)
        self.reductions = 0
        self.reasons: list[str] = []
        """Why lookups missed."""
        self.committed: list[bool] = []
        """Whether the nodes that have ended are stored, by what all ranks say."""
        self._listen()

    def strike(self) -> Undo:
        """Let the fault begin on all ranks; return what ends it."""
        undo = self._fault()
        self._together()

        def heal() -> None:
            self._together()
            undo()
            self._together()

        return heal

    def prompt(self) -> list[int]:
        """Return a prompt that nobody has seen."""
        number = next(self._numbers)
        return [number * 1_000_000 + token for token in range(PROMPT_PAGES * PAGE)]

    def stored(self) -> list[int]:
        """Return a prompt that the store has and the device has not."""
        tokens = self.prompt()
        self.player.compute(tokens)
        self.player.settle()
        self.player.forget()
        return tokens

    def found(self, tokens: list[int]) -> Request:
        """Look a prompt up that the store has; again where a busy machine answers later than a lookup waits."""
        end = time.monotonic() + SECONDS
        while True:
            request = self.player.match(tokens)
            if request.loaded == len(tokens):
                return request
            self.player.abort(request)
            assert time.monotonic() < end, f"never found: {self.reasons[-3:]}"
            time.sleep(0.05)

    def steps(self) -> None:
        """Take scheduler steps until nothing is to be stored, but not for ever; equally many on every rank."""
        for _ in range(STEPS):
            if not self.player.cache.linker.pending_offloads:
                return
            self.player.step()
            time.sleep(0.01)

    def _listen(self) -> None:
        player = self.player
        missed, commit = player.linker.metrics.missed, player.cache.linker.commit_completed_offloads
        reduce = player.cache._all_reduce_attn_groups

        def misses(pages: int, reason: Any) -> None:
            self.reasons.append(str(reason))
            missed(pages, reason)

        def commits(successes: list[bool]) -> None:
            self.committed += successes
            commit(successes)

        def reduces(*arguments: Any) -> None:
            self.reductions += 1
            reduce(*arguments)

        player.linker.metrics.missed = misses
        player.cache.linker.commit_completed_offloads = commits
        player.cache._all_reduce_attn_groups = reduces

    def require_recovery(self) -> None:
        """Nothing is locked or lost, and what is computed now is stored and comes back byte for byte."""
        player, end = self.player, time.monotonic() + SECONDS
        player.settle()
        while True:
            request = player.restore(self.stored())
            whole, wrong = request.loaded and request.landed, player.differences(request)
            player.abort(request)
            if whole:
                break
            assert time.monotonic() < end, "nothing is restored any more"
            time.sleep(0.05)
        assert not wrong, f"wrong bytes: {wrong[:5]}"
        player.settle()
        player.cache.sanity_check()
        assert player.leaked() == {}
        assert (player.cache.full_protected_size(), player.cache.mamba_protected_size()) == (0, 0)

    # ---- faults; each returns what ends it on this rank ----

    def _killed(self) -> Undo:
        if self.rank.rank == 0:
            self._hold.touch()
        self._kill()
        _wait(lambda: epoch_at(self.address) is None)
        return lambda: self._hold.unlink(missing_ok=True)

    def _frozen(self) -> Undo:
        pid = self._store()
        send(self.rank, pid, signal.SIGSTOP)

        def undo() -> None:
            # The linker kills a store that does not answer a load.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        return undo

    def _replaced(self) -> Undo:
        store, old = self.player.linker.store, self.player.linker.store.client
        self._kill()
        _wait(lambda: store.client is not old)
        return _nothing

    def _full(self) -> Undo:
        for _ in range(OTHERS):
            self.player.compute(self.prompt())
            self.player.settle()
        return _nothing

    def _slow(self) -> Undo:
        """It runs for 20 of 70 ms."""
        if self.rank.rank:
            return _nothing
        pid, ended = self._store(), threading.Event()

        def slow_down() -> None:
            while not ended.wait(0.02):
                freeze(pid)
                time.sleep(0.05)
                os.kill(pid, signal.SIGCONT)

        thread = threading.Thread(target=slow_down)
        thread.start()

        def undo() -> None:
            ended.set()
            thread.join()
            os.kill(pid, signal.SIGCONT)  # Fails where it was another store in the end.

        return undo

    def _unregistered(self) -> Undo:
        """The store was replaced, and the new one does not take the buffers."""
        linker, tried = self.player.linker, threading.Event()
        register = linker._register_buffers

        def refused() -> None:
            tried.set()
            raise RuntimeError("registration refused")

        linker._register_buffers = refused
        self._together()
        self._kill()
        assert tried.wait(SECONDS)

        def undo() -> None:
            linker._register_buffers = register

        return undo

    def _wrong(self) -> Undo:
        """It gives one answer too few."""
        store = self.player.linker.store
        client, store.client = store.client, _Short(store.client)

        def undo() -> None:
            store.client = client

        return undo

    def _kill(self) -> None:
        pid = self._store()
        self._together()
        send(self.rank, pid, signal.SIGKILL)

    def _store(self) -> int:
        """Return the process that a fault is to befall; without one, nothing would be tested."""
        epoch = epoch_at(self.address)
        assert epoch is not None, "no store is there that could fail"
        return epoch.pid

    def _together(self) -> None:
        if self.rank.group is not None:
            torch.distributed.barrier(self.rank.group)


class _Short:
    """The real client, but the last answer of each call is missing."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        return (lambda *arguments: list(call(*arguments))[:-1]) if name.startswith("batch_") else call


# ---- operations; each returns what happened ----


def lookup(scene: _Scene) -> str:
    """A request arrives whose prefix the store has, or had."""
    tokens = scene.stored()
    heal = scene.strike()
    request = scene.player.match(tokens)
    scene.player.abort(request)
    heal()
    return "hit" if request.loaded == len(tokens) else f"miss (`{scene.reasons[-1]}`)"


def load(scene: _Scene) -> str:
    """The store fails between a request's lookup and its load."""
    player, tokens = scene.player, scene.stored()
    request = scene.found(tokens)
    heal = scene.strike()
    struck = epoch_at(scene.address)
    player.queue_load(request)
    player.forward([request])
    killed = epoch_at(scene.address) != struck
    assert not request.landed or not player.differences(request)
    player.abort(request)
    assert not len(player.device_prefix(tokens)), "what nobody kept was published"
    heal()
    return ("restored" if request.landed else "that request ends with 503") + (
        ", the store is killed" if killed else ""
    )


def offload(scene: _Scene) -> str:
    """A node is offered for storing."""
    heal = scene.strike()
    scene.committed.clear()
    scene.player.compute(scene.prompt())
    scene.steps()
    waits = bool(scene.player.cache.linker.pending_offloads)
    heal()
    scene.player.settle()
    (stored,) = scene.committed
    if waits:
        return "waits with its lock, then " + ("stored" if stored else "not stored")
    return "stored" if stored else "not stored, lock released"


def flush(scene: _Scene) -> str:
    """The cache is to be emptied while a node is being stored."""
    heal = scene.strike()
    player, cache = scene.player, scene.player.cache
    player.compute(scene.prompt())
    assert linker_work(cache), "an engine would call itself idle"
    scene.steps()
    refused = bool(linker_work(cache))
    if not refused:
        player.forget()
    heal()
    player.settle()
    player.forget()
    return "refused until the store answers" if refused else "empties the device"


def close(scene: _Scene) -> str:
    """The engine ends while a node is being stored."""
    heal = scene.strike()
    scene.player.compute(scene.prompt())
    begin = time.monotonic()
    scene.player.linker.close()
    assert time.monotonic() - begin < SECONDS
    heal()
    return "ends"


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _nothing() -> None:
    pass
