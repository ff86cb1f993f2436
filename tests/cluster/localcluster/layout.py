"""Names and folders of one cluster. Two clusters with different names share nothing but the machine."""

import os
import pwd
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from umbra_images import cachefolder

from . import cache
from .errors import ClusterError

# The path of a Unix socket is limited to 107 bytes, and the longest below our folder takes 45 of them.
MAXIMUM_PATH = 60
# No interface carries the name, all of them are in the cluster's own network namespace: only that path limits it.
_NAME = re.compile(r"[a-z0-9]{1,8}")
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
    def whole_lock(self) -> Path:
        """File that a whole `make up` locks, from the first build to the last answer; `down` may come at any time."""
        return self.directory.with_name(f".{self.directory.name}.up.lock")

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

    def command(self, target: str) -> str:
        """The make command for this very cluster and cache, as a user of any shell can paste it."""
        wanted = {"UMBRA_CLUSTER": self.directory.name.removeprefix("cluster").removeprefix("-")}
        if self.directory.parent != cachefolder.default():
            wanted["UMBRA_CACHE"] = str(self.directory.parent)
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in wanted.items() if value), "make", target])

    def log(self, name: str) -> Path:
        """Log file of one daemon."""
        return self.logs / f"{name}.log"


def layout(name: str | None = None) -> Layout:
    """The layout of the cluster `name`; by default of the one that `UMBRA_CLUSTER` names, else of the user's own.

    Raises ClusterError for a name other than 1 to 8 of `a-z` and `0-9`, and for a cache whose path is too long.
    """
    chosen = name if name is not None else os.environ.get("UMBRA_CLUSTER", "")
    if chosen and not _NAME.fullmatch(chosen):
        raise ClusterError(
            f"{chosen!r} cannot name a cluster: set UMBRA_CLUSTER to 1 to 8 of the characters a-z and 0-9."
        )
    suffix = f"-{chosen}" if chosen else ""
    directory = cache.root() / f"cluster{suffix}"
    if len(str(directory)) > MAXIMUM_PATH:
        raise ClusterError(
            f"{directory} is longer than {MAXIMUM_PATH} characters, too long for the sockets in it: "
            "point UMBRA_CACHE at a shorter path."
        )
    # Namespaces and cgroups are the machine's: only one cache may use the plain name, root's own.
    plain = directory.parent == (Path(pwd.getpwuid(0).pw_dir) / ".cache" / "umbra").resolve()
    unique = "" if plain else f"-{cache.key(str(directory))[:6]}"
    return Layout(f"umbra{suffix}{unique}", directory, cache.root() / "log" / f"cluster{suffix}")
