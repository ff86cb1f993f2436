"""The whole product on the session's real node."""

from collections.abc import Iterator

import pytest

import cpuengine
from localcluster.cluster import Cluster
from localcluster.progress import Progress
from localstack import product, profile
from localstack.engine import Engine
from localstack.product import NAME, Stack


@pytest.fixture(scope="session")
def stack(cluster: Cluster) -> Iterator[Stack]:
    """Operator, profile and one deployment that is Ready."""
    progress = Progress()
    installed = product.install(cluster, cpuengine.environment(), progress)
    product.apply(cluster, profile.deployment(NAME, installed.profile_name, installed.environment))
    product.wait_ready(installed, progress)
    yield installed
    cluster.kubectl("-n", product.NAMESPACE, "delete", "k3deployment", "--all", "--wait=true")


@pytest.fixture
def engine(stack: Stack) -> Engine:
    """The demo's engine through its Service."""
    return product.engine(stack)
