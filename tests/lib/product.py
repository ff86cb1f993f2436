"""What a user installs: the CRDs on the test API server (fixture `crds`), and the chart as Helm renders it."""

import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcluster import toolchain
from localcluster.controlplane import ControlPlane
from localcluster.errors import ClusterError

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "umbra"
CRDS = sorted((ROOT / "crds").glob("*.yaml"))
IMAGE = {"image.repository": "example.test/umbra-operator", "image.digest": f"sha256:{'0' * 64}"}


def install_crds(control_plane: ControlPlane) -> None:
    """Applies crds/ by server-side apply, as the documentation says, and waits until they serve."""
    for path in CRDS:
        control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    names = [f"crd/{yaml.safe_load(path.read_text())['metadata']['name']}" for path in CRDS]
    control_plane.kubectl("wait", "--for=condition=Established", *names, "--timeout=30s")
    # Discovery and OpenAPI follow a moment after that.
    for _ in range(50):
        try:
            control_plane.kubectl("explain", "k3")
            control_plane.kubectl("explain", "k3p")
        except ClusterError:
            time.sleep(0.2)
        else:
            return
    raise ClusterError("The CRDs are established, but the API server does not serve them after 10 s.")


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with our CRDs."""
    install_crds(control_plane)
    return control_plane


def create(control_plane: ControlPlane, body: Mapping[str, Any], *arguments: str) -> dict[str, Any]:
    """Creates an object; raises ClusterError with the API server's sentence."""
    created = control_plane.kubectl("create", "-o", "json", "-f", "-", *arguments, stdin=json.dumps(body))
    found: dict[str, Any] = json.loads(created)
    return found


def refusal(control_plane: ControlPlane, body: Mapping[str, Any]) -> str | None:
    """Why the API server would refuse to create the object; None when it would not."""
    try:
        create(control_plane, body, "--dry-run=server", "--validate=strict")
    except ClusterError as error:
        return str(error)
    return None


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the real Helm."""
    return subprocess.run([str(toolchain.helm()), *arguments], capture_output=True, text=True, check=False, timeout=120)


def template(values: Mapping[str, Any], *arguments: str) -> list[dict[str, Any]]:
    """The objects of the chart with these values; raises ValueError with Helm's message."""
    settings = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    result = helm("template", "umbra", str(CHART), "--namespace", "umbra-system", *settings, *arguments)
    if result.returncode:
        raise ValueError(result.stderr)
    return [body for body in yaml.safe_load_all(result.stdout) if body]
