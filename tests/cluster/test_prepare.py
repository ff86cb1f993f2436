"""A newcomer learns what is wrong before minutes of building, not after."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import cpuengine
from localcluster import machine, toolchain
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from localstack import prepare

_FIRST_FAILURE = """
import subprocess
import time
from localcluster import golang, machine, toolchain
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from localstack import prepare
import cpuengine

def unreachable():
    raise cpuengine.EngineEnvironmentError("the registry cannot be reached")

def endless(progress):
    time.sleep(1)  # the other build has failed by now
    code = subprocess.run(["sleep", "60"], check=False).returncode
    raise ClusterError(f"ended with {code}")

machine.check_rights = lambda: None
machine.install_packages = lambda progress: None
golang.check_go = prepare.find_interpreter = lambda: "there"
prepare._images = lambda progress: None
cpuengine.environment = unreachable
toolchain.kubernetes = endless
try:
    prepare.prepare(Progress())
except cpuengine.EngineEnvironmentError as error:
    print(error)
"""


@pytest.fixture
def short_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache whose path is short enough for a cluster."""
    with tempfile.TemporaryDirectory(prefix="umbra-") as folder:
        monkeypatch.setenv("UMBRA_CACHE", folder)
        yield Path(folder)


def test_missing_rights_are_told_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object) -> None:
        pytest.fail("something was built")

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(cpuengine, "environment", built)
    monkeypatch.setattr(toolchain, "kubernetes", built)
    with pytest.raises(ClusterError, match="needs root"):
        prepare.prepare(Progress())


def test_the_disk_is_asked_once_for_all_parts(monkeypatch: pytest.MonkeyPatch, short_cache: Path) -> None:
    def built(*_: object) -> None:
        pytest.fail("something was built")

    # Enough for each part, and not for all.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9 * 1024**3))
    monkeypatch.setattr(machine, "check_rights", lambda: None)
    monkeypatch.setattr(machine, "install_packages", built)
    monkeypatch.setattr(cpuengine, "environment", built)
    monkeypatch.setattr(toolchain, "kubernetes", built)
    parts = r"\(Kubernetes 7\.0, the running cluster 2\.0, the engine 2\.8, the images 0\.5\)"
    with pytest.raises(ClusterError, match=rf"9\.0 GB free and 12\.3 are needed {parts}"):
        prepare.prepare(Progress())


def test_the_first_failure_ends_the_other_builds() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", _FIRST_FAILURE]
    result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.strip() == "the registry cannot be reached"
