"""What goes wrong with the store, one thing after the other, under one write policy; and what is right afterwards.

The store is the real one. A rank that alone fails is played: what its client is asked goes another way.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from faults import send
from player import Player, Request
from policies import seated, serve, use
from rank import Rank

PROMPT, ANSWER = 5, 1
"""Pages."""
SKEW_MS = 37_000
"""Each rank's clock is so much ahead of the one before it."""
EXISTS, READ, WRITE = "batch_exists", "batch_get_ranges_into_ptr", "batch_put_ranges_from_ptr"


def met(rank: Rank, address: str, folder: str, policy: dict[str, Any], ways: int) -> dict[str, Any]:
    """Meet each fault with a prompt of its own; return what was seen of it meanwhile, and of it computed again later.

    Meanwhile: pages found, whether they landed, and which are wrong. Later: for each length of prompt how much of it is
    found, and what is not as it was before.
    """
    real = time.monotonic_ns
    time.monotonic_ns = lambda: real() * 2000 + rank.rank * SKEW_MS * 1_000_000
    player, _ = seated(rank, address, {"touchIntervalSeconds": 1} | policy, ways=ways)
    player.step()
    scene = _Scene(player, Path(folder))
    return {name: scene.play(fault) for name, fault in FAULTS.items()}


class _Client:
    """The real client, of which some calls go another way."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.instead: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in self.instead:
            return call
        return lambda *arguments: self.instead[name](call, *arguments)


class _Scene:
    def __init__(self, player: Player, folder: Path) -> None:
        self.player = player
        self.linker = player.linker
        self._folder = folder
        self._number = 0

    def play(self, fault: Callable[[_Scene], Any]) -> dict[str, Any]:
        self._number += 1
        meanwhile = fault(self)
        if self.linker._closed:
            return {"meanwhile": meanwhile}
        self._everyone()
        self.player.forget()
        self.stored()
        whole = self.restored(self.match())
        found = [self._found(pages) for pages in range(1, PROMPT + ANSWER + 1)]
        cache = self.player.cache
        cache.sanity_check()
        leaked = self.player.leaked()
        locked = cache.full_protected_size() + cache.mamba_protected_size()
        return {"meanwhile": meanwhile, "later": [whole, found, leaked, locked]}

    # ---- what a fault is made of ----

    def stored(self, number: int = 0) -> None:
        """Serve the prompt, or another one, let it be stored, and empty the device."""
        self.served(number)
        self.player.forget()

    def served(self, number: int = 0) -> None:
        """Serve the prompt, or another one, and let it be stored."""
        serve(self.player, number or self._number, PROMPT, ANSWER)
        self.player.settle()

    def tokens(self, pages: int = PROMPT) -> list[int]:
        """Return the first pages of the prompt, as ``serve`` makes it."""
        return [self._number * 100_000 + token for token in range(pages * self.player.page)]

    def match(self, pages: int = PROMPT) -> Request:
        """Look the prompt up."""
        return self.player.match(self.tokens(pages))

    def restored(self, request: Request) -> list[Any]:
        """Load what was found; return how many pages, whether they landed, and which are wrong."""
        self.player.queue_load(request)
        self.player.forward([request])
        wrong = self.player.differences(request) if request.landed else []
        self.player.abort(request)
        return [request.loaded // self.player.page, request.landed, wrong]

    def _found(self, pages: int) -> int:
        request = self.match(pages)
        self.player.abort(request)
        return request.loaded // self.player.page

    @contextmanager
    def instead(self, call: str, other: Callable[..., Any], *, everywhere: bool = False) -> Iterator[None]:
        """Let calls of the last rank go another way, or those of all ranks."""
        rank = self.player.rank
        store = self.linker.store
        client = store.client
        if everywhere or rank.rank == rank.size - 1:
            store.client = _Client(client)
            store.client.instead[call] = other
        try:
            yield
        finally:
            store.client = client

    @contextmanager
    def lookups_within(self, milliseconds: int) -> Iterator[None]:
        """Wait for lookups no longer; afterwards until the store is asked again."""
        settings = self.linker.settings
        self.linker.settings = dataclasses.replace(settings, lookup_deadline_milliseconds=milliseconds)
        try:
            yield
        finally:
            self.linker.settings = settings
            _wait_for(lambda: not self.linker._lookups._breaker.open)
            self._everyone()

    def signal(self, number: signal.Signals) -> None:
        """Send the store a signal, before any rank goes on."""
        self._everyone()
        send(self.player.rank, int((self._folder / "pid").read_text()), number)

    def replace(self) -> None:
        """Wait until another, empty store was started and this rank is connected to it."""
        before = self.linker.store.client
        self._everyone()
        wish = self._folder / "replace"
        if self.player.rank.rank == 0:
            wish.touch()
        self._everyone()
        _wait_for(lambda: not wish.exists() and self.linker.store.client is not before)
        self._everyone()

    def _everyone(self) -> None:
        if self.player.rank.group is not None:
            torch.distributed.barrier(self.player.rank.group)


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _fails(call: Any, keys: Any, *rest: Any) -> list[bool]:
    return [False] * len(keys)


def _lies(call: Any, keys: Any, *rest: Any) -> list[bool]:
    return [True] * len(keys)


def _raises(call: Any, *arguments: Any) -> Any:
    raise RuntimeError("the store is not well")


def _late(seconds: float) -> Callable[..., Any]:
    def call_late(call: Any, *arguments: Any) -> Any:
        time.sleep(seconds)
        return call(*arguments)

    return call_late


# ---- the faults ----


def _lost(scene: _Scene) -> Any:
    with scene.instead(WRITE, _lies):
        scene.served()
    use(scene.player, scene.tokens())
    scene.player.settle()
    scene.player.forget()
    return scene.restored(scene.match())


def _not_written(scene: _Scene, other: Callable[..., Any]) -> Any:
    with scene.instead(WRITE, other):
        scene.stored()
    return scene.restored(scene.match())


def _not_read(scene: _Scene, other: Callable[..., Any]) -> Any:
    scene.stored()
    with scene.instead(READ, other):
        return scene.restored(scene.match())


def _lookup_raises(scene: _Scene) -> Any:
    scene.stored()
    with scene.instead(EXISTS, _raises):
        return scene.restored(scene.match())


def _lookup_late(scene: _Scene) -> Any:
    scene.stored()
    with scene.lookups_within(200), scene.instead(EXISTS, _late(0.6)):
        return scene.restored(scene.match())


def _slow(scene: _Scene) -> Any:
    with scene.instead(WRITE, _late(0.05)):
        scene.stored()
    with scene.instead(READ, _late(0.05)):
        return scene.restored(scene.match())


def _flushed_in_a_load(scene: _Scene) -> Any:
    return _ended_in_a_load(scene, scene.player.forget)


def _frozen(scene: _Scene) -> Any:
    scene.stored()
    scene.signal(signal.SIGSTOP)
    with scene.lookups_within(200):
        missed = scene.restored(scene.match())
        serve(scene.player, scene._number + 500, PROMPT)
        waiting = len(scene.player.cache.linker.pending_offloads)
        scene.signal(signal.SIGCONT)
    scene.player.settle()
    return [missed, waiting, scene.restored(scene.match())]


def _frozen_in_a_load(scene: _Scene) -> Any:
    scene.stored()
    request = scene.match()
    seconds, scene.linker._upkeep.load_deadline_seconds = scene.linker._upkeep.load_deadline_seconds, 1
    scene.signal(signal.SIGSTOP)
    seen = scene.restored(request)
    scene.linker._upkeep.load_deadline_seconds = seconds
    scene.replace()
    return seen


def _killed(scene: _Scene) -> Any:
    scene.stored()
    scene.signal(signal.SIGKILL)
    missed = scene.restored(scene.match())
    scene.stored(scene._number + 500)
    scene.replace()
    return missed


def _replaced_before_a_load(scene: _Scene) -> Any:
    scene.stored()
    request = scene.match()
    scene.replace()
    return scene.restored(request)


def _registration_refused(scene: _Scene) -> Any:
    """The new store refuses the first buffer of the last rank once."""
    register, refused = scene.linker._register_buffers, []

    def refuse() -> None:
        if not refused and scene.player.rank.rank == scene.player.rank.size - 1:
            refused.append(True)
            raise RuntimeError("no memory can be registered")
        register()

    scene.linker._register_buffers = refuse
    scene.stored()
    scene.replace()
    scene.linker._register_buffers = register
    return scene.restored(scene.match())


def _closed_in_a_load(scene: _Scene) -> Any:
    return _ended_in_a_load(scene, scene.player.cache.linker.close)


def _ended_in_a_load(scene: _Scene, end: Callable[[], None]) -> Any:
    """Return whether the device's memory is still when ``end`` has returned, although a load ran."""
    scene.stored()
    player = scene.player
    request = scene.match()
    player.queue_load(request)
    content = player.pools.kv.full_kv_pool.kv_buffer[0]
    with scene.instead(READ, _late(0.5), everywhere=True):
        assert player.cache.ready_to_load_host_cache() >= 0
        end()
        then = content.clone()
        time.sleep(0.8)
    return torch.equal(content.view(torch.uint8), then.view(torch.uint8))


FAULTS: dict[str, Callable[[_Scene], Any]] = {
    "lost": _lost,
    "write fails": lambda scene: _not_written(scene, _fails),
    "write raises": lambda scene: _not_written(scene, _raises),
    "read fails": lambda scene: _not_read(scene, _fails),
    "read raises": lambda scene: _not_read(scene, _raises),
    "lookup raises": _lookup_raises,
    "lookup late": _lookup_late,
    "slow": _slow,
    "flushed in a load": _flushed_in_a_load,
    "frozen": _frozen,
    "killed": _killed,
    "replaced before a load": _replaced_before_a_load,
    "registration refused": _registration_refused,
    "frozen in a load": _frozen_in_a_load,
    "closed in a load": _closed_in_a_load,
}
