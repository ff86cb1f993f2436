"""The key under which a build is found again, what it needs of the disk, and which builds are kept."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from umbra_images import builds

from .errors import EngineEnvironmentError

DONE = builds.DONE
HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
ENGINE_LOCK = REPOSITORY / "requirements" / "engine.txt"
MORI_LOCK = REPOSITORY / "requirements" / "mori.txt"

NEEDED_BYTES = 3 * 10**9
"""Free disk for a first build; measured 2.6 GB including uv's cache on the same file system."""

# What a running engine never reads: changing it must not rebuild 2.6 GB.
_NOT_BUILT_FROM = {
    "__init__.py",
    "__main__.py",
    "cache.py",
    "client.py",
    "description.py",
    "errors.py",
    "forkserver.py",
    "launcher.py",
    "lock.py",
    "processes.py",
    "store.py",
}


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


def needed_bytes(root: Path) -> int:
    """Return what the disk must have for the environment below the cache ``root``: nothing when it is built."""
    return 0 if (root / "engine" / build_key() / DONE).exists() else NEEDED_BYTES


def require_free_disk(folder: Path) -> None:
    """Raise when the file system of ``folder`` has too little room for a build."""
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise EngineEnvironmentError(
            f"the CPU engine environment needs {NEEDED_BYTES / 1e9:.0f} GB below {folder} and only "
            f"{free / 1e9:.1f} GB are free: free some disk, or point UMBRA_CACHE at a larger one"
        )


def remove_old(folder: Path) -> list[Path]:
    """Remove half-made builds below ``folder`` and all but the last few used; return what was removed.

    A build that a process still runs from stays. The caller holds the build lock.
    """
    return builds.remove_old(path for path in folder.iterdir() if re.fullmatch(r"[0-9a-f]{16}", path.name))
