"""Built folders: named by a hash of their inputs, complete when their `done` file is there, the last used ones kept."""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from .cachefolder import locked

BUILD_SECONDS = 3600.0
"""For another process's build of the same folder; the longest takes about 10 minutes on two idle cores."""
DONE = "done"
"""File in a complete build; its time is that of the last use."""
KEPT = 3
"""Builds of a kind that stay, the last used ones: one for each of a few branches."""


def key(*parts: Path | str | bytes) -> str:
    """First 16 hex digits of the SHA-256 over the parts; a path stands for the content of its file.

    Each part is preceded by its length, so that moving bytes from one part to the next changes the key.
    """
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:16]


def complete(folder: Path) -> bool:
    """Whether an earlier build of this folder ended well."""
    return (folder / DONE).exists()


def build(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make `folder`, whose name ends in `-<key>`, with `make(temporary folder)` unless it is complete; return it.

    The `done` file is written last and the folder is renamed into place, so an interrupted build is never
    mistaken for a whole one. Two processes that want the same folder wait for each other, up to an hour.
    Older builds of the same kind are removed. Raises CacheError when the wait was too long.
    """
    if complete(folder):
        with suppress(OSError):
            (folder / DONE).touch()
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f".{folder.name}.lock", f"the build of {folder.name}", BUILD_SECONDS):
        if complete(folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            make(temporary)
            (temporary / DONE).touch()
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    kind = re.compile(rf"{re.escape(folder.name.rpartition('-')[0])}-[0-9a-f]{{16}}")
    remove_old(path for path in folder.parent.iterdir() if kind.fullmatch(path.name) and complete(path))
    return folder


def remove_old(builds: Iterable[Path]) -> list[Path]:
    """Remove what is neither complete, nor among the last `KEPT` used, nor in use; return what was removed."""
    every = list(builds)
    whole = sorted((path for path in every if complete(path)), key=lambda path: (path / DONE).stat().st_mtime)
    old = [path for path in every if path not in whole[-KEPT:] and not in_use(path)]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return old


def in_use(folder: Path) -> bool:
    """Whether a process has mapped a file below `folder`, in a container or not."""
    wanted = f" {folder}{os.sep}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (process / "maps").read_bytes():
                return True
    return False
