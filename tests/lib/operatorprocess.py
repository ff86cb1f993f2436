"""The operator as a process of its own, with exactly the rights that the chart gives it."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from localcluster import probe, process
from localcluster.controlplane import ControlPlane
from product import IMAGE, ROOT, template

SYSTEM = "umbra-system"
RIGHTS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "RoleBinding")


def rights(namespaces: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The chart's service account, roles and bindings for these namespaces, or for all."""
    objects = template({**IMAGE, "namespaces": list(namespaces)})
    return [body for body in objects if body["kind"] in RIGHTS]


def grant(control_plane: ControlPlane, namespaces: Sequence[str] = ()) -> None:
    """Applies the chart's rights."""
    control_plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights(namespaces)))


def revoke(control_plane: ControlPlane) -> None:
    """Takes every right away; the account stays."""
    chosen = ["-l", "app.kubernetes.io/instance=umbra"]
    control_plane.kubectl("delete", "clusterrolebinding", *chosen)
    control_plane.kubectl("delete", "rolebinding", "--all-namespaces", *chosen)


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
        self._metrics = f"http://127.0.0.1:{port}/metrics"
        self.log = log
        environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig_path),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'linker'}",
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

    def writes(self) -> int:
        """Requests so far that are not GET."""
        with urllib.request.urlopen(self._metrics, timeout=5) as response:
            lines = response.read().decode().splitlines()
        wanted = [
            line for line in lines if line.startswith("rest_client_requests_total{") and 'method="GET"' not in line
        ]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in wanted))
