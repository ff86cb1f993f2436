"""Stops a process for certain. Runs in tests, in ranks and inside engines: standard library only."""

import os
import signal
import time
from pathlib import Path


def freeze(pid: int) -> None:
    """Stop every thread of a process, or find it ended, before the caller goes on.

    On a busy machine a process goes on until the one thread runs that was chosen to take the signal.
    """
    os.kill(pid, signal.SIGSTOP)
    while not _stopped(pid):
        time.sleep(0.001)


def _stopped(pid: int) -> bool:
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return False  # A thread has ended meanwhile.
    return set(states) <= {"T", "Z", "X"}
