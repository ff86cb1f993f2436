"""A launcher killed with SIGKILL in a pod that shares its process namespace: is its session gone too?

The agent relies on the answer (docs/decisions/0002): the container's end takes every process of the container along.
`UMBRA_TRIALS` sets the number of kills; the note was written from 50.
"""

import json
import os
import time
from pathlib import Path

import pytest

from kubelet import container, pod
from localcluster import cgroups, process
from localcluster.cluster import Cluster
from localcluster.process import Process

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(900)]

TRIALS = int(os.environ.get("UMBRA_TRIALS", "5"))
PODS_AT_ONCE = 10
GONE_SECONDS = 2.0

# A child in its own session with children of its own, of which one ignores SIGTERM and one is an orphan.
_PROGRAM = """
import subprocess, sys
child = '''
import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(3):
    subprocess.Popen(['/bin/sleep', 'infinity'])
if os.fork() == 0:
    if os.fork() == 0:
        while True: time.sleep(1)
    os._exit(0)
print('started', flush=True)
while True: time.sleep(1)
'''
subprocess.run([sys.executable, '-c', child, 'session-of-' + sys.argv[1]], start_new_session=True)
"""
SESSION_SIZE = 5


def _session(pid: int) -> int:
    """Session id (field 6 of /proc/<pid>/stat)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])


def _launcher_and_session(cluster: Cluster, name: str) -> tuple[Process, list[Process]]:
    """The launcher of a pod and all processes of the session that it started."""
    launcher: Process | None = None
    leader: Process | None = None
    every = cgroups.processes(cluster.layout.name)
    for each in every:
        try:
            arguments = Path(f"/proc/{each.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # The runtime's own, such as one that began a container: it has ended meanwhile.
        if f"session-of-{name}".encode() in arguments:
            leader = leader if leader and leader.start < each.start else each
        elif name.encode() in arguments:
            launcher = each
    assert launcher is not None
    assert leader is not None
    session = _session(leader.pid)
    assert session != _session(launcher.pid)
    return launcher, [each for each in every if each.alive and _session(each.pid) == session]


def test_no_process_of_the_session_is_left(cluster: Cluster) -> None:
    times: list[float] = []
    while len(times) < TRIALS:
        names = [f"launcher-{len(times) + number}" for number in range(min(PODS_AT_ONCE, TRIALS - len(times)))]
        times += _kill_all(cluster, names)
    print(f"{TRIALS} kills, session gone after median {sorted(times)[TRIALS // 2]:.2f} s, max {max(times):.2f} s")
    assert max(times) <= GONE_SECONDS


def _kill_all(cluster: Cluster, names: list[str]) -> list[float]:
    """Kill the launchers of these pods one after the other; seconds until each one's session was empty."""
    sidecar = container("sidecar", "/bin/sleep", "infinity", restartPolicy="Always")
    pods = [
        pod(
            name, container("main", "/usr/bin/python3", "-c", _PROGRAM, name),
            initContainers=[sidecar], shareProcessNamespace=True,
        )
        for name in names
    ]  # fmt: skip
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": pods}))
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", *(f"pod/{name}" for name in names))
    for name in names:
        _wait_for_log(cluster, name)
    times = [_kill(cluster, name) for name in names]
    phases = cluster.kubectl("get", "pods", *names, "-o", "jsonpath={.items[*].status.phase}{.status.phase}")
    assert set(phases.split()) == {"Running"}, "the pod's sandbox must outlive the launcher, or this proves nothing"
    cluster.kubectl("delete", "pod", *names, "--force", "--grace-period=0")
    return times


def _wait_for_log(cluster: Cluster, name: str) -> None:
    end = time.monotonic() + 30
    while "started" not in cluster.kubectl("logs", name, "-c", "main", check=False):
        assert time.monotonic() < end
        time.sleep(0.1)


def _kill(cluster: Cluster, name: str) -> float:
    launcher, session = _launcher_and_session(cluster, name)
    assert len(session) == SESSION_SIZE
    start = time.monotonic()
    process.kill([launcher])
    while any(each.alive for each in session) and time.monotonic() - start < 10 * GONE_SECONDS:
        time.sleep(0.005)
    return time.monotonic() - start
