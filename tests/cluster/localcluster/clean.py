"""Emptying the cache: only what Umbra made, and only while nothing runs from it."""

import shutil
from pathlib import Path

from umbra_images import cachefolder

from . import host
from .errors import ClusterError
from .layout import layout
from .progress import Progress
from .teardown import mounts

_MADE = ("bench", "engine", "go-build", "go-mod", "helm", "layers", "log", "tools", "uv", "venv", "durations.json")
_LOCKS = (".durations.lock", ".cluster*.lock", ".session-*.lock")
_WORK = (*_LOCKS, "engine/.lock", "tools/.*.lock", "venv/*.lock")


def clean(progress: Progress) -> None:
    """Remove what was built; what stands in the folder and is not Umbra's stays.

    Raises ClusterError when a cluster, a build or a test run uses it.
    """
    folder = cachefolder.root()
    _refuse_in_use(folder)
    if not folder.exists():
        progress.note("nothing to remove")
        return
    with progress.step("clean-cache", f"removing what was built in {folder}", remember=False):
        for name in _MADE:
            path = folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for pattern in _LOCKS:
            for path in folder.glob(pattern):
                path.unlink()
    if left := sorted(path.name for path in folder.iterdir()):
        progress.note(f"left in {folder}, since Umbra did not make it: {', '.join(left)}")
    else:
        folder.rmdir()


def _refuse_in_use(folder: Path) -> None:
    for directory in [folder / "cluster", *sorted(folder.glob("cluster-*"))]:
        if directory.exists():
            name = directory.name.removeprefix("cluster").removeprefix("-")
            raise ClusterError(f"A cluster lives in {directory}: run `{layout(name).command('down')}` first.")
    if owners := [name for name, directory in host.owners().items() if Path(directory).is_relative_to(folder)]:
        raise ClusterError(
            f"The machine is still changed for {', '.join(owners)}: run `{layout().command('down')}` first."
        )
    if left := mounts(folder):
        raise ClusterError(f"{left[-1]} is mounted: unmount it first.")
    for pattern in _WORK:
        for path in folder.glob(pattern):
            if holder := cachefolder.holder(path):
                raise ClusterError(f"The cache is in use by {holder}: end it, or wait for its end.")
