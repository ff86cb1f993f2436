"""Another process at the same address is another store, and the old client stays until its process is gone."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from umbra_linker.connection import Epoch, StoreWatch, epoch_at, other_name
from umbra_linker.pauses import FIRST_SECONDS

SERVER = """
import socket, sys
path, mute = sys.argv[1], len(sys.argv) > 2
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
while True:
    connection, _ = server.accept()
    try:
        mute or connection.sendall(bytes(1))
    except BrokenPipeError:
        pass  # of somebody who only looks who is there
"""


@contextmanager
def serving(path: Path, *, mute: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A process that listens at ``path``; a mute one never speaks."""
    path.unlink(missing_ok=True)
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(path), *(["mute"] if mute else [])])
    while epoch_at(f"unix://{path}") is None:
        assert process.poll() is None
    yield process
    process.kill()
    process.wait()


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
            assert first.poll() is not None
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

    now = 100.0
    watch = StoreWatch(address, Epoch(1, 1), connect_anew, clock=lambda: now)
    with serving(path, mute=True):
        assert not watch.look(), "its client would stop every thread"
    assert "cannot be connected" not in caplog.text
    with serving(path):
        assert not watch.look()
        assert "cannot be connected to yet; trying again" in caplog.text
        now += FIRST_SECONDS
        assert watch.look()


def test_a_store_that_goes_on_refusing_is_tried_after_growing_pauses_and_its_successor_at_once(path: Path) -> None:
    address, tried, now = f"unix://{path}", [], 0.0

    def connect_anew() -> None:
        tried.append(now)
        raise RuntimeError("fd handoff failed")

    watch = StoreWatch(address, Epoch(1, 1), connect_anew, clock=lambda: now)
    with serving(path):
        while now < 100:
            watch.look()
            now += 1
        assert tried == [0, 1, 3, 7, 15, 31, 61, 91]
    with serving(path):
        watch.look()
        assert tried[-1] == now


def test_a_frozen_store_can_be_killed_and_is_gone_afterwards(path: Path) -> None:
    address = f"unix://{path}"
    with serving(path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        watch = StoreWatch(address, epoch_at(address), lambda: None)
        assert watch.kill()
        assert process.wait(1) == -signal.SIGKILL
        assert not watch.kill(), "it is gone: nobody killed it a second time"


def test_nothing_but_that_store_is_killed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    address = f"unix://{path}"
    with serving(path) as process:
        epoch = epoch_at(address)
        assert epoch is not None
        # Its number belongs to this test by now, as after a store's death and much time.
        assert not StoreWatch(address, Epoch(os.getpid(), epoch.created_ns), lambda: None).kill()
        assert not StoreWatch(address, Epoch(process.pid, epoch.created_ns - 1), lambda: None).kill()
        assert not StoreWatch(address, Epoch(0, 0), lambda: None).kill()
        assert "cannot be seen from here" in caplog.text
        assert process.poll() is None


def test_the_end_of_a_store_and_the_next_one_are_seen_before_the_time_is_over(path: Path) -> None:
    address = f"unix://{path}"
    with serving(path) as first:
        watch = StoreWatch(address, epoch_at(address), Client)
        threading.Timer(0.1, first.kill).start()
        assert seconds_of(lambda: watch.wait(60)) < 30
        assert first.wait(5) == -signal.SIGKILL
    assert seconds_of(lambda: watch.wait(0.2)) >= 0.2, "nobody is there"
    with ExitStack() as life:
        follow = threading.Timer(0.1, lambda: life.enter_context(serving(path)))
        follow.start()
        assert seconds_of(lambda: watch.wait(60)) < 30
        follow.join()
        assert watch.look()
        assert seconds_of(lambda: watch.wait(0.2)) >= 0.2, "it lives"


def test_a_store_that_follows_and_refuses_is_no_reason_to_look_all_the_time(path: Path) -> None:
    address = f"unix://{path}"

    def refused() -> None:
        raise RuntimeError("fd handoff failed")

    with serving(path):
        watch = StoreWatch(address, epoch_at(address), refused)
    with serving(path):
        assert seconds_of(lambda: watch.wait(60)) < 30
        assert not watch.look()
        assert seconds_of(lambda: watch.wait(0.2)) >= 0.2


def test_a_store_whose_process_cannot_be_seen_is_looked_for_at_the_interval(path: Path) -> None:
    watch = StoreWatch(f"unix://{path}", Epoch(0, 0), Client)
    assert seconds_of(lambda: watch.wait(0.2)) >= 0.2


def test_an_engine_with_many_open_files_sees_and_kills_its_store(path: Path) -> None:
    """select() takes no descriptor from 1,024 on."""
    address, limits = f"unix://{path}", resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    with ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        process = files.enter_context(serving(path))
        for _ in range(1100):
            files.callback(os.close, os.dup(0))
        watch = StoreWatch(address, epoch_at(address), Client)
        watch.wait(0)
        assert watch.kill()
        assert process.wait(5) == -signal.SIGKILL


def test_stores_that_come_and_go_leave_no_open_files(path: Path) -> None:
    address = f"unix://{path}"
    with serving(path):
        watch = StoreWatch(address, epoch_at(address), Client)
        before = open_files()
    for _ in range(3):
        with serving(path):
            assert watch.look()
    watch.look()
    assert open_files() == before


@pytest.mark.parametrize(
    ("address", "other"),
    [
        ("unix:///run/umbp/umbp.grpc.sock", "unix:///run/umbp/./umbp.grpc.sock"),
        ("unix:run/umbp.grpc.sock", "unix:run/./umbp.grpc.sock"),
        ("unix:///umbp.grpc.sock", "unix:///./umbp.grpc.sock"),
        ("unix:umbp.grpc.sock", "unix:umbp.grpc.sock"),
        ("10.0.0.1:5000", "10.0.0.1:5000"),
        (f"unix:///{'n' * 104}", f"unix:///./{'n' * 104}"),
        (f"unix:///{'n' * 105}", f"unix:///{'n' * 105}"),
    ],
)
def test_a_socket_has_another_name_and_only_one_unless_the_kernel_takes_none(address: str, other: str) -> None:
    assert other_name(address) == other
    assert other_name(other) == address


def test_the_other_name_is_of_the_same_store(path: Path) -> None:
    with serving(path):
        address = f"unix://{path}"
        assert epoch_at(other_name(address)) == epoch_at(address) is not None


def seconds_of(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
