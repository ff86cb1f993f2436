"""The drain flag: a file that is there once the engine is told to end, for what is to refuse requests from then on."""

from pathlib import Path

from umbra_agent.report import say

DRAIN_FLAG = "UMBRA_DRAIN_FLAG"
"""Variable with the path of the drain flag; the agent sets it for its engine, whose middleware reads it."""


class DrainFlag:
    """Failures are logged and never raised: an agent that ends takes the engine and its running requests with it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def up(self) -> None:
        """Make the flag, with its folder."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        except OSError as error:
            say(f"The drain flag could not be raised ({error.strerror}): new requests are not refused.")

    def down(self) -> None:
        """Remove the flag, also one that an earlier agent left: it would refuse a new engine's warm-up requests."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            say(f"The drain flag could not be removed ({error.strerror}): the engine may refuse requests.")
