"""Whether a store gives a sign of life, asked without its client.

A frozen process still accepts connections, because the kernel does, but it does not speak. The client's own calls have
no bound and its constructor blocks every Python thread, so neither may be used to find out.
"""

from __future__ import annotations

import socket
from contextlib import closing

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of an HTTP/2 connection and an empty SETTINGS frame (RFC 9113, 3.4): a gRPC server answers at once."""


def alive(address: str, seconds: float) -> bool:
    """Return whether the gRPC server at ``address`` (``unix:///path`` or ``host:port``) speaks within ``seconds``."""
    try:
        with closing(connect(address, seconds)) as connection:
            connection.sendall(_HELLO)
            return bool(connection.recv(1))
    except (OSError, ValueError):
        return False


def connect(address: str, seconds: float) -> socket.socket:
    """Return a connection to ``address`` whose calls take at most ``seconds``; raises OSError or ValueError."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), seconds)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(seconds)
    try:
        connection.connect(address.removeprefix("unix://").removeprefix("unix:"))
    except BaseException:
        connection.close()
        raise
    return connection
