"""The operator as a process of its own, with exactly the rights that the chart gives it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from localcluster import probe, process
from localcluster.controlplane import ControlPlane
from product import IMAGE, ROOT, template

SYSTEM = "umbra-system"
LEASE = "umbra-operator"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


def rights(namespaces: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The chart's service account, roles and bindings for these namespaces, or for all."""
    objects = template({**IMAGE, "namespaces": list(namespaces)})
    return [body for body in objects if body["kind"] in RIGHTS]


def grant(control_plane: ControlPlane, namespaces: Sequence[str] = ()) -> None:
    """Applies the chart's rights, in the operator's own namespace."""
    if not control_plane.kubectl("get", "namespace", SYSTEM, "--ignore-not-found").strip():
        control_plane.kubectl("create", "namespace", SYSTEM)
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights(namespaces)))


def revoke(control_plane: ControlPlane) -> None:
    """Takes every right away but the one to the lease; the account stays."""
    chosen = ["-l", "app.kubernetes.io/instance=umbra"]
    control_plane.kubectl("delete", "clusterrolebinding", *chosen)
    others = ["--field-selector", f"metadata.namespace!={SYSTEM}"]
    control_plane.kubectl("delete", "rolebinding", "--all-namespaces", *chosen, *others)


def kubeconfig(control_plane: ControlPlane, path: Path) -> Path:
    """A kubeconfig with a token of the chart's service account."""
    token = control_plane.kubectl("-n", SYSTEM, "create", "token", "umbra-operator", "--duration=1h").strip()
    content = json.loads(control_plane.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return path


class OperatorProcess:
    """A running operator; `variables` are added to its environment."""

    def __init__(self, kubeconfig_path: Path, log: Path, variables: Mapping[str, str] | None = None) -> None:
        (port,) = probe.free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self.log = log
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig_path),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'linker'}",
            "UMBRA_OPERATOR_NAMESPACE": SYSTEM,
            "UMBRA_BIND": "127.0.0.1",
            "UMBRA_METRICS_PORT": str(port),
            **(variables or {}),
        }
        self._child: subprocess.Popen[bytes] = process.child([sys.executable, "-m", "umbra_operator"], log, environment)

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def stop(self) -> float:
        """Ends it by SIGTERM and returns how long that took, in seconds."""
        began = time.monotonic()
        self._child.terminate()
        self._child.wait(15)
        return time.monotonic() - began

    def kill(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self._child.send_signal(number)

    def ended(self, seconds: float) -> int:
        """Waits until it has ended by itself, and returns its exit code."""
        return self._child.wait(seconds)

    def answers(self, path: str) -> int:
        """HTTP status of `/healthz` or `/readyz`; 0 while nobody listens."""
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=5) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def metric(self, name: str, *labels: str) -> float:
        """Sum of the series of that name whose labels contain all of these texts."""
        with urllib.request.urlopen(f"{self._url}/metrics", timeout=5) as response:
            lines = response.read().decode().splitlines()
        wanted = [line for line in lines if re.split(r"[{ ]", line)[0] == name and all(each in line for each in labels)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)

    def leads(self) -> bool:
        """Whether it says that it leads."""
        return self.answers("/healthz") != 0 and self.metric("leader_election_master_status") == 1

    def rss_mib(self) -> float:
        """Its resident memory."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024

    def cpu_seconds(self) -> float:
        """CPU time that it took so far, on all cores together."""
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def writes(self) -> int:
        """Requests so far that are not GET and not about its lease."""
        every = self.metric("rest_client_requests_total")
        reads = self.metric("rest_client_requests_total", 'method="GET"')
        leases = self.metric("rest_client_requests_total", 'resource="leases"')
        return int(every - reads - leases + self.metric("rest_client_requests_total", 'method="GET"', "leases"))
