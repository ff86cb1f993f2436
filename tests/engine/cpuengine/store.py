"""The real ``umbp_standalone_server`` on a unix socket, in host memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from freezing import freeze

from .description import Environment
from .errors import EngineEnvironmentError
from .processes import start, stop_session, wait_for


@dataclass(slots=True)
class Store:
    """A running store. ``address`` is what a linker connects to."""

    address: str
    socket_path: Path
    log: Path
    command: list[str | Path]
    variables: dict[str, str]
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """Stop the server and forget its contents."""
        stop_session(self.process.pid, timeout=10.0)
        self.process.wait()

    def freeze(self) -> None:
        """Stop the server where it is; nothing of it runs when this returns."""
        freeze(self.process.pid)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self.process.send_signal(signal.SIGCONT)

    def replace(self) -> None:
        """Kill the server and run an empty one at the same address, as an agent does."""
        self.process.kill()
        self.stop()
        self.socket_path.unlink(missing_ok=True)
        self.process = start(self.command, env=self.variables, log=self.log)
        _wait_until_listening(self)


def store_environment(environment: Environment, capacity_bytes: int) -> dict[str, str]:
    """Return the variables that the server needs in this environment, on top of an ordinary one."""
    return {
        "LD_LIBRARY_PATH": environment.library_path,
        "UMBP_DRAM_CAPACITY": str(capacity_bytes),
        "MORI_GLOBAL_LOG_LEVEL": "info",
    }


@contextmanager
def running_store(environment: Environment, *, capacity_bytes: int = 256 << 20) -> Iterator[Store]:
    """Run an empty store of ``capacity_bytes`` for the length of the block.

    A fresh server each time: clearing one without a master never ends in amd-mori 1.2.4.
    """
    # Not a test's own folder: an AF_UNIX path holds at most 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="umbp-"))
    path = folder / "umbp.grpc.sock"
    env = os.environ | store_environment(environment, capacity_bytes)
    address = f"unix://{path}"
    command: list[str | Path] = [environment.store_server, address]
    log = folder / "store.log"
    store = Store(address, path, log, command, env, start(command, env=env, log=log))
    try:
        _wait_until_listening(store)
        yield store
    finally:
        store.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started_again(store: Store, hold: Path) -> Iterator[None]:
    """Start an empty store whenever one has died, as an agent does, but not while the file ``hold`` is there."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            if store.process.poll() is not None and not hold.exists():
                store.replace()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _wait_until_listening(store: Store) -> None:
    def listening() -> bool:
        if store.process.poll() is not None:
            raise EngineEnvironmentError(f"the store server ended at start: {store.log.read_text()[-500:]}")
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
            probe.connect(str(store.socket_path))
            return True
        return False

    wait_for(listening, 20.0, "the store server opened no socket")
