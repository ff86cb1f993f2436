"""Processes that we start, known by pid and start time, so that a reused pid is never taken for ours."""

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import ClusterError

POLL_SECONDS = 0.02
# containerd makes the root folders of containers by it: after a user's 077 no program in them could be read.
_UMASK = 0o022


@dataclass(frozen=True)
class Process:
    """A process: its pid, and its start in clock ticks since boot (field 22 of /proc/<pid>/stat)."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return start_time(self.pid) == self.start


def start_time(pid: int) -> int | None:
    """Start of a running process in clock ticks since boot; None when there is none, or only a zombie."""
    try:
        # The command name in field 2 may hold spaces and brackets; what follows its last bracket is regular.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def identify(pid: int) -> Process | None:
    """The process that has this pid now, if it runs."""
    start = start_time(pid)
    return None if start is None else Process(pid, start)


def child(argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a process that dies with us, its output in `log`.

    `setpriv` sets the parent-death signal after the fork: no Python code has to run between fork and exec.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )


def daemon(
    argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()
) -> Process:
    """Start a process that outlives us, in its own session, its output appended to `log`; it inherits `descriptors`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,
            umask=_UMASK,
            cwd="/",
            pass_fds=tuple(descriptors),
        )
    # Nobody waits for a daemon here; without this Python would warn when the handle is collected.
    popen.returncode = 0
    found = identify(popen.pid)
    if found is None:
        raise ClusterError(f"{argv[0]} ended at once: read {log}.")
    return found


def marked(name: str, value: str) -> list[Process]:
    """All processes whose environment at their start held `name=value`: ours even when no record of them survived."""
    wanted = f"{name}={value}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0") and (process := identify(int(entry.name))):
                found.append(process)
    return found


def stop(processes: Iterable[Process], grace_seconds: float = 10.0) -> None:
    """End the processes: SIGTERM, then SIGKILL to those that still run after the grace period.

    Raises ClusterError when one survives even that (5 s later).
    """
    left = [process for process in processes if _signal(process, signal.SIGTERM)]
    left = _wait(left, grace_seconds)
    kill(left)


def kill(processes: Iterable[Process]) -> None:
    """End the processes at once (SIGKILL). Raises ClusterError when one still runs 5 s later."""
    left = _wait([process for process in processes if _signal(process, signal.SIGKILL)], 5.0)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise ClusterError(f"Processes {pids} do not end even when killed; they probably wait for the kernel.")


def _signal(process: Process, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; False when it is gone.

    The pidfd is opened first and the start time compared after: from then on the pid cannot be reused unseen.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not process.alive:
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise ClusterError(f"Process {process.pid} belongs to another user: run this as root.") from None
    finally:
        os.close(handle)
    return True


def _wait(processes: list[Process], seconds: float) -> list[Process]:
    """Wait until the processes are gone; return those that are not after `seconds`."""
    end = time.monotonic() + seconds
    left = processes
    while left and time.monotonic() < end:
        for process in left:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        left = [process for process in left if process.alive]
        if left:
            time.sleep(POLL_SECONDS)
    return left


def end_children() -> None:
    """Ask every direct child of this process to end: what waits for one of them then fails instead of going on."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
