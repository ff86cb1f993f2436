"""What agent and engine tell each other about a drain, through two files: the drain flag and the count of requests.

The flag is there once new requests are to be refused. The count is of those that were taken before and have no whole
answer yet: the engine's own count leaves out a request whose body is still read, and an engine whose last health check
timed out ends on SIGTERM whatever runs. So the agent asks the engine to end only when nothing is left to lose.
"""

import mmap
from pathlib import Path

from umbra_agent.report import say

DRAIN_FLAG = "UMBRA_DRAIN_FLAG"
"""Variable with the path of the drain flag; the agent sets it for its engine, whose middleware reads it."""
RUNNING_FILE = "UMBRA_RUNNING_FILE"
"""Variable with the path of the count of requests; the agent sets it for its engine, whose middleware writes it."""
_COUNT_BYTES = 8


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


class RunningRequests:
    """The engine's side of the count: one word of a shared mapping, so that no request waits for a disk."""

    def __init__(self, path: Path | None) -> None:
        """Count in the file ``path``; for nobody without one, or where it cannot be made."""
        self._count = 0
        self._word: mmap.mmap | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w+b") as file:
                file.write(bytes(_COUNT_BYTES))
                file.flush()
                self._word = mmap.mmap(file.fileno(), _COUNT_BYTES)
        except OSError as error:
            say(f"Requests cannot be counted ({error.strerror}): a drain waits for those that the engine knows.")

    def __enter__(self) -> None:
        """One more request was taken. The count is for one thread: the server's event loop."""
        self._add(1)

    def __exit__(self, *_raised: object) -> None:
        self._add(-1)

    def _add(self, number: int) -> None:
        self._count += number
        if self._word is not None:
            self._word[:] = self._count.to_bytes(_COUNT_BYTES, "little")


class RunningCount:
    """The agent's side of the count."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def forget(self) -> None:
        """Remove what an earlier engine left: one that was killed counts its requests for ever."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            say(f"The count of requests could not be removed ({error.strerror}): a drain may last to its bound.")

    @property
    def latest(self) -> int:
        """How many requests run; 0 also where the engine counts none, as one of an earlier kit."""
        try:
            return int.from_bytes(self._path.read_bytes()[:_COUNT_BYTES], "little")
        except OSError:
            return 0
