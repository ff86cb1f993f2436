"""Kit mode: put this kit's files where the engine and store containers find them, then sleep.

Version folders stay side by side under the root, so a running engine keeps the files it was started with while
`current` already points at a newer kit.
"""

import os
import shutil
from pathlib import Path

from umbra_agent.report import say
from umbra_agent.signals import Signals

TEMPORARY_PREFIX = ".tmp-"


class KitError(Exception):
    """The kit cannot be installed; the message says what to do."""


def install(source: Path, root: Path) -> Path:
    """Copy `source` to `root/<name of source>` and point `root/current` at it; return the version's folder.

    Atomic: the folder appears whole (copy, then rename), the link is replaced by rename. Idempotent: a version that
    is in place is not copied again, and other versions are never touched.
    """
    if not (source / "umbra_agent").is_dir():
        raise KitError(f"The kit source {source} holds no umbra_agent folder: set UMBRA_KIT_SOURCE or --source.")
    root.mkdir(parents=True, exist_ok=True)
    target = root / source.name
    for leftover in root.glob(f"{TEMPORARY_PREFIX}*"):
        _discard(leftover)
    if not target.is_dir():
        staging = root / f"{TEMPORARY_PREFIX}{source.name}"
        shutil.copytree(source, staging, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        _make_readable(staging)
        staging.rename(target)
    _point(root / "current", target.name)
    return target


def in_place(source: Path, root: Path) -> bool:
    """Whether `root/current` leads to a folder with this source's version: the startup probe of the kit container."""
    current = root / "current"
    return current.is_dir() and current.resolve().name == source.name


def run(source: Path, root: Path) -> int:
    """Install, then sleep until SIGTERM or SIGINT. Returns 0 after the signal."""
    signals = Signals()
    target = install(source, root)
    say(f"Kit {target.name} is in place at {target}.")
    while not signals.stop:
        signals.wait(60.0)
    return 0


def installed_version(package: Path) -> str:
    """Version of the kit that holds the package folder `package`, from the dist-info beside it, or "unknown".

    Read from the folder's name: importing importlib.metadata costs 50 ms of a container's start.
    """
    for info in sorted(package.resolve().parent.glob("umbra_operator-*.dist-info")):
        return info.name.removeprefix("umbra_operator-").removesuffix(".dist-info")
    return "unknown"


def _point(link: Path, name: str) -> None:
    if link.is_symlink() and link.readlink() == Path(name):
        return
    staging = link.with_name(f"{TEMPORARY_PREFIX}current")
    staging.symlink_to(name)
    staging.replace(link)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _make_readable(folder: Path) -> None:
    """Let every user read the copy: engine and store may run as another user than the kit container."""
    for directory, _, files in os.walk(folder):
        Path(directory).chmod(0o755)
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o644)
