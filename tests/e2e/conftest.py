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
def installed(cluster: Cluster) -> Iterator[Stack]:
    """Operator and profile; no deployment is left at the end."""
    yield product.install(cluster, cpuengine.environment(), Progress())
    cluster.kubectl("-n", product.NAMESPACE, "delete", "k3deployment", "--all", "--wait=true")


@pytest.fixture
def stack(installed: Stack) -> Stack:
    """The demo's deployment, Ready, whatever an earlier test did to it; in its store may be anything."""
    wanted = profile.deployment(NAME, installed.profile_name, installed.environment)
    product.apply(installed.cluster, wanted)
    product.wait_ready(installed, Progress())
    return installed


@pytest.fixture
def engine(stack: Stack) -> Engine:
    """The demo's engine through its Service."""
    return product.engine(stack)
