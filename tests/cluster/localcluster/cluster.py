"""The cluster of this machine: bring it up, repair it, take it down without a trace."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from . import cache, cgroups, components, forward, host, images, machine, network, node, pki, probe, process, toolchain
from .controlplane import run_kubectl
from .errors import ClusterError
from .images import Image
from .layout import MARK, NODE_IP, Layout, layout
from .progress import Progress
from .state import State

START_SECONDS = 90.0
# Inside its own namespace nobody competes for ports.
_PORTS = components.Ports(api=6443, etcd=2379, etcd_peer=2380, controller_manager=10257, scheduler=10259)
_API_FORWARD = "forward-api"


@dataclass(frozen=True)
class Cluster:
    """A running cluster and what a user or test needs of it."""

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

    @property
    def helm_path(self) -> Path:
        """Helm."""
        return self.binaries.helm

    @property
    def containerd_socket(self) -> Path:
        """Socket of the cluster's own containerd (for `ctr --address`)."""
        return self.layout.containerd_socket

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator and return what it printed; raise ClusterError with its message if it fails."""
        return run_kubectl(self.binaries.kubectl, self.kubeconfig, arguments, stdin=stdin, check=check)

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Run Helm against this cluster and return what it printed; raise ClusterError with its message if it fails."""
        argv = [str(self.binaries.helm), *arguments]
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HELM_CACHE_HOME": str(cache.root() / "helm")}
        result = subprocess.run(argv, input=stdin, env=environment, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise ClusterError(f"helm {' '.join(arguments)} failed: {result.stderr.strip()}")
        return result.stdout

    def load(self, image: Image) -> bool:
        """Give an image to the node; False when it already has this content."""
        return images.load(image, self.layout)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` in the cluster's network namespace."""
        return network.inside(self.layout.namespace, argv)

    def forward(self, name: str, target: str, port: int = 0) -> int:
        """A loopback port of this machine that leads to `target` (`address:port` of a pod, Service or the node).

        Lives until `down`; asking again for the same name and target answers with the same port while it runs.
        Raises ClusterError when a wished-for port is in use.
        """
        return _Daemons(self.layout, self._state).forward(f"forward-{name}", target, port)


class _Daemons:
    """The long-running processes of one cluster."""

    def __init__(self, where: Layout, state: State) -> None:
        self._layout = where
        self._state = state
        self._environment = {MARK: str(where.directory)}

    def ensure(self, name: str, argv: list[str], *, inside: bool = True) -> bool:
        """Start the process unless it runs with this very command line; True when it was started."""
        command = network.inside(self._layout.namespace, argv) if inside else argv
        if self._state.runs(name, command):
            return False
        if old := self._state.processes.get(name):
            process.stop([old])
        started = process.daemon(command, self._layout.log(name), self._environment)
        self._state.record(name, started, command)
        return True

    def forward(self, name: str, target: str, port: int = 0) -> int:
        """See Cluster.forward."""
        known = self._state.processes.get(name)
        recorded = self._state.values.get(name, "").rpartition(" ")
        if known and known.alive and recorded[0] == target and port in (0, int(recorded[2])):
            return int(recorded[2])
        if known:
            process.stop([known])
        # A restarted forward keeps its port if it can: somebody may have written it down.
        wished = port or int(recorded[2] or 0)
        try:
            listener = forward.listen(wished)
        except OSError:
            if port:
                raise ClusterError(f"Port {port} of 127.0.0.1 is in use: choose another one or 0 for any.") from None
            listener = forward.listen()
        with listener:
            number = int(listener.getsockname()[1])
            namespace = f"/run/netns/{self._layout.namespace}"
            argv = [sys.executable, "-m", "localcluster.forward", str(listener.fileno()), namespace, target]
            environment = {**self._environment, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
            started = process.daemon(argv, self._layout.log(name), environment, [listener.fileno()])
        self._state.record(name, started, argv)
        self._state.set(name, f"{target} {number}")
        return number

    def dead(self) -> str | None:
        """A sentence on the first daemon that ended, with its last words."""
        for name, running in self._state.processes.items():
            if not running.alive:
                log = self._layout.log(name)
                return f"{name} ended: {probe.last_words(log)} (whole log: {log})."
        return None


def up(progress: Progress, name: str | None = None) -> Cluster:
    """Bring the cluster up, or repair what is dead of a running one; quick when nothing is.

    A start from nothing that fails or is interrupted is taken down again. Raises ClusterError.
    """
    where = layout(name)
    machine.check(where.directory, progress)
    binaries = toolchain.kubernetes(progress)
    with cache.locked(where.lock):
        state = State.load(where.state)
        fresh = not (state.processes and network.usable(where.namespace))
        if not fresh:
            return _bring_up(where, state, binaries, progress)
        _clear(where)
        try:
            with progress.step("cluster-up", "starting the cluster"):
                return _bring_up(where, State(where.state), binaries, progress)
        except BaseException:
            _clear(where)
            raise


def _bring_up(where: Layout, state: State, binaries: toolchain.Binaries, progress: Progress) -> Cluster:
    del progress
    daemons = _Daemons(where, state)
    host.claim(where.name)
    where.directory.mkdir(parents=True, exist_ok=True)
    if not network.usable(where.namespace):
        network.create(where.namespace)
    cgroups.create(where.name)
    settings = _settings(where)
    daemons.ensure("etcd", components.etcd(binaries.etcd, settings))
    daemons.ensure("apiserver", components.api_server(binaries.kube_apiserver, settings))
    daemons.ensure("containerd", node.write_containerd(where, images.pause().tag))
    api_port = daemons.forward(_API_FORWARD, f"{NODE_IP}:{_PORTS.api}")
    url = f"https://127.0.0.1:{api_port}"
    settings.authority.kubeconfig(where.kubeconfig, url, "admin")
    context = probe.client_context(settings.authority)

    def wait(what: str, path: str) -> None:
        probe.wait_until(lambda: probe.healthy(f"{url}{path}", context), what, START_SECONDS, daemons.dead)

    _wait_for_containerd(where, daemons)
    images.load(images.pause(), where)
    images.load(images.base(), where)
    wait("the API server", "/readyz")
    daemons.ensure("controller-manager", components.controller_manager(binaries.kube_controller_manager, settings))
    daemons.ensure("scheduler", components.scheduler(binaries.kube_scheduler, settings))
    daemons.ensure("kubelet", node.write_kubelet(binaries.kubelet, where, settings))
    daemons.ensure("kube-proxy", node.write_proxy(binaries.kube_proxy, where, settings))
    wait("the controller manager", "/api/v1/namespaces/default/serviceaccounts/default")
    cluster = Cluster(where, binaries, _state=state)
    probe.wait_until(lambda: _node_ready(cluster), "the node", START_SECONDS, daemons.dead)
    return cluster


def _settings(where: Layout) -> components.ControlPlaneSettings:
    """Settings of the control plane; certificates are made once per cluster."""
    folder = where.directory / "pki"
    authority = pki.Authority(folder)
    settings = components.ControlPlaneSettings(where.directory, authority, _PORTS, bind="0.0.0.0", advertise=NODE_IP)
    if not settings.kubeconfig("scheduler").exists():
        pki.create(folder)
        components.issue_certificates(settings)
    return settings


def _wait_for_containerd(where: Layout, daemons: _Daemons) -> None:
    argv = ["ctr", f"--address={where.containerd_socket}", "--connect-timeout=1s", "version"]
    probe.wait_until(
        lambda: subprocess.run(argv, capture_output=True, check=False).returncode == 0,
        "containerd",
        START_SECONDS,
        daemons.dead,
    )


def _node_ready(cluster: Cluster) -> bool:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return cluster.kubectl("get", "node", cluster.layout.node, "-o", path, check=False).strip() == "True"


def down(progress: Progress, name: str | None = None) -> None:
    """Stop and remove everything that `up` made, also after a half-finished or killed one. Idempotent."""
    where = layout(name)
    if os.geteuid() != 0:
        raise ClusterError("The cluster was started by root: run `down` as root.")
    with cache.locked(where.lock), progress.step("cluster-down", "removing the cluster"):
        _clear(where)


def _clear(where: Layout) -> None:
    """The work of `down`, in the order in which each part can no longer bring back the one before."""
    state = State.load(where.state)
    recorded = {name: each for name, each in state.processes.items() if each.alive}
    if kubelet := recorded.pop("kubelet", None):
        process.stop([kubelet])
    process.kill(cgroups.processes(where.name))
    _remove_shim_sockets(where)
    # Nothing of theirs is kept, so they get no more time than a plain exit takes.
    process.stop(recorded.values(), grace_seconds=0.5)
    # What no record names: shims of containerd, and daemons of an `up` that was killed between start and record.
    process.kill(process.marked(MARK, str(where.directory)))
    process.kill(cgroups.processes(where.name))
    _unmount(where.directory)
    network.remove(where.namespace)
    if left := cgroups.remove(where.name):
        raise ClusterError(f"The cgroup {left[0]} is still in use: see `cat {left[0]}/cgroup.procs`.")
    shutil.rmtree(where.directory, ignore_errors=True)
    if where.directory.exists():
        raise ClusterError(f"{where.directory} could not be removed whole: look for mounts in it.")
    host.forget_pods(where.directory, where.name)
    host.release(where.name)


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


def status(name: str | None = None) -> list[str]:
    """What runs, one line each; empty when there is no cluster."""
    where = layout(name)
    state = State.load(where.state)
    lines = []
    for process_name, running in state.processes.items():
        extra = f"  {state.values[process_name]}" if process_name in state.values else ""
        lines.append(f"{process_name:20} {'running' if running.alive else 'DEAD':8} pid {running.pid}{extra}")
    return lines


def find(name: str | None = None) -> Cluster | None:
    """The running cluster of this name, without touching it."""
    where = layout(name)
    state = State.load(where.state)
    apiserver = state.processes.get("apiserver")
    if apiserver is None or not apiserver.alive:
        return None
    return Cluster(where, toolchain.kubernetes(), _state=state)
