"""Another process at the same address is another store, and the old client stays until its process is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from umbra_linker.connection import Epoch, StoreWatch, epoch_at


def _speak(path: str, mute: bool) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    while True:
        connection, _ = server.accept()
        with suppress(BrokenPipeError):  # of somebody who only looks who is there
            if not mute:
                connection.sendall(b"\0")


@contextmanager
def serving(path: Path, *, mute: bool = False) -> Iterator[BaseProcess]:
    """A process that listens at ``path``; a mute one never speaks."""
    path.unlink(missing_ok=True)
    process = multiprocessing.get_context("spawn").Process(target=_speak, args=(str(path), mute), daemon=True)
    process.start()
    while epoch_at(f"unix://{path}") is None:
        assert process.is_alive()
    yield process
    process.kill()
    process.join()


class Client:
    """Counts how many there are."""

    alive = 0

    def __init__(self) -> None:
        Client.alive += 1

    def __del__(self) -> None:
        Client.alive -= 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.sock"


def test_the_epoch_is_the_process_and_its_socket_also_of_a_frozen_one(path: Path) -> None:
    address = f"unix://{path}"
    assert epoch_at(address) is None
    with serving(path) as first:
        told = epoch_at(address)
        assert told is not None
        assert told.pid == first.pid
        assert first.pid
        os.kill(first.pid, signal.SIGSTOP)
        assert epoch_at(address) == told
    assert epoch_at(address) is None, "the socket's file alone is nobody"
    with serving(path):
        again = epoch_at(address)
        assert again is not None
        assert again != told


def test_a_new_store_is_connected_to_once_and_the_old_client_goes_with_its_process(path: Path) -> None:
    address, made = f"unix://{path}", []

    def connect_anew() -> Client:
        made.append(epoch_at(address))
        return Client()

    with ExitStack() as first_life:
        first = first_life.enter_context(serving(path))
        watch = StoreWatch(address, epoch_at(address), connect_anew)
        assert not watch.look()
        assert made == []
        with serving(path):
            # As if frozen: the old process lives on while another one serves its address.
            assert watch.look()
            assert not watch.look()
            assert len(made) == 1
            assert Client.alive == 1, "dropping it would wait for the old process"
            first_life.close()
            assert not first.is_alive()
            watch.look()
            assert Client.alive == 0
            assert len(made) == 1
        assert not watch.look(), "nobody is there"


def test_a_store_that_does_not_speak_yet_or_refuses_is_tried_again(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address, answers = f"unix://{path}", iter([RuntimeError("fd handoff failed"), None])

    def connect_anew() -> None:
        answer = next(answers)
        if answer:
            raise answer

    watch = StoreWatch(address, Epoch(1, 1), connect_anew)
    with serving(path, mute=True):
        assert not watch.look(), "its client would stop every thread"
    assert "cannot be connected" not in caplog.text
    with serving(path):
        assert not watch.look()
        assert "cannot be connected to yet; trying again" in caplog.text
        assert watch.look()


def test_a_frozen_store_can_be_killed_and_is_gone_afterwards(path: Path) -> None:
    address = f"unix://{path}"
    with serving(path) as process:
        assert process.pid
        os.kill(process.pid, signal.SIGSTOP)
        watch = StoreWatch(address, epoch_at(address), lambda: None)
        assert watch.kill()
        process.join(1)
        assert process.exitcode == -signal.SIGKILL
        assert watch.kill(), "it is gone"


def test_nothing_but_that_store_is_killed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"unix://{path}"
    with serving(path) as process:
        assert process.pid
        epoch = epoch_at(address)
        assert epoch is not None
        # Its number belongs to this test by now, as after a store's death and much time.
        assert not StoreWatch(address, Epoch(os.getpid(), epoch.created_ns), lambda: None).kill()
        assert not StoreWatch(address, Epoch(process.pid, epoch.created_ns - 1), lambda: None).kill()
        assert not StoreWatch(address, Epoch(0, 0), lambda: None).kill()
        assert "cannot be seen from here" in caplog.text
        assert process.is_alive()
