"""Whether this machine can run a node, and the Debian packages that it needs for that."""

import os
import shutil
import subprocess
from pathlib import Path

from .errors import ClusterError
from .layout import layout
from .progress import Progress

CGROUPS = Path("/sys/fs/cgroup")
# Debian's place, then everybody else's.
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CNI_PLUGINS = ("bridge", "host-local", "loopback")
# What a C compiler needs to make a program, and Debian's gcc only recommends.
_C_HEADERS = Path("/usr/include/stdlib.h")

# What must be there -> Debian package that brings it.
_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "openssl": "openssl",
    "gcc": "gcc",
}


def api_only() -> str:
    """What is left to somebody whose machine cannot run a node."""
    return f"or use `{layout().command('up-api')}`, which runs the control plane without a node"


def check_rights() -> None:
    """Raise ClusterError when the system or this user's rights allow no node."""
    if os.uname().sysname != "Linux":
        raise ClusterError(f"A node needs Linux and this is {os.uname().sysname}: use a Linux machine.")
    if os.geteuid() != 0:
        raise ClusterError(f"A node needs root (namespaces, cgroups, mounts): run as root, {api_only()}.")
    if cgroup_version() is None:
        raise ClusterError(
            f"No cgroup controllers for memory, cpu and pids are mounted under {CGROUPS}: mount them, {api_only()}."
        )
    if locked := [folder for folder in _hierarchies() if not os.access(folder, os.W_OK)]:
        raise ClusterError(
            f"{locked[0]} cannot be written, as in an unprivileged container: run on the machine itself, or give the "
            f"container its cgroups writable (`docker run --privileged`), {api_only()}."
        )
    probe = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False, timeout=30)
    if probe.returncode != 0:
        raise ClusterError(
            f"Network namespaces are not allowed here ({probe.stderr.strip()}): allow them (CAP_SYS_ADMIN), "
            f"{api_only()}."
        )


def cgroup_version() -> int | None:
    """2 for the unified hierarchy, 1 for separate controllers, None when the needed controllers are not there."""
    controllers = CGROUPS / "cgroup.controllers"
    if controllers.exists():
        return 2 if {"memory", "cpu", "pids"} <= set(controllers.read_text().split()) else None
    return 1 if all((CGROUPS / name).is_dir() for name in ("memory", "cpu", "pids")) else None


def _hierarchies() -> list[Path]:
    """Folders in which a node makes cgroups of its own."""
    return [CGROUPS] if cgroup_version() == 2 else [CGROUPS / name for name in ("memory", "cpu", "pids")]


def missing_packages() -> list[str]:
    """Debian packages of the commands and CNI plugins that this machine lacks."""
    needed = {package for command, package in _PACKAGES.items() if shutil.which(command) is None}
    if cni_plugins() is None:
        needed.add("containernetworking-plugins")
    if not _C_HEADERS.exists():
        needed.add("libc6-dev")
    return sorted(needed)


def cni_plugins() -> Path | None:
    """Folder with all CNI plugins that the pods' network needs; None when there is none."""
    return next((folder for folder in CNI_FOLDERS if all((folder / name).exists() for name in _CNI_PLUGINS)), None)


def install_packages(progress: Progress) -> None:
    """Install what is missing with apt-get, after saying so."""
    packages = missing_packages()
    if not packages:
        return
    listed = " ".join(packages)
    if shutil.which("apt-get") is None:
        raise ClusterError(f"This is not Debian, so nothing was installed: install {listed} yourself, {api_only()}.")
    with progress.step("apt-install", f"installing Debian packages with apt-get: {listed}"):
        install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
        result = _apt(install)
        if result.returncode != 0:
            # Package lists that are absent or old are the usual reason; refreshing them is the usual cure.
            _apt(["apt-get", "update"])
            result = _apt(install)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise ClusterError(f"apt-get could not install {listed} ({reason}): install them yourself, {api_only()}.")


def _apt(argv: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(
        argv, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=900
    )
