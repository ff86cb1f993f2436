"""Fixtures with a real API server: `control_plane`, its `audit` (one per session) and `namespace` (one per test)."""

import secrets
from collections.abc import Iterator

import pytest

from audit import Audit
from localcluster.controlplane import ControlPlane


@pytest.fixture(scope="session")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Audit:
    """What the API server was asked by the operator."""
    return Audit(tmp_path_factory.mktemp("audit"))


@pytest.fixture(scope="session")
def control_plane(audit: Audit) -> Iterator[ControlPlane]:
    """etcd, API server, controller manager and scheduler for all tests of the session; no node.

    Whoever makes an object that blocks the deletion of its owner must have the right to set the owner's finalizers,
    as clusters of some vendors ask it.
    """
    extra = ["--enable-admission-plugins=OwnerReferencesPermissionEnforcement", *audit.flags]
    with ControlPlane(controllers=True, extra=extra) as running:
        yield running


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace; its removal at the end is only begun, since no later test uses the name again."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
