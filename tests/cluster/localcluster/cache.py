"""Folders under the cache root: keyed by their inputs, complete only when their `done` file exists."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from umbra_images.cachefolder import CacheError, locked, root, writable

__all__ = [
    "build", "complete", "key", "last_duration", "locked", "remember_duration", "root", "writable", "write"
]  # fmt: skip

# The longest build takes about 10 minutes on two idle cores.
BUILD_SECONDS = 3600.0


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
    return (folder / "done").exists()


def build(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make `folder` with `make(temporary folder)` unless it is complete; return it.

    The `done` file is written last and the folder is renamed into place, so an interrupted build is never
    mistaken for a whole one. Two processes that want the same folder wait for each other, up to an hour.
    """
    if complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f".{folder.name}.lock", f"the build of {folder.name}", BUILD_SECONDS):
        if complete(folder):
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            make(temporary)
            (temporary / "done").touch()
            temporary.chmod(0o755)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, so that a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).rename(path)
    finally:
        with suppress(FileNotFoundError):
            Path(temporary).unlink()


def last_duration(step: str) -> float | None:
    """Seconds that `step` took the last time it ran on this machine, if it ever did."""
    value = _durations().get(step)
    return float(value) if isinstance(value, int | float) else None


def remember_duration(step: str, seconds: float) -> None:
    """Keep how long `step` took, for the next run's progress line, if that can be written."""
    with suppress(OSError, CacheError), locked(root() / ".durations.lock", "the list of durations", 5.0):
        durations = {**_durations(), step: round(seconds, 1)}
        write(root() / "durations.json", json.dumps(durations, indent=1, sort_keys=True))


def _durations() -> dict[str, object]:
    try:
        content = json.loads((root() / "durations.json").read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
