"""The cgroup that holds all pods of one cluster: made before kubelet starts, emptied and removed after it stops."""

import os
import time
from contextlib import suppress
from pathlib import Path

from .machine import CGROUPS, cgroup_version
from .process import Process, identify


def roots(name: str) -> list[Path]:
    """The folder `name` at the top of each hierarchy, whether it exists or not."""
    if cgroup_version() == 2:
        return [CGROUPS / name]
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    mounted = [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]
    return [hierarchy / name for hierarchy in mounted]


def create(name: str) -> None:
    """Make the folder in every hierarchy, with what kubelet expects in it."""
    for root in roots(name):
        root.mkdir(exist_ok=True)
        # A new v1 cpuset has neither processors nor memory, and nothing can run in it.
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (root / setting).exists() and cgroup_version() == 1:
                (root / setting).write_text((root.parent / setting).read_text())
    if cgroup_version() == 2:
        controllers = " ".join(f"+{each}" for each in (CGROUPS / "cgroup.controllers").read_text().split())
        with suppress(OSError):
            (CGROUPS / "cgroup.subtree_control").write_text(controllers)
        (CGROUPS / name / "cgroup.subtree_control").write_text(controllers)


def processes(name: str) -> list[Process]:
    """Every process in the cluster's cgroups: the containers of its pods."""
    pids: set[int] = set()
    for root in roots(name):
        for folder, _, _ in os.walk(root):
            with suppress(OSError):
                pids.update(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
    return [process for pid in pids if (process := identify(pid))]


def remove(name: str, seconds: float = 5.0) -> list[Path]:
    """Remove the folders, deepest first; the kernel needs a moment after the last process. Returns what is left."""
    end = time.monotonic() + seconds
    while True:
        for root in roots(name):
            for folder, _, _ in os.walk(root, topdown=False):
                with suppress(OSError):
                    Path(folder).rmdir()
        left = [root for root in roots(name) if root.exists()]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.05)
