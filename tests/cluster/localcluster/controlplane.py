"""A control plane on the loopback address, for tests: a real API server in 3 to 4 seconds, gone when the test ends."""

import os
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from . import components, pki, probe, process, toolchain
from .errors import ClusterError

START_SECONDS = 60.0
ATTEMPTS = 3
# Longer than what any caller lets kubectl itself wait for.
KUBECTL_SECONDS = 300.0


class ControlPlane:
    """etcd and kube-apiserver, and with `controllers=True` kube-controller-manager and kube-scheduler too.

    A context manager. The processes die with the process that started them, even when it is killed.
    `extra` are further flags of kube-apiserver.
    """

    def __init__(
        self, *, controllers: bool = False, binaries: toolchain.ApiBinaries | None = None, extra: Sequence[str] = ()
    ) -> None:
        self._binaries = binaries
        self._controllers = controllers
        self._extra = tuple(extra)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._argv: dict[str, list[str]] = {}
        self._directory: Path | None = None
        self._settings: components.ControlPlaneSettings | None = None

    @property
    def directory(self) -> Path:
        """Temporary folder with certificates, data and `log/`."""
        if self._directory is None:
            raise RuntimeError("the control plane was not started")
        return self._directory

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the cluster administrator."""
        return self._started.kubeconfig("admin")

    @property
    def url(self) -> str:
        """Address of the API server."""
        return self._started.url

    @property
    def pids(self) -> dict[str, int]:
        """Pid of each component by its name."""
        return {name: child.pid for name, child in self._children.items()}

    @property
    def _started(self) -> components.ControlPlaneSettings:
        if self._settings is None:
            raise RuntimeError("the control plane was not started")
        return self._settings

    def __enter__(self) -> "ControlPlane":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until it is ready; a port that somebody else took meanwhile is tried anew."""
        self._binaries = self._binaries or toolchain.api_server()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._start()
                return
            except ClusterError as problem:
                self.stop()
                if attempt == ATTEMPTS or "address already in use" not in str(problem):
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """Stop the processes (API server first, so that it can finish with etcd) and remove the folder."""
        order = ("scheduler", "controller-manager", "apiserver", "etcd")
        for name in order:
            if child := self._children.pop(name, None):
                # Nothing here is worth a graceful end: the data goes with the folder.
                child.kill()
                child.wait()
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = self._settings = None

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator and return what it printed; raise ClusterError with its message if it fails."""
        if self._binaries is None:
            raise RuntimeError("the control plane was not started")
        return run_kubectl(self._binaries.kubectl, self.kubeconfig, arguments, stdin=stdin, check=check)

    def _start(self) -> None:
        binaries = self._binaries
        assert binaries is not None
        self._directory = Path(tempfile.mkdtemp(prefix="umbra-control-plane-"))
        authority = pki.create(self._directory / "pki")
        ports = components.Ports(*probe.free_ports(5))
        settings = components.ControlPlaneSettings(self._directory, authority, ports)
        self._settings = settings
        components.issue_certificates(settings)
        context = probe.client_context(authority)
        self._run("etcd", components.etcd(binaries.etcd, settings))
        self._run("apiserver", components.api_server(binaries.kube_apiserver, settings, self._extra))
        if self._controllers:
            manager, scheduler = toolchain.controllers()
        self._wait("the API server", f"{settings.url}/readyz", context)
        if self._controllers:
            self._run("controller-manager", components.controller_manager(manager, settings))
            self._run("scheduler", components.scheduler(scheduler, settings))
            # Pods are refused until the default ServiceAccount is there.
            account = f"{settings.url}/api/v1/namespaces/default/serviceaccounts/default"
            self._wait("the controller manager", account, context)

    def kill(self, name: str) -> None:
        """Kill one component, such as `apiserver`; its data stays."""
        child = self._children.pop(name)
        child.kill()
        child.wait()

    def revive(self, name: str) -> None:
        """Start a component that was killed, with its data and address, and wait until the API server is ready."""
        self._run(name, self._argv[name])
        context = probe.client_context(pki.Authority(self.directory / "pki"))
        self._wait("the API server", f"{self.url}/readyz", context)

    def _run(self, name: str, argv: list[str]) -> None:
        self._argv[name] = argv
        self._children[name] = process.child(argv, self.directory / "log" / f"{name}.log")

    def _wait(self, what: str, url: str, context: ssl.SSLContext) -> None:
        probe.wait_until(lambda: probe.healthy(url, context), what, START_SECONDS, self._dead)

    def _dead(self) -> str | None:
        for name, child in self._children.items():
            if child.poll() is not None:
                words = probe.last_words(self.directory / "log" / f"{name}.log")
                return f"{name} ended with code {child.returncode}: {words}"
        return None


def run_kubectl(
    kubectl: Path, kubeconfig: Path, arguments: Sequence[str], *, stdin: str | None = None, check: bool = True
) -> str:
    """Run kubectl and return its output; raise ClusterError with its message when it fails and `check` is set."""
    argv = [str(kubectl), f"--kubeconfig={kubeconfig}", *arguments]
    # What a user prefers for kubectl (aliases, default flags) is meant for the user's own clusters.
    environment = {**os.environ, "KUBERC": "off"}
    result = subprocess.run(
        argv, input=stdin or "", env=environment, capture_output=True, text=True, check=False, timeout=KUBECTL_SECONDS
    )
    if check and result.returncode != 0:
        raise ClusterError(f"kubectl {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout
