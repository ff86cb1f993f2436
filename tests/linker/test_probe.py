"""A sign of life is a byte, not a connection: the kernel accepts connections for a process that is frozen."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from umbra_linker.probe import alive


@pytest.fixture(params=["unix", "tcp"])
def listener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket that listens, and its address."""
    if request.param == "unix":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "s"))
        address = f"unix://{tmp_path}/s"
    else:
        server = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
    server.listen()
    yield server, address
    server.close()


def test_one_that_speaks_is_alive(listener: tuple[socket.socket, str]) -> None:
    server, address = listener
    heard = []

    def answer() -> None:
        connection, _ = server.accept()
        heard.append(connection.recv(64))
        connection.sendall(b"\0")
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    assert alive(address, 5)
    thread.join()
    assert heard[0].startswith(b"PRI * HTTP/2.0")


def test_one_that_only_accepts_is_not(listener: tuple[socket.socket, str]) -> None:
    begin = time.monotonic()
    assert not alive(listener[1], 0.2)
    assert time.monotonic() - begin < 2


def test_none_that_listens_and_no_address_are_no_sign_of_life(tmp_path: Path) -> None:
    for address in (f"unix://{tmp_path}/none", "127.0.0.1:1", "127.0.0.1", ""):
        assert not alive(address, 0.2), address
