"""Names and folders of one cluster. Two clusters with different names share nothing but the machine."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .errors import ClusterError

# The path of a Unix socket is limited to 107 bytes, and the longest below our folder takes 45 of them.
MAXIMUM_PATH = 60
NODE_IP = "10.244.0.1"
POD_RANGE = "10.244.0.0/24"
# In the environment of every daemon that we start, and so of its children: finds them when all records are lost.
MARK = "UMBRA_CLUSTER_DIRECTORY"


@dataclass(frozen=True)
class Layout:
    """Where a cluster lives. Everything in `directory` goes with the cluster; `logs` stays."""

    name: str
    directory: Path
    logs: Path

    @property
    def namespace(self) -> str:
        """Name of the network namespace, which is also the name of the cgroup at the top of each hierarchy."""
        return self.name

    @property
    def node(self) -> str:
        """Name of the node."""
        return f"{self.name}-node"

    @property
    def state(self) -> Path:
        """File with the processes and addresses of the running cluster."""
        return self.directory / "state.json"

    @property
    def lock(self) -> Path:
        """File that `up` and `down` lock, so that they never run at the same time."""
        return self.directory.with_name(f".{self.directory.name}.lock")

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig for the user of this machine (API server behind a loopback port)."""
        return self.directory / "kubeconfig"

    @property
    def containerd_socket(self) -> Path:
        """Socket of the cluster's own containerd."""
        return self.directory / "containerd.sock"

    @property
    def kubelet_root(self) -> Path:
        """Folder with the pods' volumes."""
        return self.directory / "kubelet"

    def log(self, name: str) -> Path:
        """Log file of one daemon."""
        return self.logs / f"{name}.log"


def layout(name: str | None = None) -> Layout:
    """The layout of the cluster `name`; by default of the one that `UMBRA_CLUSTER` names, else of the user's own."""
    chosen = name if name is not None else os.environ.get("UMBRA_CLUSTER", "")
    if chosen and not (chosen.isalnum() and chosen.islower() and len(chosen) <= 8):
        raise ClusterError(f"{chosen!r} cannot name a cluster: take at most 8 lower-case letters and digits.")
    suffix = f"-{chosen}" if chosen else ""
    directory = cache.root() / f"cluster{suffix}"
    if len(str(directory)) > MAXIMUM_PATH:
        raise ClusterError(
            f"{directory} is longer than {MAXIMUM_PATH} characters, too long for the sockets in it: "
            "point UMBRA_CACHE at a shorter path."
        )
    # Namespaces and cgroups are the machine's: only one cache may use the plain name, root's own.
    plain = directory.parent == Path(pwd.getpwuid(0).pw_dir) / ".cache" / "umbra"
    unique = "" if plain else f"-{cache.key(str(directory))[:6]}"
    return Layout(f"umbra{suffix}{unique}", directory, cache.root() / "log" / f"cluster{suffix}")
