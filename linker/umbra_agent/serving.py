"""The agent's HTTP server: three read-only routes on a thread pool of the standard library."""

import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from umbra_agent.report import bounded, compact

STATUS_LIMIT_BYTES = 4096
# A client that sends nothing must not hold a thread for ever.
REQUEST_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Views:
    """What the routes show. Each callable is called in a server thread and must not block."""

    status: Callable[[], dict[str, Any]]
    ready: Callable[[], str | None]
    """None when ready, else the reason."""
    metrics: Callable[[], str]
    """Prometheus text format 0.0.4."""


class Server(ThreadingHTTPServer):
    """Serves `views` until `close`. Port 0 takes a free one; the real one is in `server_address`.

    `listener` is a listening socket that an earlier agent handed over: no client is refused in between.
    """

    daemon_threads = True
    block_on_close = False
    # The default of 5 makes a burst of clients wait a second for the retransmission of their SYN.
    request_queue_size = 128

    def __init__(self, bind: str, port: int, views: Views, listener: int | None = None) -> None:
        self.views = views
        if ":" in bind:
            self.address_family = socket.AF_INET6  # "::" takes IPv4 too
        super().__init__((bind, port), _Handler, bind_and_activate=listener is None)
        if listener is not None:
            self.socket.close()
            self.socket = socket.socket(fileno=listener)
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = bind_name(self.socket)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        self._thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is printed with its traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def server_bind(self) -> None:
        """Bind without the base class's reverse lookup of the host name, which can wait for DNS."""
        # A container that restarts finds connections of its predecessor in TIME_WAIT on the same port.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = bind_name(self.socket)

    def close(self) -> None:
        """Stop serving and free the port."""
        self.shutdown()
        self.server_close()


def bind_name(listener: socket.socket) -> tuple[str, int]:
    """Address and port that a TCP socket is bound to."""
    address: tuple[str, int] = listener.getsockname()[:2]
    return address


def encode_status(document: Mapping[str, Any]) -> bytes:
    """Return `document` as JSON of at most STATUS_LIMIT_BYTES.

    Texts are shortened if they must be, then the digest is left out, then the texts.
    """
    for limit, with_digest in ((400, True), (100, True), (400, False), (100, False), (0, False)):
        kept = {key: value for key, value in document.items() if with_digest or key != "digest"}
        raw = compact({key: _shortened(value, limit) for key, value in kept.items()}).encode("utf-8")
        if len(raw) <= STATUS_LIMIT_BYTES:
            return raw
    raise ValueError("the status holds more than sentences of unbounded size")


def _shortened(value: Any, limit_bytes: int) -> Any:
    if isinstance(value, str):
        return bounded(value, limit_bytes) if limit_bytes else None
    if isinstance(value, dict):
        return {key: _shortened(inner, limit_bytes) for key, inner in value.items()}
    return value


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_TIMEOUT_SECONDS
    server_version = "umbra-agent"
    sys_version = ""

    def do_GET(self) -> None:
        views = self.server.views
        match self.path.partition("?")[0]:
            case "/status":
                self._answer(200, "application/json", encode_status(views.status()))
            case "/ready":
                reason = views.ready()
                text = "ready" if reason is None else bounded(reason)
                self._answer(200 if reason is None else 503, "text/plain; charset=utf-8", f"{text}\n".encode())
            case "/metrics":
                self._answer(200, "text/plain; version=0.0.4; charset=utf-8", views.metrics().encode())
            case _:
                self._answer(404, "text/plain; charset=utf-8", b"Use /status, /ready or /metrics.\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds: they are not worth a log line."""

    def _answer(self, code: int, content_type: str, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        # Threads are few and clients are many: no connection outlives its request.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
