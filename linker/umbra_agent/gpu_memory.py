"""Waits until the GPUs have their memory back before another engine starts, as far as the driver tells it.

A process that is gone may leave its memory with the driver for seconds; an engine that starts in that time takes too
small pools or fails. Without an amdgpu driver nothing is known and nothing is waited for.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path

from umbra_agent.disk import read_json, write_json
from umbra_agent.kernel import read_text
from umbra_agent.report import say

# Contexts of the store and of the driver come and go with hundreds of MiB each; an engine's rank holds two hundred GiB.
TOLERANCE_BYTES = 4 << 30

_CARD = re.compile(r"card\d+")


def used_bytes(drm: Path, dri: Path) -> dict[str, int]:
    """Memory in use by card, for the cards that this container may open; empty where the driver says nothing.

    `drm` is /sys/class/drm, which shows every GPU of the node; `dri` is /dev/dri, which holds this container's.
    """
    found = {}
    for card in sorted(drm.glob("card*")):
        if not _CARD.fullmatch(card.name):
            continue  # card0-DP-1 is a connector
        nodes = [node.name for node in (card / "device" / "drm").glob("renderD*")]
        text = read_text(card / "device" / "mem_info_vram_used")
        if text is not None and text.isdecimal() and any((dri / node).exists() for node in nodes):
            found[card.name] = int(text)
    return found


def held_bytes(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """By how much each card holds more than `before`, beyond the tolerance; a card that is gone holds nothing."""
    excess = {card: now.get(card, 0) - used for card, used in before.items()}
    return {card: more for card, more in excess.items() if more > TOLERANCE_BYTES}


class GpuMemory:
    """Remembers what was in use before the pod's first engine, and waits for it after each. Use in the main thread."""

    def __init__(self, drm: Path, dri: Path, memory: Path, seconds: float) -> None:
        """`memory`: file on the pod's disk, so that an agent that was killed waits too. `seconds` bounds a wait."""
        self._drm, self._dri, self._memory, self._seconds = drm, dri, memory, seconds
        document = read_json(memory)
        self._before = {str(card): int(used) for card, used in document.items()} if document else None
        self._waiting_since: float | None = time.monotonic() if self._before else None

    def starting(self) -> None:
        """An engine is about to start: the first one's predecessor is what there was before any."""
        self._waiting_since = None
        if self._before is None:
            self._before = used_bytes(self._drm, self._dri)
            write_json(self._memory, self._before, mode=0o644)

    def ended(self) -> None:
        """The engine and all that it left are gone: the wait begins."""
        self._waiting_since = time.monotonic()

    def obstacle(self) -> str | None:
        """Why no engine may start yet, or None; also None once the wait took too long, which is logged."""
        if self._waiting_since is None or not self._before:
            return None
        held = held_bytes(self._before, used_bytes(self._drm, self._dri))
        waited = time.monotonic() - self._waiting_since
        if not held:
            self._waiting_since = None
            return None
        card = max(held, key=held.__getitem__)
        sentence = f"{len(held)} GPUs hold memory of an old engine, {card} the most ({held[card] / 2**30:.1f} GiB)"
        if waited < self._seconds:
            return f"Waiting: {sentence}."
        say(
            f"{sentence}, {waited:.0f} s after its end: the engine starts nevertheless. Look for a process on that GPU."
        )
        self._waiting_since = None
        return None
