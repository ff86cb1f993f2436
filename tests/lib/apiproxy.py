"""A fault proxy before a test's control plane, with a certificate of its authority."""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faultproxy import FaultProxy
from localcluster import pki
from localcluster.controlplane import ControlPlane

_NAME = "fault-proxy"


@contextmanager
def proxied(control_plane: ControlPlane) -> Iterator[FaultProxy]:
    """The proxy; whoever trusts the control plane's authority trusts it."""
    authority = pki.Authority(control_plane.directory / "pki")
    certificate, key = authority.certificate(_NAME)
    if not certificate.exists():
        authority.issue(_NAME, f"/CN={_NAME}", ["DNS:localhost", "IP:127.0.0.1"])
    identity = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    identity.load_cert_chain(certificate, key)
    trust = ssl.create_default_context(cafile=str(authority.ca))
    with FaultProxy(control_plane.url, trust=trust, identity=identity) as proxy:
        yield proxy


def detour(kubeconfig: Path, proxy: FaultProxy) -> Path:
    """A copy of a kubeconfig with a token that leads through the proxy."""
    content = json.loads(kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = proxy.url
    path = kubeconfig.with_suffix(".detour")
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return path
