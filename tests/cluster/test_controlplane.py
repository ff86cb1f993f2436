"""The control plane of the tests: it serves, and nothing is left of it afterwards."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from localcluster import process, toolchain
from localcluster.controlplane import ControlPlane
from localcluster.errors import ClusterError

pytestmark = pytest.mark.apiserver


def test_serves_a_current_kubernetes_and_refuses_what_the_schema_forbids(control_plane: ControlPlane) -> None:
    version = json.loads(control_plane.kubectl("get", "--raw=/version"))
    assert version["gitVersion"] == f"v{toolchain.KUBERNETES_VERSION}"
    with pytest.raises(ClusterError, match=r"spec\.containers"):
        control_plane.kubectl("create", "-f", "-", stdin='{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}')


def test_controllers_work_in_a_fresh_namespace(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("-n", namespace, "create", "deployment", "web", "--image=example.test/web")
    replica_sets = "jsonpath={.status.conditions[?(@.type=='Progressing')].status}=True"
    control_plane.kubectl("-n", namespace, "wait", "deployment/web", f"--for={replica_sets}", "--timeout=20s")


def test_leaves_no_process_and_no_folder() -> None:
    with ControlPlane() as running:
        started = [process.identify(pid) for pid in running.pids.values()]
        folder = running.directory
        assert all(started)
    assert not any(each.alive for each in started if each)
    assert not folder.exists()


def test_dies_with_the_process_that_started_it() -> None:
    script = textwrap.dedent("""
        import time
        from localcluster.controlplane import ControlPlane
        with ControlPlane() as running:
            print(running.directory, *running.pids.values(), flush=True)
            time.sleep(60)
    """)
    environment = {**os.environ, "PYTHONPATH": str(Path(toolchain.__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        _, *pids = parent.stdout.readline().split()
        started = [process.identify(int(pid)) for pid in pids]
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(each.alive for each in started if each) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(started) == 2
    assert not any(each.alive for each in started if each)


def test_a_server_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(ClusterError, match=r"apiserver ended with code 1: .*no-such-flag"),
        ControlPlane(extra=["--no-such-flag"]),
    ):
        pass
