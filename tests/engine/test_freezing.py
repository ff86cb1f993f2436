"""A process that a test has frozen does nothing more: what is asked of it afterwards is not answered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from freezing import freeze

BUSY = """
import hashlib, threading
data = bytes(1 << 20)
def work():
    while True:
        hashlib.sha256(data).digest()
for _ in range(8):
    threading.Thread(target=work).start()
print("ready", flush=True)
"""


def states(pid: int) -> list[str]:
    return [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").iterdir()]


def test_no_thread_runs_any_more() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            for _ in range(50):
                freeze(process.pid)
                assert states(process.pid) == ["T"] * 9
                os.kill(process.pid, signal.SIGCONT)
        finally:
            process.kill()


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read()
        freeze(process.pid)
