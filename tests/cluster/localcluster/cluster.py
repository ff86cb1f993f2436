"""The cluster of this machine: bring it up, repair it, take it down without a trace."""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from . import cache, cgroups, components, disk, host, images, machine, network, node, pki, probe, process, toolchain
from .controlplane import KUBECTL_SECONDS, run_kubectl
from .daemons import Daemons
from .errors import ClusterError
from .images import Image
from .layout import MARK, NODE_IP, Layout, layout
from .progress import Progress
from .state import State
from .teardown import clear

START_SECONDS = 90.0
# Images, logs and etcd.
RUN_BYTES = 2 * 1024**3
# `up` and `down` of one cluster wait for each other: longer than a start or an end takes on a busy machine.
LOCK_SECONDS = 600.0
NODE, API_ONLY = "node", "api-only"
# Inside its own namespace nobody competes for ports.
_PORTS = components.Ports(api=6443, etcd=2379, etcd_peer=2380, controller_manager=10257, scheduler=10259)
_MODE, _LOOPBACK_PORTS = "mode", "ports"
_DEFAULT_ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"


@dataclass(frozen=True)
class Cluster:
    """A running cluster and what a user or test needs of it. `node_ip` is None when it has no node."""

    layout: Layout
    binaries: toolchain.Binaries
    node_ip: str | None = NODE_IP
    _state: State = field(repr=False, default_factory=lambda: State(Path()))

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the administrator, for clients on this machine."""
        return self.layout.kubeconfig

    @property
    def kubectl_path(self) -> Path:
        """kubectl of the cluster's own version."""
        return self.binaries.kubectl

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator and return what it printed; raise ClusterError with its message if it fails."""
        return run_kubectl(self.binaries.kubectl, self.kubeconfig, arguments, stdin=stdin, check=check)

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Run Helm against this cluster and return what it printed; raise ClusterError with its message if it fails."""
        argv = [str(self.binaries.helm), f"--kubeconfig={self.kubeconfig}", *arguments]
        environment = _helm_environment(cache.root() / "helm")
        result = subprocess.run(
            argv,
            input=stdin or "",
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=KUBECTL_SECONDS,
        )
        if result.returncode != 0:
            raise ClusterError(f"helm {' '.join(arguments)} failed: {result.stderr.strip()}")
        return result.stdout

    def load(self, image: Image) -> bool:
        """Give an image to the node; False when it already has this content."""
        return images.load(image, self.layout)

    def forward(self, name: str, target: str, port: int = 0) -> int:
        """A loopback port of this machine that leads to `target` (`address:port` of a pod, Service or the node).

        Lives until `down`; asking again for the same name and target answers with the same port while it runs.
        Raises ClusterError when a wished-for port is in use.
        """
        return self._daemons().forward(name, target, port)

    def run(self, name: str, argv: Sequence[str], *sources: Path) -> bool:
        """Run a process beside the cluster until `down`.

        False when it already runs with this command line and this content of the files `sources`; else it is restarted.
        """
        return self._daemons().ensure(name, list(argv), *sources)

    def ended(self, name: str) -> str | None:
        """A sentence with the last words of a process of `run` that ended; None while it runs."""
        process_of_name = self._state.processes.get(name)
        if process_of_name and process_of_name.alive:
            return None
        log = self.layout.log(name)
        return f"{name} ended: {probe.last_words(log)} (whole log: {log})."

    def port(self, name: str) -> int:
        """A loopback port for the process of that name, the same one until `down`; it was free when it was chosen."""
        if name not in self._state.values:
            self._state.set(name, str(probe.free_ports(1)[0]))
        return int(self._state.values[name])

    def _daemons(self) -> Daemons:
        namespace = self.layout.namespace if self.node_ip else None
        return Daemons(self.layout, self._state, namespace)


