"""What touching costs: the scheduler for each hint, and a core for the thread that reads."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

from player import Player, linker_config
from rank import PAGE, Rank

NODE_PAGES = 128
"""A chunk of 8,192 tokens."""
TURN_PAGES = 4
"""By which a conversation grows from one request to the next."""


def touched(rank: Rank, address: str, sessions: int, pages: int, turns: int, seconds_of_turns: float) -> dict[str, Any]:
    """Let conversations of ``pages`` pages go on for so many turns, evenly over that time; the device serves them.

    Each turn ends in another node, so the touch of each is due.

    Returns:
        Microseconds of the scheduler's CPU for each hint and for the rest of the lookup in the tree that gave it, the
        part of a core that the touching thread used at most in any ten seconds, and what became of the hints.
    """
    player = Player.seated(
        rank, linker_config(address), tokens=sessions * (pages + turns * TURN_PAGES) * PAGE,
        states=sessions * (pages // NODE_PAGES + turns) + 8, layers=4, draft=None,
    )  # fmt: skip
    # What the pages hold does not matter here, and making it up would take minutes.
    Player._fill = lambda *unused: None  # type: ignore[method-assign]
    prompts = [[session * 10_000_000 + token for token in range(pages * PAGE)] for session in range(sessions)]
    for number, prompt in enumerate(prompts):
        for end in range(NODE_PAGES, pages + 1, NODE_PAGES):
            _insert(player, number, prompt[: end * PAGE])
        player.settle()
    hints, used, results = _meters(player)
    matches = []
    for _ in range(turns):
        for number, prompt in enumerate(prompts):
            player.step()
            started = time.thread_time_ns()
            request = player.match(prompt)
            matches.append((time.thread_time_ns() - started) / 1e3 - hints[-1])
            player.abort(request)
            prompt.extend(range(prompt[-1] + 1, prompt[-1] + 1 + TURN_PAGES * PAGE))
            _insert(player, number, prompt)
            time.sleep(seconds_of_turns / turns / sessions)
    player.settle()
    core = max(sum(one for at, one in used if end - 10 < at <= end) for end, _ in used) / 10
    return {"hints": hints, "matches": matches, "core": core, "results": results}


def _insert(player: Player, number: int, tokens: list[int]) -> None:
    with player.cache.linker.inserting(SimpleNamespace(rid=f"s{number}", origin_input_ids=tokens)):
        player.compute(tokens)


def _meters(player: Player) -> tuple[list[float], list[tuple[float, float]], Counter[str]]:
    """Note from now on what each hint takes of the scheduler and of the thread, and what becomes of it."""
    hints: list[float] = []
    used: list[tuple[float, float]] = []
    results: Counter[str] = Counter()
    wrapper, metrics = player.cache.linker, player.linker.metrics
    hint, hinted = wrapper._hint, metrics.hinted

    def timed(*arguments: Any) -> None:
        begin = time.thread_time_ns()
        hint(*arguments)
        hints.append((time.thread_time_ns() - begin) / 1e3)

    def counted(result: Any, *, cpu_seconds: float = 0.0) -> None:
        hinted(result, cpu_seconds=cpu_seconds)
        used.append((time.monotonic(), cpu_seconds))
        results[str(result)] += 1

    wrapper._hint, metrics.hinted = timed, counted
    return hints, used, results
