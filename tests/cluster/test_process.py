"""Only processes that we started are ever signalled, whatever has their pid by now."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import process
from localcluster.process import Process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that somebody else started."""
    with subprocess.Popen(["sleep", "60"]) as popen:
        yield popen
        popen.kill()


def test_a_reused_pid_is_not_ours_and_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    now = process.identify(sleeper.pid)
    assert now is not None
    earlier = Process(now.pid, now.start - 1)
    assert not earlier.alive
    process.stop([earlier])
    process.kill([earlier])
    assert now.alive


def test_stop_ends_even_a_process_that_ignores_sigterm(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"
    stubborn = process.daemon([sys.executable, "-c", script], log)
    while "ready" not in log.read_text():
        time.sleep(0.01)
    process.stop([stubborn], grace_seconds=0.2)
    assert not stubborn.alive


def test_a_zombie_counts_as_gone() -> None:
    popen = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while process.start_time(popen.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Path(f"/proc/{popen.pid}").exists()
    assert process.identify(popen.pid) is None
    popen.wait()


def test_daemons_and_their_children_are_found_by_their_mark(tmp_path: Path) -> None:
    mark = str(tmp_path)
    script = "import subprocess; subprocess.run(['sleep', '60'])"
    daemon = process.daemon([sys.executable, "-c", script], tmp_path / "log", {"LOCALCLUSTER_TEST_MARK": mark})
    deadline = time.monotonic() + 5
    while len(found := process.marked("LOCALCLUSTER_TEST_MARK", mark)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert daemon in found
    process.kill(found)
    assert process.marked("LOCALCLUSTER_TEST_MARK", mark) == []


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import sys, os, time; from pathlib import Path; from localcluster import process;"
        "print(process.child(['sleep', '60'], Path(sys.argv[1])).pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parent.parent)}
    argv = [sys.executable, "-c", script, str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = process.identify(int(parent.stdout.readline()))
        assert child is not None
        time.sleep(0.1)  # setpriv sets the signal after the fork
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while child.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not child.alive


def test_ending_the_children_unblocks_a_thread_that_waits_for_one() -> None:
    # In a process of its own: whatever else this one has started must live.
    script = (
        "import subprocess, threading\n"
        "from localcluster import process\n"
        "sleeper = subprocess.Popen(['sleep', '60'])\n"
        "waiter = threading.Thread(target=sleeper.wait)\n"
        "waiter.start()\n"
        "process.end_children()\n"
        "waiter.join(5)\n"
        "print(sleeper.returncode)\n"
    )
    argv = [sys.executable, "-c", script]
    result = subprocess.run(argv, env=_with_path(), capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.strip() == "-15"


def _with_path() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[1])}


def test_a_daemon_makes_files_that_others_can_read_whatever_the_user_has_chosen(tmp_path: Path) -> None:
    """containerd's would otherwise be roots of containers in which a program that is not root finds nothing."""
    made, before = tmp_path / "made", os.umask(0o077)
    try:
        daemon = process.daemon(["sh", "-c", f"mkdir {made}; sleep 60"], tmp_path / "log")
    finally:
        os.umask(before)
    end = time.monotonic() + 20
    while not made.exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.kill([daemon])
    assert stat.filemode(made.stat().st_mode) == "drwxr-xr-x"
