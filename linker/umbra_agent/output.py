"""What a child prints: passed on unchanged, remembered in a bounded ring, and shown line by line to whoever looks."""

import collections
import os
import select
import threading
from collections.abc import Callable, Sequence

from umbra_agent.report import bounded

CHUNK_BYTES = 64 * 1024
# Longer than any line that the engine or the store writes on purpose; the rest of a longer one is not looked at.
LINE_LIMIT_BYTES = 16 * 1024
KEPT_LINES = 200
KEPT_LINE_BYTES = 1000
STOP_POLL_SECONDS = 0.2


class Output:
    """Copies `descriptor` to our stdout in a thread until it ends; `notice` gets each line (bytes, without its end).

    A carriage return ends a line too: that is how progress bars overwrite themselves. `lines` may be read from any
    thread. At most KEPT_LINES lines of KEPT_LINE_BYTES bytes are kept: 200 KB.
    """

    def __init__(
        self, descriptor: int, notice: Callable[[bytes], None], tail: bytes = b"", lines: Sequence[str] = ()
    ) -> None:
        """`tail` and `lines` are what an earlier agent had read: the unfinished last line, and the ring."""
        self.descriptor = descriptor
        self._notice = notice
        self._ring: collections.deque[str] = collections.deque(lines, maxlen=KEPT_LINES)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.tail = tail
        self.ended = False

    def start(self) -> None:
        """Begin to read, or go on after `pause`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def pause(self, seconds: float = 2.0) -> bool:
        """Stop reading with nothing lost between pipe and stdout; False when stdout takes nothing for `seconds`."""
        self._stop.set()
        self.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def join(self, seconds: float) -> None:
        """Wait for the last lines: short once every writer has ended."""
        if self._thread is not None:
            self._thread.join(seconds)

    @property
    def lines(self) -> list[str]:
        """The last lines, oldest first, with only printable characters."""
        return list(self._ring)

    def _run(self) -> None:
        while not self._stop.is_set():
            if not select.select([self.descriptor], [], [], STOP_POLL_SECONDS)[0]:
                continue
            chunk = os.read(self.descriptor, CHUNK_BYTES)
            if not chunk:
                self._end()
                return
            _pass_on(chunk)
            self._look(chunk)

    def _look(self, chunk: bytes) -> None:
        *whole, rest = (self.tail + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            self._take(line)
        self.tail = rest[:LINE_LIMIT_BYTES]

    def _end(self) -> None:
        self._take(self.tail)
        self.tail = b""
        os.close(self.descriptor)
        self.ended = True

    def _take(self, line: bytes) -> None:
        if line.strip():
            self._notice(line)
            self._ring.append(bounded(line.decode("utf-8", errors="replace"), KEPT_LINE_BYTES))


def _pass_on(chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        try:
            rest = rest[os.write(1, rest) :]
        except OSError:
            return  # nobody reads our stdout: the child must still not block on its own
