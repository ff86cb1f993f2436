"""Plays a sequence of steps on the cache and says after each what may not be."""

from __future__ import annotations

from typing import Any

from player import Player, Request, linker_config
from rank import PAGE, Rank

MOST_REQUESTS = 4
"""Requests at once; their locks must leave room for the rest of a sequence."""


def played(
    rank: Rank, address: str, steps: list[list[Any]], pages: int, states: int, salt: int, ways: int = 1
) -> dict[str, int]:
    """Play ``steps`` on a cache of so many ``pages`` and ``states``; return how often what was reached.

    Sequences with another ``salt`` share no prompt, so one store serves many.

    Raises:
        AssertionError: after the step that broke the tree, leaked a slot or gave a wrong byte.
    """
    tokens = pages * PAGE * ways
    player = Player.seated(rank, linker_config(address), tokens=tokens, states=states, layers=4, ways=ways)
    game = _Game(player, salt)
    for number, (name, *arguments) in enumerate(steps):
        try:
            getattr(game, name)(*arguments)
            game.check()
        except Exception as error:
            raise AssertionError(f"step {number}, {name}{tuple(arguments)}: {error}") from error
    game.end()
    return game.reached


class _Game:
    def __init__(self, player: Player, salt: int) -> None:
        self.player = player
        self.salt = salt
        self.computed: dict[tuple[int, ...], None] = {}
        self.requests: list[Request] = []
        self.queued: list[Request] = []
        self.reached = dict.fromkeys(("computed", "loaded", "lost", "kept", "split", "flushed"), 0)

    def prompt(self, path: list[int]) -> list[int]:
        """Return the tokens of a path: one page for each label, so equal beginnings share pages."""
        page = self.player.page
        return [(self.salt * 100 + label) * page + offset for label in path for offset in range(page)]

    # ---- steps ----

    def insert(self, path: list[int]) -> None:
        """Compute a prompt, if the locks of others leave room for it."""
        if self.player.compute(self.prompt(path)) is None:
            return
        for end in self.computed:
            self.reached["split"] += end[: len(path)] == tuple(path) and len(end) > len(path)
        self.computed[tuple(path)] = None
        self.reached["computed"] += 1
        self._require_right(self.player.device_differences(self.prompt(path)))

    def evict(self, pages: int, states: int) -> None:
        """Take device memory back."""
        self.player.evict(pages * self.player.page, states)

    def step(self) -> None:
        """One scheduler step."""
        self.player.step()

    def settle(self) -> None:
        """Wait until nothing is to be stored."""
        self.player.settle()

    def match(self, path: list[int]) -> None:
        """A request arrives. What it may find ends where a computed prompt ended: only there is a state."""
        if len(self.requests) == MOST_REQUESTS:
            return
        request = self.player.match(self.prompt(path))
        found = (request.device + request.loaded) // self.player.page
        assert not found or tuple(path[:found]) in self.computed, f"{found} pages of {path} were never computed"
        self.requests.append(request)

    def recall(self, which: int, more: list[int], cold: bool) -> None:
        """A request arrives that begins with a prompt that was computed before, ``cold``: when the device is empty."""
        if self.computed:
            if cold:
                self.player.settle()
                self.player.evict(self.player.pools.allocator.size, self.player.pools.requests.mamba_allocator.size)
            self.match([*list(self.computed)[which % len(self.computed)], *more])

    def serve(self, which: int, more: list[int]) -> None:
        """A request that begins with an earlier prompt arrives at an empty device, and runs."""
        self.recall(which, more, cold=True)
        self.queue(0)
        self.forward([True])

    def queue(self, which: int) -> None:
        """A request is scheduled."""
        waiting = [one for one in self.requests if one not in self.queued]
        if waiting:
            request = waiting[which % len(waiting)]
            self.player.queue_load(request)
            self.queued.append(request)

    def forward(self, keep: list[bool]) -> None:
        """The scheduled requests run; those that landed are kept or aborted, the others aborted."""
        batch, self.queued = self.queued, []
        if not batch:
            return
        self.player.forward(batch)
        for number, request in enumerate(batch):
            self.requests.remove(request)
            if request.landed and request.loaded:
                self._require_right(self.player.differences(request))
                self.reached["loaded"] += 1
            self.reached["lost"] += not request.landed
            if request.landed and keep[number % len(keep)]:
                self.player.keep(request)
                self.reached["kept"] += request.loaded > 0
            else:
                self.player.abort(request)

    def abort(self, which: int) -> None:
        """A client goes away, before its load has started."""
        if self.requests:
            request = self.requests.pop(which % len(self.requests))
            if request in self.queued:
                self.queued.remove(request)
            self.player.abort(request)

    def flush(self) -> None:
        """Empty the device, also where offloads are under way."""
        while self.requests:
            self.abort(0)
        self.player.forget()
        self.reached["flushed"] += 1

    # ---- what must hold ----

    def check(self) -> None:
        """The tree is whole, and every slot is free, in the tree, or a request's."""
        self.player.cache.sanity_check()
        held = [one for one in self.requests if one.own is not None]
        expected = {"kv": sum(len(one.own) for one in held), "mamba": len(held)}
        assert self.player.leaked() == {name: count for name, count in expected.items() if count}

    def end(self) -> None:
        """Let everybody go; then nothing may be locked or lost."""
        while self.requests:
            self.abort(0)
        self.player.settle()
        self.check()
        cache = self.player.cache
        assert (cache.full_protected_size(), cache.mamba_protected_size()) == (0, 0)

    @staticmethod
    def _require_right(differences: list[str]) -> None:
        assert not differences, f"wrong bytes: {differences[:5]}"
