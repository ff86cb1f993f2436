"""One child process in a session of its own, and everything that descends from it.

The agent is the child subreaper: a descendant whose parent died becomes our child, so "no child left" means that
the whole tree is gone. The engine's own processes are never signalled while its main process lives: it alone knows
how to end them without losing requests or GPU memory.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Exit:
    """How a child ended: an exit code or a signal number (the other is None), at a Unix time in seconds."""

    code: int | None
    signal: int | None
    at: float

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would report: the code itself, or 128 + the signal."""
        return 128 + self.signal if self.signal is not None else self.code or 0

    def __str__(self) -> str:
        return f"signal {self.signal}" if self.signal is not None else f"exit code {self.code}"


def become_subreaper() -> None:
    """Make this process the parent of every orphaned descendant. Raises OSError when the kernel refuses."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER was refused")


class Child:
    """A running child. Start and use it in the main thread only.

    PR_SET_PDEATHSIG is bound to the thread that forks, and only one thread may reap.
    """

    def __init__(
        self, pid: int, started_at: float, output: int, process: "subprocess.Popen[bytes] | None" = None
    ) -> None:
        """A child that runs already: `start` makes one, and an earlier agent may have left one (no `process`)."""
        self.pid = pid
        self.started_at = started_at
        self.output = output
        """Reading end of the pipe that takes its stdout and stderr together."""
        self.exit: Exit | None = None
        self.empty = False
        self._process = process

    @classmethod
    def start(cls, argv: Sequence[str], environment: Mapping[str, str], blocked: Iterable[int] = ()) -> "Child":
        """Start `argv` (no shell). Raises OSError.

        `blocked` signals are blocked in the child from its first instruction on, so that it can wait for them
        whatever threads it makes.
        """
        agent = os.getpid()

        def die_with_agent() -> None:
            # SIGKILL and not SIGTERM: nobody is left who could bound a drain or start the engine again.
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != agent:
                os._exit(1)

        reading, writing = os.pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        try:
            process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_agent,  # noqa: PLW1509 - one system call, made from C: it takes no Python lock
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return cls(process.pid, time.time(), reading, process)

    def reap(self) -> None:
        """Collect all that has ended; sets `exit` for the main process, and `empty` when no descendant is left."""
        while not self.empty:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.empty = True
                return
            if pid == 0:
                return
            if pid == self.pid:
                self._record(status)

    def signal_main(self, number: int) -> None:
        """Signal the main process only. Nothing happens once it was reaped (its pid may belong to another)."""
        if self.exit is None:
            os.kill(self.pid, number)

    def signal_all(self, number: int) -> int:
        """Signal every living descendant; return how many there were."""
        living = descendants(os.getpid())
        for pid in living:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return len(living)

    def _record(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        self.exit = Exit(code if code >= 0 else None, -code if code < 0 else None, time.time())
        if self._process is not None:
            # Tells subprocess that the process was reaped here, so that it neither waits nor warns.
            self._process.returncode = code


def descendants(ancestor: int) -> list[int]:
    """Living (not zombie) descendants of the process `ancestor`, from one pass over /proc."""
    parents: dict[int, int] = {}
    zombies: set[int] = set()
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, hundreds of times a second at worst
        if not entry.isdecimal():
            continue
        try:
            fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we looked
        parents[int(entry)] = int(fields[1])
        if fields[0] in (b"Z", b"X"):
            zombies.add(int(entry))
    found: list[int] = []
    layer = {ancestor}
    while layer:
        layer = {pid for pid, parent in parents.items() if parent in layer}
        found.extend(layer - zombies)
    return found
