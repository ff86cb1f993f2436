"""Starts agents as real processes and talks to them as a kubelet and an operator would."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

LINKER = Path(__file__).resolve().parents[2] / "linker"
CHILD = Path(__file__).parent / "engine_child.py"

T = TypeVar("T")


def wait_for(look: Callable[[], T | None], what: str, seconds: float = 10.0) -> T:
    """Call `look` until it gives something true and return that; fail after `seconds`."""
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        found = look()
        if found:
            return found
        # A look is often an HTTP request: in long waits it must not compete with what is waited for.
        time.sleep(min(0.01 + elapsed / 50, 0.5))
    raise AssertionError(f"{what}: not within {seconds} s")


def free_port() -> int:
    """A loopback port that nothing listens on at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def process_state(pid: int) -> str | None:
    """One-letter state of a process, or None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def is_gone(pid: int) -> bool:
    """Whether nothing runs under `pid` (a zombie that its parent has not collected does not run)."""
    return process_state(pid) in (None, "Z", "X")


def kill_quietly(pid: int) -> None:
    """SIGKILL a process that this test made, if it still runs."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class StoreReadiness:
    """`GET /ready` with the status that the test sets."""

    def __init__(self) -> None:
        outer = self
        self.status = 200

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class AgentProcess:
    """One mode of the agent in a process of its own. Stdout and stderr go to files."""

    def __init__(self, folder: Path, arguments: list[str], environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.arguments = arguments
        self.environment = environment or {}
        self.stdout = folder / "stdout"
        self.stderr = folder / "stderr"
        self.termination_log = folder / "termination-log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(LINKER), **self.environment}
        with self.stdout.open("ab") as out, self.stderr.open("ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "umbra_agent", *self.arguments], env=environment, stdout=out, stderr=err
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the agent was not started"
        return self._process

    @property
    def port(self) -> int:
        """The port that the agent's HTTP server took."""
        ports = wait_for(lambda: re.findall(r"listens on port (\d+)", self.stderr.read_text()), "the agent listens")
        return int(ports[-1])

    def get(self, path: str) -> tuple[int, bytes]:
        """GET from the agent, once more when an exec closed a connection that it had just taken, or half answered."""
        try:
            return self._get(path)
        except (ConnectionResetError, http.client.RemoteDisconnected, http.client.IncompleteRead):
            return self._get(path)

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        code, body = self.get("/status")
        assert code == 200
        assert len(body) <= 4096
        document: dict[str, Any] = json.loads(body)
        return document

    def status_when(
        self, condition: Callable[[dict[str, Any]], Any], what: str, seconds: float = 10.0
    ) -> dict[str, Any]:
        """The first /status for which `condition` holds."""

        def look() -> dict[str, Any] | None:
            status = self.status()
            return status if condition(status) else None

        return wait_for(look, what, seconds)

    def ready(self) -> bool:
        return self.get("/ready")[0] == 200

    def wait_ready(self, seconds: float = 10.0) -> None:
        wait_for(self.ready, "the agent is ready", seconds)

    def child_pids(self) -> list[int]:
        """Pids of the agent's children, oldest first, from the kernel."""
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = 15.0) -> int:
        return self.process.wait(timeout=seconds)

    def close(self) -> None:
        """End the agent and all that it started."""
        if self._process is None or self._process.poll() is not None:
            return
        self.terminate()
        try:
            self.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.wait()


class EngineAgent(AgentProcess):
    """Engine mode with a launch document in a plain file."""

    def __init__(self, folder: Path, store_port: int, *more: str, environment: dict[str, str] | None = None) -> None:
        self.document = folder / "launch.json"
        self.kit_root = folder / "kits"
        self.drain_flag = folder / "run" / "drain"
        self.run_dir = folder / "disk"
        self.boot_id = folder / "boot_id"
        self.engine_port = free_port()
        arguments = [
            *["engine", "--bind", "127.0.0.1", "--port", "0", "--document", str(self.document)],
            *["--kit-root", str(self.kit_root), "--drain-flag", str(self.drain_flag), "--boot-id", str(self.boot_id)],
            *["--termination-log", str(folder / "termination-log"), "--store-port", str(store_port)],
            *["--run-dir", str(self.run_dir), "--rest-seconds", "1", "--lame-duck-seconds", "0", *more],
        ]
        super().__init__(folder, arguments, environment)

    def add_kit(self, version: str = "0.1.0") -> None:
        (self.kit_root / version).mkdir(parents=True, exist_ok=True)

    def launch(self, revision: str, *arguments: str, **fields: Any) -> dict[str, Any]:
        """A launch document whose engine is the script engine_child.py with `arguments`."""
        document = {
            "revision": revision * 12,
            "kit": "0.1.0",
            "argv": [sys.executable, "-I", "-S", str(CHILD), "--port", str(self.engine_port), *arguments],
            "env": {},
            "port": self.engine_port,
            "drainTimeoutSeconds": 20,
            "live": {},
        }
        return {**document, **fields}

    def write(self, document: dict[str, Any] | str) -> None:
        """Put a document in place by rename, as one atomic change."""
        text = document if isinstance(document, str) else json.dumps(document)
        staging = self.document.with_suffix(".tmp")
        staging.write_text(text)
        staging.replace(self.document)

    def serve(self, revision: str, *arguments: str, **fields: Any) -> int:
        """Have this revision served and return the engine's pid."""
        self.add_kit()
        self.write(self.launch(revision, *arguments, **fields))
        wait_for(lambda: self.ready() and self.status()["revision"] == revision * 12, f"revision {revision} serves")
        return self.child_pid()

    def child_pid(self) -> int:
        """Pid of the engine's main process, from the kernel."""
        children = self.child_pids()
        assert len(children) == 1, children
        return children[0]
