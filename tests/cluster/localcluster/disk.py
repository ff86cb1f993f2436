"""Whether the disk has room for all that is about to be fetched, built and run: asked once, before anything is done."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from .errors import ClusterError

GB = 1024**3


def require(folder: Path, parts: Mapping[str, int]) -> None:
    """Raise ClusterError when the disk of `folder` has less room than the parts need together, in bytes by name."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free, needed = shutil.disk_usage(existing).free, sum(parts.values())
    if free < needed:
        each = ", ".join(f"{name} {size / GB:.1f}" for name, size in parts.items() if size)
        raise ClusterError(
            f"{existing} has {free / GB:.1f} GB free and {needed / GB:.1f} are needed ({each}): "
            "free some or point UMBRA_CACHE at another disk."
        )
