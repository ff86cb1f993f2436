"""Taking a cluster down: everything that `up` made goes, after any kind of end."""

import os
import re
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
    _remove_folder(where)
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
    """Unmount everything below the folder, the latest mount first; what stays busy is only detached."""
    for _ in range(20):
        if not (mine := mounts(directory)):
            return
        for point in reversed(mine):
            subprocess.run(["umount", point], capture_output=True, check=False, timeout=30)
        time.sleep(0.05)
    subprocess.run(["umount", "-l", *mounts(directory)], capture_output=True, check=False, timeout=30)


def mounts(directory: Path) -> list[str]:
    """Mount points below the folder, the earliest first."""
    # The kernel writes space, tab, newline and backslash as three octal digits.
    points = [
        re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), line.split()[4])
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    return [point for point in points if point.startswith(f"{directory.resolve()}/")]


def _remove_folder(where: Layout) -> None:
    """Remove the cluster's folder, but never what is mounted in it: that may be a disk or a folder of the machine."""
    directory = where.directory
    if left := mounts(directory):
        raise ClusterError(
            f"{left[-1]} cannot be unmounted, so {directory} was left as it is: end what uses it "
            f"(`fuser -vm {left[-1]}`) and run `{where.command('down')}` again."
        )
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        raise ClusterError(
            f"{directory} could not be removed whole: see what is left in it and run `{where.command('down')}` again."
        )
