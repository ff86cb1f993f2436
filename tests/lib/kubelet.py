"""Fixtures with a real node: `cluster` (one per session), apart from the cluster that the user runs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localcluster import cache, images
from localcluster import cluster as local
from localcluster.cluster import Cluster
from localcluster.progress import Progress

# The base image holds nothing, so a container sees the machine's programs.
_MACHINE = ("usr", "lib", "lib64", "bin")
_SESSIONS = 9


@contextmanager
def reserved_name(name: str) -> Iterator[str]:
    """A cluster name that no other test session uses: `name`, else `name2` and so on."""
    for number in range(1, _SESSIONS + 1):
        chosen = name if number == 1 else f"{name}{number}"
        lock = cache.root() / f".session-{chosen}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield chosen
            return
    raise RuntimeError(f"{_SESSIONS} test sessions run already: wait for one of them")


@pytest.fixture(scope="session")
def cluster_name() -> Iterator[str]:
    """Name of the session's cluster; `test` unless another session uses that."""
    with reserved_name("test") as name:
        yield name


@pytest.fixture(scope="session")
def cluster(cluster_name: str) -> Iterator[Cluster]:
    """A cluster with one real node for all tests of the session, gone at its end.

    `UMBRA_KEEP_CLUSTER=1` leaves it, for a look at what a failed test did (`UMBRA_CLUSTER=test make down` ends it).
    """
    progress = Progress()
    # What a killed session left would decide over this one's results.
    local.down(progress, cluster_name)
    running = local.up(progress, cluster_name)
    yield running
    if not os.environ.get("UMBRA_KEEP_CLUSTER"):
        local.down(progress, cluster_name)


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
