"""Signals of a supervisor: stop requests become a flag, and every signal wakes the main loop at once."""

import os
import select
import signal
from types import FrameType


class Signals:
    """SIGTERM and SIGINT set `stop`; SIGCHLD only wakes `wait`. Make one, in the main thread."""

    def __init__(self) -> None:
        self.stop = False
        self._read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGCHLD, self._on_child)
        # An agent that replaced itself by us blocked these until somebody would listen.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))

    def wait(self, seconds: float) -> None:
        """Sleep for at most `seconds`, less when a signal arrives (also one that came just before the call)."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        if ready:
            os.read(self._read, 4096)

    def _on_stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stop = True

    def _on_child(self, _number: int, _frame: FrameType | None) -> None:
        """A handler must exist for the kernel to interrupt the wait; reaping is the child module's work."""
