"""A short-lived process that is asked one question, while the engine or the store goes on running."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VERDICT = "umbra-verdict: "
ACCEPTED = f"{VERDICT}accepted"
REFUSED = f"{VERDICT}refused"
OUTPUT_LIMIT_BYTES = 32 * 1024
LOWEST_PRIORITY = 19
# The kernel kills this process first when memory runs out, instead of an engine rank.
FIRST_OOM_VICTIM = "1000"


@dataclass(frozen=True)
class Verdict:
    """`accepted` is None when the process died or was too slow before it answered. `lines` is what it printed."""

    accepted: bool | None
    lines: tuple[str, ...]

    @property
    def last_line(self) -> str:
        """The last line before the answer: where a parser or a traceback says what is wrong."""
        return self.lines[-1] if self.lines else ""


class Trial:
    """Runs `argv` at the lowest priority for at most `seconds`. Start it and call `poll` in the main thread.

    The answer comes through the process's output, not its exit status: `Child.reap` collects every process.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        """Raises OSError when `argv` cannot be started."""
        self._deadline = time.monotonic() + seconds
        self._read, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writing, True)
        try:
            self._process = subprocess.Popen(
                argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError:
            os.close(self._read)
            raise
        finally:
            os.close(writing)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, LOWEST_PRIORITY)
            Path(f"/proc/{self._process.pid}/oom_score_adj").write_text(FIRST_OOM_VICTIM)
        self._output = b""
        self._verdict: Verdict | None = None

    def poll(self) -> Verdict | None:
        """None while the question is open. Never blocks."""
        if self._verdict is None:
            ended = self._drain()
            lines = [line.strip() for line in self._output.decode("utf-8", "replace").splitlines() if line.strip()]
            answers = [line for line in lines if line in (ACCEPTED, REFUSED)]
            if answers or ended or time.monotonic() >= self._deadline:
                accepted = answers[-1] == ACCEPTED if answers else None
                said = tuple(line for line in lines if not line.startswith(VERDICT))
                self._finish(Verdict(accepted, said))
        return self._verdict

    def cancel(self) -> None:
        """End the process; the question stays open."""
        if self._verdict is None:
            self._finish(Verdict(None, ()))

    def _drain(self) -> bool:
        """Read what is there; True when every writer has ended."""
        while True:
            try:
                chunk = os.read(self._read, OUTPUT_LIMIT_BYTES)
            except BlockingIOError:
                return False
            if not chunk:
                return True
            self._output = (self._output + chunk)[-OUTPUT_LIMIT_BYTES:]

    def _finish(self, verdict: Verdict) -> None:
        self._verdict = verdict
        os.close(self._read)
        # Its own session: whatever it started ends with it. A group of zombies alone takes the signal too.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
