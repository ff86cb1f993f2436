"""How long a store that freezes, dies and is replaced is felt; Umbra's linker and SGLang's own play the same scene.

Somebody outside starts an empty store whenever it has died, unless the file ``hold`` is there.
"""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

from faults import send
from pace import prompt, seated, timed_lookups
from player import Player
from rank import Rank

PAGES = 6
BEFORE_KILL_SECONDS = 1.0
THAW_SECONDS = 60.0
"""How long a lookup may take to hit after a thaw."""


def felt(
    rank: Rank, address: str, hold: str, pid: int, stock: bool, frozen_seconds: float, give_up_seconds: float
) -> dict[str, float | None]:
    """Look up while the store is frozen and after it; kill it while it holds up a load; use the next one.

    Returns:
        Seconds, None where nothing had come within the bound: of the longest lookup while the store was frozen, from
        its thaw to a hit, from its end to the end of the request that was loading, and from when the next store
        listened to when a prompt came back from it.
    """
    settings = {"lookupDeadlineMilliseconds": 50, "checkpoints": "All"}
    player = seated(rank, address, stock, pages=16 * PAGES, settings=settings)
    waits = timed_lookups(player)
    stored = prompt(1, PAGES)
    player.compute(stored)
    player.settle()
    player.forget()
    found: dict[str, float | None] = {}
    hits: list[float] = []

    def ask() -> None:
        while not hits:
            request = player.match(stored)
            if request.loaded:
                hits.append(time.monotonic())
            player.abort(request)
            time.sleep(0.05)

    send(rank, pid, signal.SIGSTOP)
    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(frozen_seconds)
    found["lookup"] = max(waits) / 1e3 if waits else None
    thawed = time.monotonic()
    send(rank, pid, signal.SIGCONT)
    asking.join(THAW_SECONDS)
    found["thaw"] = hits[0] - thawed
    found["kill"] = _killed_under_a_load(rank, player, stored, pid, Path(hold))
    Path(hold).unlink()
    found["restart"] = _until_restored(player, address, give_up_seconds)
    return found


def _killed_under_a_load(rank: Rank, player: Player, stored: list[int], pid: int, hold: Path) -> float:
    killed: list[float] = []

    def kill() -> None:
        hold.touch()
        killed.append(time.monotonic())
        send(rank, pid, signal.SIGKILL)

    request = player.match(stored)
    send(rank, pid, signal.SIGSTOP)
    threading.Timer(BEFORE_KILL_SECONDS, kill).start()
    player.queue_load(request)
    player.forward([request])
    seconds = time.monotonic() - killed[0]
    assert request.loaded and not request.landed
    player.abort(request)
    return seconds


def _until_restored(player: Player, address: str, most_seconds: float) -> float | None:
    _wait_until_listening(address)
    begin = time.monotonic()
    number = 2
    while time.monotonic() < begin + most_seconds:
        text, number = prompt(number, PAGES), number + 1
        player.compute(text)
        player.settle()
        player.forget()
        request = player.restore(text)
        restored = request.loaded and request.landed
        player.abort(request)
        if restored:
            return time.monotonic() - begin
        time.sleep(0.1)
    return None


def _wait_until_listening(address: str) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(address.removeprefix("unix://"))
            except OSError:
                time.sleep(0.01)
            else:
                return
