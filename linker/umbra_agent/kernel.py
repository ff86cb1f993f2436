"""Small files in which the kernel tells things. Apart from `host`, whose imports would slow every agent's start."""

import os
from pathlib import Path


def cgroup_files(root: Path, membership: Path, v2: str, v1: str) -> list[Path]:
    """Where a file of this process's own memory cgroup may be: below the mount and at the mount itself.

    A container often sees only its own subtree, and `membership` (/proc/self/cgroup) names the whole path.
    """
    found: list[Path] = []
    for line in (read_text(membership) or "").splitlines():
        controllers, path = line.split(":", 2)[1:] if line.count(":") >= 2 else ("-", "/")
        group = path.lstrip("/")
        if controllers == "":
            found += [root / group / v2, root / v2]
        elif "memory" in controllers.split(","):
            found += [base / v1 for base in (root / "memory" / group, root / "memory")]
    return found


def read_text(path: Path) -> str | None:
    """Content without surrounding blanks, or None when it cannot be read."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return None
