"""Store and client in separate containers of a pod: what they must share, and what they need not.

See docs/decisions/0003-client-and-store-in-separate-mount-namespaces.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.processes import session_members, start, stop_session, wait_for
from cpuengine.store import store_environment
from parts import leave_out

pytestmark = pytest.mark.engine

CLIENT = Path(__file__).parent / "store_client.py"
# Two containers of one pod share neither mounts nor /tmp, /run or /dev/shm (unless the pod mounts them in both).
PRIVATE = 'mount --make-rprivate / && for d in /tmp /run /dev/shm; do mount -t tmpfs none $d; done && exec "$@"'


@pytest.fixture
def sockets() -> Iterator[Path]:
    """The one folder that both sides see; short, and not below /tmp."""
    if os.geteuid() != 0:
        leave_out("namespaces", "making them needs root")
    with tempfile.TemporaryDirectory(prefix="umbp-", dir="/var/tmp") as folder:
        yield Path(folder)


def contained(namespaces: str, *argv: str | Path) -> list[str | Path]:
    """Return the command that runs ``argv`` in new namespaces with private temporary folders."""
    return ["unshare", *namespaces.split(), "sh", "-c", PRIVATE, "container", *argv]


@pytest.mark.parametrize("namespaces", ["-m", "-m -i -n"], ids=["mount", "mount, ipc and network"])
def test_only_the_socket_folder_is_shared(engine_env: Environment, sockets: Path, namespaces: str) -> None:
    address = f"unix://{sockets}/umbp.grpc.sock"
    env = os.environ | store_environment(engine_env, 64 << 20)
    server = start(contained(namespaces, engine_env.store_server, address), env=env, log=sockets / "store.log")
    try:
        wait_for((sockets / "umbp.fd.sock").exists, 20.0, "the store opened no socket")
        argv = contained(namespaces, engine_env.python, "-W", "ignore", CLIENT, address)
        done = subprocess.run(argv, env=os.environ | engine_env.engine_env, capture_output=True, text=True, check=True)
    finally:
        stop_session(server.pid)
        server.wait()

    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {"registered": True, "put": True, "got": True, "equal": True, "tmp": [], "shm": []}
    assert "registered shm" in (sockets / "store.log").read_text()


def test_as_pid_1_the_store_ignores_sigterm(engine_env: Environment, sockets: Path) -> None:
    """Why the pod shares its process namespace and the store runs below an agent."""
    address = f"unix://{sockets}/umbp.grpc.sock"
    argv = contained("-m -p -f --kill-child", engine_env.store_server, address)
    env = os.environ | store_environment(engine_env, 64 << 20)
    unshare = start(argv, env=env, log=sockets / "store.log")
    try:
        wait_for((sockets / "umbp.fd.sock").exists, 20.0, "the store opened no socket")
        server = max(session_members(unshare.pid))
        os.kill(server, signal.SIGTERM)
        with pytest.raises(TimeoutError):
            wait_for(lambda: server not in session_members(unshare.pid), 2.0, "alive")
    finally:
        stop_session(unshare.pid, timeout=0.0)
        unshare.wait()
