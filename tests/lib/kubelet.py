"""Fixtures with a real node: `cluster` (one per session), apart from the cluster that the user runs."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from localcluster import cluster as local
from localcluster import images
from localcluster.cluster import Cluster
from localcluster.progress import Progress

NAME = "test"
# The base image holds nothing, so a container sees the machine's programs.
_MACHINE = ("usr", "lib", "lib64", "bin")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster with one real node for all tests of the session, gone at its end.

    `UMBRA_KEEP_CLUSTER=1` leaves it, for a look at what a failed test did (`UMBRA_CLUSTER=test make down` ends it).
    """
    progress = Progress()
    running = local.up(progress, NAME)
    yield running
    if not os.environ.get("UMBRA_KEEP_CLUSTER"):
        local.down(progress, NAME)


def container(name: str, *command: str, image: str | None = None, **more: Any) -> dict[str, Any]:
    """A container that runs a program of this machine."""
    mounts = [{"name": folder, "mountPath": f"/{folder}", "readOnly": True} for folder in _MACHINE]
    return {
        "name": name,
        "image": image or images.base().pinned,
        "imagePullPolicy": "Never",
        "command": list(command),
        **more,
        "volumeMounts": [*mounts, *more.get("volumeMounts", [])],
    }


def pod(name: str, *containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A pod whose containers run programs of this machine; `more` are further fields of its spec."""
    volumes = [{"name": folder, "hostPath": {"path": f"/{folder}"}} for folder in _MACHINE]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": list(containers),
            **more,
            "volumes": [*volumes, *more.get("volumes", [])],
        },
    }
