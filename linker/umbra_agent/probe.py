"""Loopback probes: does the engine answer, does the store answer. Each returns None when it does, else a reason."""

import http.client
import socket
import threading
from collections.abc import Callable
from pathlib import Path

# Client preface and an empty SETTINGS frame: a live gRPC server answers with its own SETTINGS, a frozen one is silent.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def http_ready(port: int, timeout_seconds: float, path: str = "/ready") -> str | None:
    """GET `path` on loopback; None when the status is 200 within `timeout_seconds` (per socket operation)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except TimeoutError:
        return f"no answer on port {port} within {timeout_seconds:g} s"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer on port {port} ({type(error).__name__})"
    finally:
        connection.close()
    return None if status == 200 else f"{path} on port {port} answers {status}"


def http2_alive(path: Path, timeout_seconds: float) -> str | None:
    """Send the HTTP/2 preface to the unix socket `path`; None when bytes come back within `timeout_seconds`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_seconds)
        try:
            connection.connect(str(path))
            connection.sendall(HTTP2_PREFACE)
            if connection.recv(64):
                return None
        except TimeoutError:
            return f"the socket gave no bytes within {timeout_seconds:g} s: the process is frozen or overloaded"
        except OSError as error:
            return f"the socket does not answer ({error.strerror or type(error).__name__})"
    return "the socket was closed without an answer"


class Poll(threading.Thread):
    """Probes again and again in a thread of its own, so that a slow answer never delays the supervisor.

    `latest` is (token, reason). The token is what `token()` gave before the probe began (None: nothing to probe): it
    tells an answer of an earlier child from one of the present child. `period()` gives the wait in seconds.
    """

    def __init__(
        self, probe: Callable[[], str | None], token: Callable[[], object], period: Callable[[], float]
    ) -> None:
        super().__init__(daemon=True)
        self._probe = probe
        self._token = token
        self._period = period
        self._wake = threading.Event()
        self.latest: tuple[object, str | None] = (None, "not probed yet")

    def run(self) -> None:
        while True:
            token = self._token()
            if token is not None:
                self.latest = (token, self._probe())
            self._wake.wait(self._period())
            self._wake.clear()

    def wake(self) -> None:
        """Probe now instead of after the period."""
        self._wake.set()
