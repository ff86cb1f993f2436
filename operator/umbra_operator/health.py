"""Whether the process lives and is ready, and the HTTP port that says so and has the metrics."""

import gzip
import time
from collections.abc import Mapping
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder, gzip_accepted

from umbra_operator import metrics
from umbra_operator.fleet import Fleet

PATHS = ("/metrics", "/healthz", "/readyz")
METHODS = ("GET", "HEAD")
STALE_RESYNCS = 3
"""A leader counts as dead after this many resyncs in a row did not happen."""
STALE_LOOK_SECONDS = 60.0
"""A process that waits for the lease counts as dead when it has not tried to read it for so long."""


class Health:
    """Signs of life; written by the event loop, read by the thread of the HTTP port."""

    def __init__(self, resync_seconds: float) -> None:
        self._resync_limit = STALE_RESYNCS * resync_seconds
        self._sign, self._limit = time.monotonic(), self._resync_limit
        self._what, self.ready = "started", False

    def looked(self, answered: bool) -> None:
        """The lease was looked at; ``answered`` tells whether the API server let it be read."""
        self._sign, self._limit, self._what = time.monotonic(), STALE_LOOK_SECONDS, "looked at the lease"
        self.ready = answered

    def leads(self) -> None:
        """This process leads from now on, and is ready after its first full list."""
        self._sign, self._limit, self._what = time.monotonic(), self._resync_limit, "began to lead"
        self.ready = False

    def resynced(self) -> None:
        """The memory was repaired by full lists."""
        self._sign, self._limit, self._what = time.monotonic(), self._resync_limit, "last resync"
        self.ready = True
        metrics.LAST_RESYNC.set_to_current_time()

    def live(self) -> bool:
        """Whether the last sign of life is recent enough."""
        return time.monotonic() - self._sign < self._limit

    def sentence(self) -> str:
        """What the last sign of life was, and how old it is."""
        return f"{self._what} {time.monotonic() - self._sign:.0f} s ago"


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each client: one that says nothing must not keep the kubelet's probes waiting."""

    daemon_threads = True


class _Handler(WSGIRequestHandler):
    timeout = 5
    """Seconds that a client may be silent."""

    def log_message(self, *_: Any) -> None:
        """Scrapes are not news."""


def serve(health: Health, fleet: Fleet, bind: str, port: int) -> WSGIServer:
    """``/metrics``, ``/healthz`` and ``/readyz``, beside the event loop. Raises OSError when the port is taken."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        status, headers, body = _answer(health, fleet, environ)
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    server = make_server(bind, port, app, server_class=_Server, handler_class=_Handler)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _answer(health: Health, fleet: Fleet, environ: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
    """Status, headers and body. What is not there or not to be read costs no look at the metrics."""
    path, text = environ["PATH_INFO"], [("Content-Type", "text/plain; charset=utf-8")]
    if path not in PATHS:
        return "404 Not Found", text, f"there is only {', '.join(PATHS)}\n".encode()
    if environ["REQUEST_METHOD"] not in METHODS:
        return "405 Method Not Allowed", [*text, ("Allow", ", ".join(METHODS))], b"this is only read\n"
    if path == "/metrics":
        return "200 OK", *_exposition(fleet, environ)
    good = health.live() and (path == "/healthz" or health.ready)
    return "200 OK" if good else "503 Service Unavailable", text, f"{health.sentence()}\n".encode()


def _exposition(fleet: Fleet, environ: Mapping[str, Any]) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body. The fleet stands first, since one of the two formats has a line that ends it."""
    encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
    headers, body = [("Content-Type", content_type)], fleet.text().encode() + encode(REGISTRY)
    if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
        headers, body = [*headers, ("Content-Encoding", "gzip")], gzip.compress(body, 1)
    return headers, body
