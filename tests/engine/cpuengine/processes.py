"""Starting and stopping test servers: nothing outlives the process that started it, nothing is stopped by name."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends. Call it in a child, right after the fork."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(argv: list[str | Path], *, env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start ``argv`` in its own session, its output in ``log``, bound to the life of the calling process."""
    with log.open("wb") as output:
        return subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509  (no threads of ours hold locks at this point)
        )


def session_members(leader: int) -> list[int]:
    """Return the pids of the session that ``leader`` started, without zombies."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                members.append(int(entry.name))
    return members


def stop_session(leader: int, *, timeout: float = 15.0) -> list[int]:
    """Stop every process of a session: SIGTERM, then SIGKILL after ``timeout`` seconds.

    Returns the pids that needed SIGKILL.
    """
    _signal(session_members(leader), signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: not session_members(leader), timeout, "")
    left = session_members(leader)
    _signal(left, signal.SIGKILL)
    wait_for(lambda: not session_members(leader), 10.0, f"processes {left} survive SIGKILL")
    return left


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for(condition: Callable[[], bool], timeout: float, problem: str, *, every: float = 0.05) -> float:
    """Poll ``condition`` and return the seconds it took.

    Raises:
        TimeoutError: ``problem``, when ``timeout`` seconds have passed.
    """
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > timeout:
            raise TimeoutError(f"{problem} (waited {timeout:.0f} s)")
        time.sleep(every)
    return time.monotonic() - begin


def remove_dead_shared_memory(folder: Path = Path("/dev/shm")) -> list[Path]:
    """Remove what killed engines left of their load reports; return it.

    SGLang never removes these files, and their names carry no pid: one that no process has open is of no use to any.
    """
    # Listed first: whatever appears meanwhile is somebody's.
    files = {str(path): path for path in folder.glob("sglang_loads_*.shm") if path.stat().st_uid == os.geteuid()}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for line in (process / "maps").read_text().splitlines():
                files.pop(line.partition("/")[1] + line.partition("/")[2], None)
        for descriptor in process.glob("fd/*"):
            with contextlib.suppress(OSError):
                files.pop(str(descriptor.readlink()), None)
    for path in files.values():
        path.unlink(missing_ok=True)
    return list(files.values())


def free_port() -> int:
    """Return a TCP port that is free on 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
