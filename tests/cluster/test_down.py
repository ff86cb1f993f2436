"""After `down` the machine is as it was: after a whole life, and after an `up` that was killed half-way."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet import container, pod, reserved_name
from localcluster import cgroups, host, process
from localcluster import cluster as local
from localcluster.errors import ClusterError
from localcluster.layout import MARK, Layout, layout
from localcluster.progress import Progress
from localcluster.teardown import clear

pytestmark = pytest.mark.kubelet


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """Name of the cluster that comes and goes here."""
    with reserved_name("gone") as chosen:
        yield chosen


def _machine(name: str) -> dict[str, object]:
    """What a cluster could leave behind."""
    where = layout(name)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    mine: dict[str, object] = {
        "processes": process.marked(MARK, str(where.directory)) + cgroups.processes(where.name),
        "mounts": [line for line in mounts if f" {where.directory}" in line],
        "namespace": Path("/run/netns", where.namespace).exists(),
        "cgroups": [root for root in cgroups.roots(where.name) if root.exists()],
        "folder": where.directory.exists(),
        "logs": [
            path for path in Path("/var/log/containers").glob("*") if path.readlink().is_relative_to(where.directory)
        ],
        "networks": list(Path("/var/lib/cni/results").glob(f"{where.name}-*")),
        "sockets": [path for path in Path("/run/containerd/s").glob("*") if host.is_dead_socket(path)],
        "links": links.count("\n"),
    }
    if host.owners():
        return mine  # another cluster runs, and the machine stays changed for it
    shared = {
        "sysctls": {each: host.sysctl(each) for each in host.SYSCTLS},
        "folders": {each for each in host.FOLDERS if Path(each).exists()},
    }
    return mine | shared


def _differences(name: str, before: dict[str, object]) -> dict[str, tuple[object, object]]:
    after = _machine(name)
    return {part: (before[part], after[part]) for part in before.keys() & after if before[part] != after[part]}


def test_down_leaves_nothing_of_a_cluster_with_running_pods(name: str) -> None:
    before = _machine(name)
    running = local.up(Progress(), name)
    sidecar = container("sidecar", "/bin/sleep", "infinity", restartPolicy="Always")
    main = container("main", "/bin/sleep", "infinity", volumeMounts=[{"name": "memory", "mountPath": "/memory"}])
    body = pod("left", main, initContainers=[sidecar], volumes=[{"name": "memory", "emptyDir": {"medium": "Memory"}}])
    running.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    running.kubectl("wait", "pod/left", "--for=condition=Ready", "--timeout=60s")
    running.forward("api-again", "10.244.0.1:6443")
    local.down(Progress(), name)
    assert _differences(name, before) == {}
    local.down(Progress(), name)
    assert _differences(name, before) == {}


@pytest.mark.parametrize("seconds", [0.4, 1.5, 3.0])
def test_down_cleans_up_after_an_up_that_was_killed(name: str, seconds: float) -> None:
    before = _machine(name)
    environment = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[1]), "UMBRA_CLUSTER": name}
    with subprocess.Popen(
        [sys.executable, "-m", "localcluster", "up"],
        env=environment,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as half:
        time.sleep(seconds)
        half.send_signal(signal.SIGKILL)
    local.down(Progress(), name)
    assert _differences(name, before) == {}


def test_an_interrupted_up_cleans_up_by_itself(name: str) -> None:
    before = _machine(name)
    environment = {**os.environ, "PYTHONPATH": str(Path(local.__file__).parents[1]), "UMBRA_CLUSTER": name}
    # A shell lets what it runs in the background ignore interrupts, and so would `up` if the tests run there.
    argv = ["env", "--default-signal=INT", sys.executable, "-m", "localcluster", "up"]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True) as half:
        time.sleep(1.5)
        half.send_signal(signal.SIGINT)
        _, said = half.communicate(timeout=60)
    assert half.returncode == 130
    assert "interrupted" in said
    assert _differences(name, before) == {}


def test_the_control_plane_alone_comes_and_goes(name: str) -> None:
    before = _machine(name)
    running = local.up(Progress(), name, api_only=True)
    assert "default" in running.kubectl("get", "namespaces")
    assert local.up(Progress(), name, api_only=True).kubectl("version")
    assert running.node_ip is None
    local.down(Progress(), name)
    assert _differences(name, before) == {}


def test_down_with_nothing_there_says_so(name: str) -> None:
    said = io.StringIO()
    local.down(Progress(said), name)
    assert said.getvalue().strip().endswith("nothing to remove")


def test_what_is_mounted_in_the_folder_and_cannot_be_unmounted_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, where = tmp_path / "disk", Layout("umbra-kept", tmp_path / "cluster", tmp_path / "log")
    point = where.directory / "with spáce"
    point.mkdir(parents=True)
    disk.mkdir()
    (disk / "photo").touch()
    subprocess.run(["mount", "--bind", disk, point], check=True)
    refusing = tmp_path / "bin" / "umount"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\nexit 32\n")
    refusing.chmod(0o755)
    try:
        with monkeypatch.context() as context:
            context.setenv("UMBRA_CACHE", str(tmp_path))
            context.setenv("PATH", f"{refusing.parent}:{os.environ['PATH']}")
            with pytest.raises(ClusterError, match=r"with spáce cannot be unmounted, so .*/cluster was left as it is"):
                clear(where)
        assert (disk / "photo").exists()
    finally:
        subprocess.run(["umount", point], check=True)
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path))
    clear(where)
    assert not where.directory.exists()
    assert (disk / "photo").exists()
