"""The cache as the local cluster uses it: built folders, files replaced in one step, how long a step took."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from umbra_images.builds import build, complete, key
from umbra_images.cachefolder import CacheError, locked, root, writable

__all__ = [
    "build", "complete", "key", "last_duration", "locked", "remember_duration", "root", "writable", "write"
]  # fmt: skip


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
