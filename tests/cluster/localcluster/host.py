"""What a cluster changes on the machine itself: remembered by the first cluster, put back by the last one."""

import json
import os
import re
import socket
import subprocess
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from . import cache
from .state import boot_id

# kubelet sets these, for the whole machine, at every start.
SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# containerd, its shims, the CNI plugins and kubelet make these whatever their configuration says.
FOLDERS = (
    "/run/netns",
    "/run/containerd",
    "/run/mount",
    "/var/lib/cni",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/pods",
    "/usr/libexec/kubernetes",
    "/opt/cni",
    "/opt/containerd",
    "/etc/cni",
)


def sysctl(name: str) -> str | None:
    """Value of a kernel setting, None when this kernel has no such setting."""
    try:
        return (Path("/proc/sys") / name).read_text().strip()
    except OSError:
        return None


RECORD = Path("/var/lib/umbra-local/host.json")
"""One for the machine, not one for each cache: two caches' clusters change the same settings."""
LOCK = Path("/run/lock/umbra-local")


@dataclass
class _Record:
    """The machine as the first cluster found it, and which clusters run now."""

    owners: dict[str, str] = field(default_factory=dict)
    """Name of each cluster and its folder."""
    sysctls: dict[str, str] = field(default_factory=dict)
    absent_folders: list[str] = field(default_factory=list)
    boot: str = field(default_factory=boot_id)

    @staticmethod
    def load() -> "_Record":
        try:
            record = _Record(**json.loads(RECORD.read_text()))
        except (OSError, ValueError, TypeError):
            return _Record()
        # After a reboot nothing runs and the sysctls have their defaults again, but the folders are still there.
        return record if record.boot == boot_id() else _Record(absent_folders=record.absent_folders)

    def save(self) -> None:
        if self.owners:
            cache.write(RECORD, json.dumps(asdict(self), indent=1))
            return
        RECORD.unlink(missing_ok=True)
        with suppress(OSError):
            RECORD.parent.rmdir()


def _locked() -> AbstractContextManager[None]:
    return cache.locked(LOCK, "the record of the machine", 60.0)


def claim(owner: str, directory: Path) -> None:
    """Remember the machine as it is now, unless another cluster runs and has done so; `directory` is the owner's."""
    with _locked():
        record = _Record.load()
        if not record.owners:
            record.sysctls = {name: value for name in SYSCTLS if (value := sysctl(name)) is not None}
            record.absent_folders += [
                folder for folder in FOLDERS if folder not in record.absent_folders and not Path(folder).exists()
            ]
        if owner not in record.owners:
            record.owners[owner] = str(directory)
            record.save()


def release(owner: str) -> None:
    """Put back what the record holds when no other cluster needs the machine changed. Idempotent."""
    with _locked():
        record = _Record.load()
        if owner not in record.owners:
            return
        del record.owners[owner]
        if not record.owners:
            for name, value in record.sysctls.items():
                if sysctl(name) != value:
                    (Path("/proc/sys") / name).write_text(value)
            for folder in record.absent_folders:
                _remove(Path(folder))
        record.save()


def owners() -> dict[str, str]:
    """Names of the clusters that need the machine changed now, and their folders."""
    return _Record.load().owners


def forget_pods(directory: Path, network_name: str) -> None:
    """Remove what kubelet and CNI note about the pods of one cluster outside its folder, for pods that were killed.

    `directory` is the cluster's folder, `network_name` the name in its CNI configuration.
    """
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(directory):
            link.unlink()
    results = Path("/var/lib/cni/results")
    mine = re.compile(rf"{re.escape(network_name)}-([0-9a-f]{{64}})-eth0")
    for note in list(results.glob(f"{network_name}-*")):
        if match := mine.fullmatch(note.name):
            note.unlink()
            (results / f"cni-loopback-{match[1]}-lo").unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove a folder that the first cluster found absent, as far as it is empty: files in it belong to others."""
    if folder.exists() and not any(folder.iterdir()):
        # `ip netns add` mounts its folder onto itself; for anything else this fails and harms nothing.
        subprocess.run(["umount", str(folder)], capture_output=True, check=False, timeout=30)
    for name, _, files in os.walk(folder, topdown=False):
        for file in files:
            if is_dead_socket(Path(name) / file):
                (Path(name) / file).unlink()
        with suppress(OSError):
            Path(name).rmdir()


def is_dead_socket(path: Path) -> bool:
    """Whether this is a Unix socket that no process listens on any more."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
