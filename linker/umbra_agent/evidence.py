"""What the processes of a session were doing when they had to be killed, kept on the pod's disk for later.

One text file per kill in /run/umbra/evidence, the newest five; each at most 256 KiB. It is made before the kill and
takes milliseconds, or as long as py-spy needs (at most PY_SPY_TOTAL_SECONDS) where that program is on PATH.
"""

import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from umbra_agent.disk import write_atomically
from umbra_agent.kernel import read_text
from umbra_agent.report import bounded, say

FILES_KEPT = 5
FILE_LIMIT_BYTES = 256 * 1024
PROCESS_LIMIT = 256
STACK_LIMIT_BYTES = 2048
PYTHON_STACKS_LIMIT_BYTES = 8192
PY_SPY_SECONDS = 5.0
PY_SPY_TOTAL_SECONDS = 20.0


def record(folder: Path, why: str, pids: Sequence[int], lines: Sequence[str]) -> Path | None:
    """Write what can be seen of `pids` and the last log `lines`; return the file, or None when it cannot be written.

    No arguments of a command line are recorded: they may hold a secret.
    """
    now = time.time()
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
    parts = [f"{stamp} {why}", f"{len(pids)} processes"]
    parts += [describe(pid) for pid in pids[:PROCESS_LIMIT]]
    parts += python_stacks(pids[:PROCESS_LIMIT])
    head = "\n".join(parts)
    # The log goes last and gives way to the processes: the container's log has it too.
    text = _cut(f"{head}\n\nlast {len(lines)} log lines:\n" + "\n".join(lines) + "\n", FILE_LIMIT_BYTES)
    path = folder / f"{stamp}.txt"
    if not write_atomically(path, text, 0o600):
        return None
    say(f"What its processes were doing is in {path}.")
    _prune(folder)
    return path


def describe(pid: int, proc: Path = Path("/proc")) -> str:
    """Pid, program, name, state, where it waits in the kernel, and its kernel stack if we may read that."""
    folder = proc / str(pid)
    program = (read_text(folder / "cmdline") or "").partition("\0")[0]
    name = bounded(read_text(folder / "comm") or "?", 64)
    state = (read_text(folder / "stat") or "").rpartition(")")[2].split()[:1] or ["gone"]
    wchan = bounded(read_text(folder / "wchan") or "?", 64)
    text = f"\n{pid} {bounded(Path(program).name, 64) or '-'} ({name}) state {state[0]} wchan {wchan}"
    stack = _cut(read_text(folder / "stack") or "", STACK_LIMIT_BYTES)
    return text + "".join(f"\n    {line}" for line in stack.splitlines())


def python_stacks(pids: Iterable[int]) -> list[str]:
    """The Python stacks of each process, when py-spy is on PATH."""
    program = shutil.which("py-spy")
    if program is None:
        return ["\n(no Python stacks: py-spy is not on PATH)"]
    found, deadline = [], time.monotonic() + PY_SPY_TOTAL_SECONDS
    for pid in pids:
        left = min(PY_SPY_SECONDS, deadline - time.monotonic())
        if left <= 0:
            found.append("\n(no more Python stacks: out of time)")
            break
        found.append(f"\nPython stacks of {pid}:\n{_py_spy(program, pid, left)}")
    return found


def _py_spy(program: str, pid: int, seconds: float) -> str:
    try:
        # Not blocking: a process that waits in a driver could not be stopped for a look, and is about to be killed.
        done = subprocess.run(
            [program, "dump", "--nonblocking", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"(py-spy gave no answer within {seconds:.0f} s)"
    except OSError as error:
        return f"(py-spy could not be started: {error.strerror})"
    return _cut((done.stdout or done.stderr).decode("utf-8", "replace"), PYTHON_STACKS_LIMIT_BYTES)


def _prune(folder: Path) -> None:
    for old in sorted(folder.glob("2*Z.txt"))[:-FILES_KEPT]:
        old.unlink(missing_ok=True)


def _cut(text: str, limit_bytes: int) -> str:
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= limit_bytes else raw[:limit_bytes].decode("utf-8", "ignore") + "\n(cut)\n"
