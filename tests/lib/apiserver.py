"""Fixtures with a real API server: `control_plane` (one per session) and `namespace` (one per test)."""

import secrets
from collections.abc import Iterator

import pytest

from localcluster.controlplane import ControlPlane


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd, API server, controller manager and scheduler for all tests of the session; no node."""
    with ControlPlane(controllers=True) as running:
        yield running


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A new namespace; its removal at the end is only begun, since no later test uses the name again."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
