"""Where built things live, and the key under which one build is found again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import EngineEnvironmentError

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
ENGINE_LOCK = REPOSITORY / "requirements" / "engine.txt"
MORI_LOCK = REPOSITORY / "requirements" / "mori.txt"

NEEDED_BYTES = 3 * 10**9
"""Free disk for a first build; measured 2.6 GB including uv's cache on the same file system."""

# What a running engine never reads: changing it must not rebuild 2.6 GB.
_NOT_BUILT_FROM = {
    "__main__.py",
    "client.py",
    "description.py",
    "forkserver.py",
    "launcher.py",
    "lock.py",
    "processes.py",
    "store.py",
}


def cache_root() -> Path:
    """Return Umbra's cache folder (``UMBRA_CACHE``, else below the XDG cache home)."""
    named = os.environ.get("UMBRA_CACHE")
    if named:
        return Path(named).expanduser().resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().resolve() / "umbra"


def build_key() -> str:
    """Return 16 hex digits over the lock files and every script that shapes the environment."""
    digest = hashlib.sha256()
    sources = sorted(
        path
        for path in HERE.rglob("*")
        if path.is_file() and path.suffix in {".py", ".json", ".pth"} and path.name not in _NOT_BUILT_FROM
    )
    for path in [ENGINE_LOCK, MORI_LOCK, *sources]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def require_free_disk(folder: Path) -> None:
    """Raise when the file system of ``folder`` has too little room for a build."""
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise EngineEnvironmentError(
            f"the CPU engine environment needs {NEEDED_BYTES / 1e9:.0f} GB below {folder} and only "
            f"{free / 1e9:.1f} GB are free: free some disk, or point UMBRA_CACHE at a larger one"
        )


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the build lock of ``folder``, so that two sessions never build the same environment at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
