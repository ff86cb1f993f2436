"""Fixtures with a real node: `cluster` (one per session), apart from the cluster that the user runs."""

import os
from collections.abc import Iterator

import pytest

from localcluster import cluster as local
from localcluster.cluster import Cluster
from localcluster.progress import Progress

NAME = "test"


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
