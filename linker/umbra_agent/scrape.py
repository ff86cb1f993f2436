"""Reads the engine's /metrics over loopback again and again, bounded in size and time, and keeps the last digest."""

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from umbra_agent.digest import Digest, digest
from umbra_agent.session import Session

PERIOD_SECONDS = 10.0
"""As often as the operator asks a pod that is steady."""
ANSWER_SECONDS = 10.0
ANSWER_BYTES = 8 << 20
"""Eight ranks of SGLang 0.5.23 and the linker together say less than 1 MiB."""
PIECE_BYTES = 1 << 16


class ScrapeError(Exception):
    """The exposition could not be read; the sentence says why."""


@dataclass(frozen=True)
class Reading:
    """The last attempt: a digest, or why there is none."""

    pid: int
    """Of the engine that was asked."""
    digest: Digest | None
    problem: str | None


class Scraper(threading.Thread):
    """`session` gives the engine to ask, `serving` whether it is one that should answer."""

    def __init__(
        self, session: Callable[[], Session | None], serving: Callable[[], bool], period_seconds: float = PERIOD_SECONDS
    ) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._serving = serving
        self._period_seconds = period_seconds
        self._latest: Reading | None = None

    def run(self) -> None:
        while True:
            # An engine that has just become ready is asked at once, not after a whole period.
            time.sleep(self._period_seconds if self._look() else min(1.0, self._period_seconds))

    def latest(self, pid: int) -> Reading | None:
        """The last reading of the engine with this pid."""
        reading = self._latest
        return reading if reading is not None and reading.pid == pid else None

    def _look(self) -> bool:
        """Return whether there was an engine to ask."""
        session = self._session()
        if session is None or not self._serving():
            return False
        try:
            text = read(session.launch.port)
            self._latest = Reading(session.child.pid, digest(text, time.time()), None)
        except ScrapeError as error:
            self._latest = Reading(session.child.pid, None, str(error))
        return True


def read(port: int, seconds: float = ANSWER_SECONDS, most_bytes: int = ANSWER_BYTES) -> str:
    """Return /metrics of the engine on loopback. Raises ScrapeError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    end = time.monotonic() + seconds
    late = ScrapeError(f"/metrics on port {port} did not end within {seconds:g} s")
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        if response.status != 200:
            raise ScrapeError(f"/metrics on port {port} answers {response.status}")
        raw = bytearray()
        while piece := response.read1(PIECE_BYTES):
            raw += piece
            if len(raw) > most_bytes:
                raise ScrapeError(f"/metrics on port {port} is longer than {most_bytes} bytes")
            if time.monotonic() > end:
                raise late
    except TimeoutError:
        raise late from None
    except (OSError, http.client.HTTPException) as error:
        raise ScrapeError(f"no /metrics on port {port} ({type(error).__name__})") from None
    finally:
        connection.close()
    return raw.decode("utf-8", "replace")
