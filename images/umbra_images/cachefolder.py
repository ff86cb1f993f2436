"""The one folder for everything that is built or runs on this machine and does not belong in the repository.

Run as `python3 -m umbra_images.cachefolder` it prints the folder; with `--writable` it makes it, or says why it cannot.
"""

import argparse
import fcntl
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.2
_ABANDONED = threading.Event()


class CacheError(Exception):
    """What is wrong with the folder, or with waiting for a part of it, and what to do about it."""


def root() -> Path:
    """The cache root: `UMBRA_CACHE`, else `$XDG_CACHE_HOME/umbra`, else `~/.cache/umbra`; absolute, without links.

    Raises CacheError for a path that neither make nor the build tools can handle.
    """
    chosen = os.environ.get("UMBRA_CACHE")
    return _absolute("UMBRA_CACHE", chosen) if chosen else default()


def default() -> Path:
    """The cache root when `UMBRA_CACHE` is not set."""
    base = os.environ.get("XDG_CACHE_HOME")
    return _absolute("XDG_CACHE_HOME", base or "~/.cache") / "umbra"


def writable() -> Path:
    """The cache root, made if it is not there. Raises CacheError when nothing can be written into it."""
    folder = root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        reason = None if os.access(folder, os.W_OK | os.X_OK) else "not permitted, or the disk is read-only"
    except OSError as problem:
        reason = problem.strerror
    if reason:
        raise CacheError(f"{folder} cannot be written ({reason}): point UMBRA_CACHE at a folder of yours.")
    return folder


@contextmanager
def locked(path: Path, what: str, seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; the system drops it when the process ends, however it ends.

    Whoever has to wait says so once, with `what` is waited for and who has it. Raises CacheError after `seconds`, or
    when `abandon` is called meanwhile.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        _acquire(file, what, seconds)
        # Only for those who wait: a full disk must not keep us from working.
        with suppress(OSError):
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def abandon() -> None:
    """End every wait for a lock in this process: what the locks were for is not wanted any more."""
    _ABANDONED.set()


def holder(path: Path) -> str | None:
    """Who has the lock on the file `path`; None when nobody has."""
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return _holder(file)
        return None


def _acquire(file: IO[str], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    told = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return
        if not told:
            print(f"waiting for {what}, which {_holder(file)} has", file=sys.stderr, flush=True)
            told = True
        if time.monotonic() > end:
            raise CacheError(
                f"{_holder(file)} has {what} for more than {seconds:.0f} s: end it, or wait for its end and try again."
            )
        if _ABANDONED.wait(POLL_SECONDS):
            raise CacheError(f"The wait for {what} was given up.")


def _holder(file: IO[str]) -> str:
    """The process that wrote its pid last, with the start of its command line."""
    file.seek(0)
    pid = file.read().strip()
    try:
        words = Path(f"/proc/{int(pid)}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").split()
    except (OSError, ValueError):
        return "another process"
    return f"process {pid} ({' '.join(words)[:80]})"


def _absolute(variable: str, value: str) -> Path:
    try:
        path = Path(value).expanduser().resolve()
    except (OSError, RuntimeError) as problem:
        raise CacheError(f"{variable}={value!r} names no folder ({problem}): correct it.") from problem
    # make splits every path at its blanks, and so does the format of Debian's and containerd's settings.
    if any(character.isspace() for character in str(path)):
        raise CacheError(f"{str(path)!r} has blanks, which make cannot handle: point UMBRA_CACHE at a path without.")
    return path


def main() -> int:
    """Print the folder; problems are one sentence on stderr and exit code 1."""
    parser = argparse.ArgumentParser(prog="cachefolder", description=__doc__)
    parser.add_argument("--writable", action="store_true", help="make the folder, and fail when it cannot be written")
    try:
        print(writable() if parser.parse_args().writable else root())
    except CacheError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
