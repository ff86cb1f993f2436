"""Taking a cluster down: everything that `up` made goes, after any kind of end."""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from . import cgroups, host, network, process
from .errors import ClusterError
from .layout import MARK, Layout
from .state import State


def clear(where: Layout) -> None:
    """Remove the cluster, in the order in which no part can bring back the one before. Idempotent.

    The caller holds `where.lock`. Raises ClusterError when something cannot be removed.
    """
    # Without root there never was a node.
    with_node = os.geteuid() == 0
    recorded = {name: each for name, each in State.load(where.state).processes.items() if each.alive}
    if with_node:
        _kill_pods(where, recorded.pop("kubelet", None))
    # Nothing of theirs is kept, so they get no more time than a plain exit takes.
    process.stop(recorded.values(), grace_seconds=0.5)
    # What no record names: shims of containerd, and daemons of an `up` that was killed between start and record.
    process.kill(process.marked(MARK, str(where.directory)))
    if with_node:
        _remove_node(where)
    shutil.rmtree(where.directory, ignore_errors=True)
    if where.directory.exists():
        raise ClusterError(f"{where.directory} could not be removed whole: look for mounts in it.")
    if with_node:
        host.forget_pods(where.directory, where.name)
        host.release(where.name)


def _kill_pods(where: Layout, kubelet: process.Process | None) -> None:
    """Stop kubelet, which would start pods again, then every process of a pod."""
    if kubelet:
        process.stop([kubelet])
    process.kill(cgroups.processes(where.name))
    _remove_shim_sockets(where)


def _remove_node(where: Layout) -> None:
    """Remove mounts, network namespace and cgroups; nothing runs in them any more."""
    process.kill(cgroups.processes(where.name))
    _unmount(where.directory)
    network.remove(where.namespace)
    if left := cgroups.remove(where.name):
        raise ClusterError(f"The cgroup {left[0]} is still in use: see `cat {left[0]}/cgroup.procs`.")


def _remove_shim_sockets(where: Layout) -> None:
    """Remove the sockets that a killed shim leaves in /run/containerd/s; each task folder names its own."""
    for address in (where.directory / "run").glob("io.containerd.runtime.v2.task/*/*/address"):
        with suppress(OSError):
            Path(address.read_text().strip().removeprefix("unix://")).unlink()


def _unmount(directory: Path) -> None:
    """Unmount everything below the folder, the latest mount first."""
    for _ in range(20):
        points = [
            line.split()[4].encode().decode("unicode_escape")
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
        ]
        mine = [point for point in points if point.startswith(f"{directory}/")]
        if not mine:
            return
        for point in reversed(mine):
            subprocess.run(["umount", point], capture_output=True, check=False)
        time.sleep(0.05)
    subprocess.run(["umount", "-l", *mine], capture_output=True, check=False)