def _helm_environment(folder: Path) -> dict[str, str]:
    """Environment in which Helm sees this cluster only.

    A user's HELM_KUBEAPISERVER or HELM_KUBECONTEXT would outvote the kubeconfig and lead to another cluster.
    """
    ours = {f"HELM_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    return {name: value for name, value in os.environ.items() if not name.startswith("HELM_")} | ours


def up(progress: Progress, name: str | None = None, *, api_only: bool = False) -> Cluster:
    """Bring the cluster up, or repair what is dead of a running one; quick when nothing is.

    With `api_only` there is a control plane on the loopback address and no node; that needs no root.
    A start from nothing that fails or is interrupted is taken down again. Raises ClusterError.
    """
    where = layout(name)
    refuse_another_mode(where, api_only=api_only)
    if not api_only:
        machine.check_rights()
    disk.require(where.directory, needed_bytes(where, api_only=api_only))
    if not api_only:
        machine.install_packages(progress)
    binaries = toolchain.kubernetes(progress, node=not api_only)
    start = _control_plane_only if api_only else _control_plane_and_node
    cache.writable()
    with _locked(where):
        state = State.load(where.state)
        if _usable(where, state, API_ONLY if api_only else NODE):
            return start(where, state, binaries)
        clear(where)
        try:
            with progress.step("cluster-up", "starting the cluster"):
                return start(where, State(where.state), binaries)
        except BaseException as problem:
            try:
                clear(where)
            except ClusterError as left:
                problem.add_note(f"What was started could not be removed: {left}")
            raise


def needed_bytes(where: Layout, *, api_only: bool = False) -> dict[str, int]:
    """What the disk must have for `up`, by what it is for."""
    running = 0 if where.directory.exists() else RUN_BYTES
    return {"Kubernetes": toolchain.needed_bytes(node=not api_only), "the running cluster": running}


def down(progress: Progress, name: str | None = None) -> None:
    """Stop and remove everything that `up` made, also after a half-finished or killed one. Idempotent."""
    where = layout(name)
    if os.geteuid() != 0 and network.exists(where.namespace):
        raise ClusterError(f"The cluster was started by root: run `{where.command('down')}` as root.")
    if not _left(where):
        progress.note("nothing to remove")
        return
    with _locked(where), progress.step("cluster-down", "removing the cluster"):
        clear(where)


def _locked(where: Layout) -> AbstractContextManager[None]:
    return cache.locked(where.lock, f"the cluster {where.name}", LOCK_SECONDS)


def _left(where: Layout) -> bool:
    """Whether anything of a cluster is on this machine."""
    return (
        where.directory.exists()
        or network.exists(where.namespace)
        or any(root.exists() for root in cgroups.roots(where.name))
        or where.name in host.owners()
        or bool(process.marked(MARK, str(where.directory)))
    )


def status(name: str | None = None) -> list[str]:
    """What runs, one line each; empty when there is no cluster."""
    state = State.load(layout(name).state)
    lines = []
    for process_name, running in state.processes.items():
        extra = f"  {state.values[process_name]}" if process_name in state.values else ""
        lines.append(f"{process_name:20} {'running' if running.alive else 'DEAD':8} pid {running.pid}{extra}")
    return lines


def find(name: str | None = None) -> Cluster | None:
    """The running cluster of this name, without touching it; None when its API server does not run."""
    where = layout(name)
    state = State.load(where.state)
    apiserver = state.processes.get("apiserver")
    if apiserver is None or not apiserver.alive:
        return None
    with_node = state.values.get(_MODE, NODE) == NODE
    return Cluster(where, toolchain.kubernetes(node=with_node), NODE_IP if with_node else None, state)


def has_node(name: str | None = None) -> bool:
    """Whether the cluster was started with a node; True when nothing was started."""
    return State.load(layout(name).state).values.get(_MODE, NODE) == NODE


def starter(name: str | None = None) -> str:
    """The command that started the cluster, and repairs it or goes on where it was interrupted."""
    return layout(name).command("up" if has_node(name) else "up-api")


def refuse_another_mode(where: Layout, *, api_only: bool) -> None:
    """Raise ClusterError when a cluster of the other kind runs here: it would go, with all objects in it."""
    state = State.load(where.state)
    running = state.values.get(_MODE, NODE)
    if running != (API_ONLY if api_only else NODE) and any(each.alive for each in state.processes.values()):
        kind = "a control plane without a node" if running == API_ONLY else "a cluster with a node"
        raise ClusterError(
            f"In {where.directory} runs {kind}, and this would remove it with all objects in it: "
            f"run `{where.command('down')}` first, or choose another name with UMBRA_CLUSTER."
        )


def _usable(where: Layout, state: State, mode: str) -> bool:
    """Whether there is something of the wanted kind that a repair can start from."""
    if not state.processes or state.values.get(_MODE, NODE) != mode:
        return False
    return mode == API_ONLY or network.usable(where.namespace)


def _control_plane_and_node(where: Layout, state: State, binaries: toolchain.Binaries) -> Cluster:
    """Start or repair everything, each thing as soon as what it needs is there."""
    host.claim(where.name, where.directory)
    where.directory.mkdir(parents=True, exist_ok=True)
    state.set(_MODE, NODE)
    if not network.usable(where.namespace):
        network.create(where.namespace)
    cgroups.create(where.name)
    daemons = Daemons(where, state, where.namespace)
    authority = pki.Authority(where.directory / "pki")
    settings = components.ControlPlaneSettings(where.directory, authority, _PORTS, bind="0.0.0.0", advertise=NODE_IP)
    _certify(settings)
    daemons.ensure("etcd", components.etcd(binaries.etcd, settings))
    daemons.ensure("apiserver", components.api_server(binaries.kube_apiserver, settings))
    daemons.ensure("containerd", *node.write_containerd(where, images.pause().tag))
    api_port = daemons.forward("api", f"{NODE_IP}:{_PORTS.api}")
    daemons.wait("containerd", lambda: images.reachable(where), START_SECONDS)
    for image in (images.pause(), images.base()):
        images.load(image, where)
    cluster = Cluster(where, binaries, NODE_IP, state)
    _control(cluster, settings, daemons, f"https://127.0.0.1:{api_port}")
    daemons.ensure("kubelet", *node.write_kubelet(binaries.kubelet, where, settings))
    daemons.ensure("kube-proxy", *node.write_proxy(binaries.kube_proxy, where, settings))
    daemons.wait("the node", lambda: _node_ready(cluster), START_SECONDS)
    daemons.restart_forwards()
    return cluster


def _control_plane_only(where: Layout, state: State, binaries: toolchain.Binaries) -> Cluster:
    """Start or repair a control plane on free loopback ports; the ports are kept for the repair."""
    where.directory.mkdir(parents=True, exist_ok=True)
    state.set(_MODE, API_ONLY)
    if _LOOPBACK_PORTS not in state.values:
        state.set(_LOOPBACK_PORTS, json.dumps(probe.free_ports(5)))
    ports = components.Ports(*json.loads(state.values[_LOOPBACK_PORTS]))
    daemons = Daemons(where, state, None)
    settings = components.ControlPlaneSettings(where.directory, pki.Authority(where.directory / "pki"), ports)
    _certify(settings)
    daemons.ensure("etcd", components.etcd(binaries.etcd, settings))
    daemons.ensure("apiserver", components.api_server(binaries.kube_apiserver, settings))
    cluster = Cluster(where, binaries, None, state)
    _control(cluster, settings, daemons, settings.url)
    return cluster


def _control(cluster: Cluster, settings: components.ControlPlaneSettings, daemons: Daemons, url: str) -> None:
    """Wait for the API server at `url`, then start the controllers and wait until pods can be created."""
    binaries = cluster.binaries
    settings.authority.kubeconfig(cluster.kubeconfig, url, "admin")
    context = probe.client_context(settings.authority)
    daemons.wait("the API server", lambda: probe.healthy(f"{url}/readyz", context), START_SECONDS)
    daemons.ensure("controller-manager", components.controller_manager(binaries.kube_controller_manager, settings))
    daemons.ensure("scheduler", components.scheduler(binaries.kube_scheduler, settings))
    daemons.wait("the controller manager", lambda: probe.healthy(f"{url}{_DEFAULT_ACCOUNT}", context), START_SECONDS)


def _certify(settings: components.ControlPlaneSettings) -> None:
    """Make the certificates once per cluster; the kubeconfig that is written last tells that all are there."""
    if not settings.kubeconfig("scheduler").exists():
        pki.create(settings.authority.directory)
        components.issue_certificates(settings)


def _node_ready(cluster: Cluster) -> bool:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", cluster.layout.node, "-o", path, check=False).strip() == "True"
