"""Why the engine ended: from its exit status, the last lines of its log and the kernel's out-of-memory counter."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from umbra_agent.child import Exit
from umbra_agent.kernel import cgroup_files, read_text
from umbra_agent.report import bounded

DETAIL_LIMIT_BYTES = 200

Cause = Literal["OutOfMemory", "GPUError", "Registration", "CacheLoad", "Watchdog", "ChildFailed", "Signal", "ExitCode"]

# In the order in which they explain an end: a dead rank also makes its parent say that a child failed.
_PATTERNS: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (
        "GPUError",
        re.compile(
            r"HIP error|\bhipError\w+|HSA_STATUS_ERROR|Memory access fault by GPU|HIP out of memory"
            r"|CUDA error|HW Exception by GPU"
        ),
    ),
    (
        "Registration",
        re.compile(r"Failed to register a GPU KV buffer|hipHostRegister of .* failed|register_memory.*fail", re.I),
    ),
    ("Watchdog", re.compile(r"watchdog timeout", re.I)),
    ("CacheLoad", re.compile(r"External KV cache load failed|Umbra linker refuses to start")),
    ("ChildFailed", re.compile(r"SIGQUIT received|Received sigquit from a child|one child failed")),
)
_SENTENCES: dict[Cause, str] = {
    "OutOfMemory": "the kernel killed a process of this container for memory: raise the engine's memory limit",
    "GPUError": "the GPU runtime reported an error",
    "Registration": "GPU memory could not be registered with the store",
    "CacheLoad": "the cache linker failed",
    "Watchdog": "the engine's watchdog found its scheduler stuck",
    "ChildFailed": "a process of the engine failed",
    "Signal": "a signal ended it",
    "ExitCode": "it ended by itself",
}
# The line that says what went wrong in a Python program: "ValueError: ...", "RuntimeError: ...", "error: ...".
_ERROR_LINE = re.compile(r"(?:^|\s|\.)\w*(?:Error|Exception)\b: |\berror: ", re.ASCII)


@dataclass(frozen=True)
class Explanation:
    """A cause and one sentence with the line that shows it, together at most DETAIL_LIMIT_BYTES bytes."""

    cause: Cause
    detail: str


def explain(ended: Exit, lines: Sequence[str], oom_kills: int, asked: bool) -> Explanation:
    """Explain an end. `lines` are the last ones, `oom_kills` how many kills happened during this engine's life.

    `asked`: we stopped it; then the log is not searched, since every shutdown prints alarming lines.
    """
    if oom_kills > 0:
        return Explanation("OutOfMemory", _detail("OutOfMemory", _last(lines)))
    if not asked:
        for cause, pattern in _PATTERNS:
            hits = [line for line in lines if pattern.search(line)]
            if hits:
                # The first one: what follows are other ranks that fail because of it.
                return Explanation(cause, _detail(cause, _reason_line(lines) if cause == "ChildFailed" else hits[0]))
    if ended.signal is not None:
        line = "" if asked else _last(lines)
        return Explanation("Signal", _detail("Signal", line, f"signal {signal_name(ended.signal)} ended it"))
    line = "" if asked else _reason_line(lines)
    return Explanation("ExitCode", _detail("ExitCode", line, f"it ended with exit code {ended.code}"))


def signal_name(number: int) -> str:
    """SIGKILL for 9; the number for what has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def oom_kills(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int | None:
    """How many processes the kernel has killed in this container's memory cgroup, or None when it does not say.

    cgroup v2: `oom_kill` in memory.events; v1: `oom_kill` in memory.oom_control (kernel 4.13 and later).
    """
    for path in cgroup_files(root, membership, v2="memory.events", v1="memory.oom_control"):
        for line in (read_text(path) or "").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdecimal():
                return int(count)
    return None


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else ""


def _reason_line(lines: Sequence[str]) -> str:
    """The last line that names an error, else the last line."""
    return next((line for line in reversed(lines) if _ERROR_LINE.search(line)), _last(lines))


def _detail(cause: Cause, line: str, sentence: str | None = None) -> str:
    text = sentence or _SENTENCES[cause]
    return bounded(f"{text}: {line}" if line else text, DETAIL_LIMIT_BYTES)
