"""Settings that change while the engine runs: read from the file that the agent writes, in force where all ranks agree.

The file is replaced as a whole, and each rank reads it when it gets to it. A digest of its content goes into the ranks'
reduction; the settings come into force in the first step in which every rank has read the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

from .settings import Settings

logger = logging.getLogger(__name__)

NONE = 0
"""Version of the settings that the engine was started with: what every rank has in force at first."""


class LiveSettings:
    """What the file says over the settings that the engine was started with."""

    def __init__(self, path: Path, base: Settings) -> None:
        """Read the file at once, if there is one."""
        self._path = path
        self._base = base
        self._text = b""
        self._unreadable = False
        self.latest: tuple[int, Settings] = (NONE, base)
        """Version and settings, exchanged as one: one thread looks, another takes."""
        self.look()

    def look(self) -> None:
        """Read the file if it changed. One that cannot be read or used changes nothing, and is told once."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._unreadable:
                logger.error("live settings cannot be read: %s", error)
            self._unreadable = True
            return
        self._unreadable = False
        if text == self._text:
            return
        self._text = text
        try:
            settings = self._base.updated(json.loads(text)["live"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.error("live settings in %s are not used: %s", self._path, error)
            return
        self.latest = (version_of(text), settings)


def version_of(text: bytes) -> int:
    """Return a positive number below 2**62 that is another one for another text."""
    return 1 + int.from_bytes(hashlib.sha256(text).digest()[:8], "big") // 5
