"""Waiting for a server: is it healthy yet, and if it died, what did it say last?"""

import http.client
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from .errors import ClusterError
from .pki import Authority

INTERVAL_SECONDS = 0.05


def free_ports(count: int) -> list[int]:
    """Different TCP ports of 127.0.0.1 that nobody uses now; somebody may take one before you do."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def client_context(authority: Authority) -> ssl.SSLContext:
    """TLS as the cluster's administrator."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(*map(str, authority.certificate("admin")))
    return context


def get(url: str, context: ssl.SSLContext, timeout_seconds: float = 2.0) -> tuple[int, bytes]:
    """One GET; (0, b"") when nobody answers."""
    parts = urlsplit(url)
    connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, context=context, timeout=timeout_seconds)
    try:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def healthy(url: str, context: ssl.SSLContext) -> bool:
    """Whether a GET of this URL answers 200."""
    return get(url, context)[0] == 200


def wait_until(ready: Callable[[], bool], what: str, seconds: float, alive: Callable[[], str | None]) -> None:
    """Poll `ready` until it is true.

    `alive` returns None, or a sentence on what died: waiting for a dead server helps nobody.
    Raises ClusterError with that sentence, or after `seconds`.
    """
    end = time.monotonic() + seconds
    while not ready():
        if problem := alive():
            raise ClusterError(problem)
        if time.monotonic() > end:
            raise ClusterError(f"{what} was not ready after {seconds:.0f} s.")
        time.sleep(INTERVAL_SECONDS)


def last_words(log: Path, lines: int = 3) -> str:
    """The last lines of a log on one line, for an error sentence."""
    try:
        content = log.read_bytes()[-8192:].decode(errors="replace").strip().splitlines()
    except OSError:
        return "(no log)"
    return " | ".join(content[-lines:]) or "(empty log)"
