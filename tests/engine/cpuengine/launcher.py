"""Engines for tests: forked from one preloaded process (2 to 4 s each), or started the ordinary way."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .cache import HERE
from .client import EngineClient
from .description import Environment
from .processes import die_with_parent, free_port, start, stop_session, wait_for


class EngineExited(RuntimeError):
    """An engine ended before it served; the message ends with the last lines of its log."""


@dataclass(slots=True)
class Engine:
    """A running engine with its own session of processes."""

    client: EngineClient
    pid: int
    log: Path
    boot_seconds: float
    exit_code: Callable[[], int | None]
    _stopped: bool = False

    def stop(self) -> None:
        """Stop all of the engine's processes; no drain: SGLang's own takes 5 s even when idle."""
        if not self._stopped:
            stop_session(self.pid, timeout=0.5)
            self._stopped = True
            wait_for(lambda: self.exit_code() is not None, 10.0, f"engine {self.pid} was not reaped")


@dataclass(slots=True)
class Launch:
    """What to start: arguments after ``sglang.launch_server``, environment and extra import paths."""

    arguments: list[str]
    env: dict[str, str] = field(default_factory=dict)
    path: list[Path] = field(default_factory=list)
    warm_up: bool = False
    """Whether it asks itself for tokens before it is ready, as in production; most tests spare themselves that."""


class ForkLauncher:
    """A process that imported SGLang once and forks engines. Use as a context manager."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        """Start the process (about 20 s until ``wait_ready`` returns); logs go to ``folder``."""
        self._environment = environment
        self._folder = folder
        self._engines: list[Engine] = []
        self._errors = (folder / "forkserver.log").open("wb")
        self._process = subprocess.Popen(
            [environment.python, "-P", "-W", "ignore", HERE / "forkserver.py"],
            env=_base_environment() | environment.engine_env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509
        )
        self._wait_ready()

    def __enter__(self) -> ForkLauncher:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def launch(self, launch: Launch, name: str, *, timeout: float = 90.0) -> Engine:
        """Start an engine and wait until it is ready.

        Raises:
            EngineExited: when it ends or is not ready within ``timeout`` seconds.
        """
        port = free_port()
        log = self._folder / f"{name}.log"
        arguments = [*_common_arguments(self._environment, port, launch), *launch.arguments]
        request = {"argv": arguments, "env": launch.env, "path": [str(p) for p in launch.path], "log": str(log)}
        begin = time.monotonic()
        pid = int(self._ask({"start": request})["pid"])
        engine = Engine(EngineClient(f"http://127.0.0.1:{port}"), pid, log, 0.0, self._exit_code_of(pid))
        self._engines.append(engine)
        _wait_until_ready(engine, timeout)
        engine.boot_seconds = time.monotonic() - begin
        return engine

    def close(self) -> None:
        """Stop every engine and the launcher itself."""
        for engine in self._engines:
            engine.stop()
        stop_session(self._process.pid)
        self._process.wait()
        self._errors.close()

    def _wait_ready(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise EngineExited(f"the fork launcher ended at start: {_tail(self._folder / 'forkserver.log')}")

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise EngineExited(f"the fork launcher ended: {_tail(self._folder / 'forkserver.log')}")
        return dict(json.loads(answer))

    def _exit_code_of(self, pid: int) -> Callable[[], int | None]:
        known: list[int] = []

        def exit_code() -> int | None:
            if not known:
                code = self._ask({"status": pid})["exit"]
                known.extend([] if code is None else [code])
            return known[0] if known else None

        return exit_code


def launch_normally(
    environment: Environment, launch: Launch, folder: Path, name: str, *, timeout: float = 240.0
) -> Engine:
    """Start ``python -m sglang.launch_server`` as production does, and wait until it is ready."""
    port = free_port()
    log = folder / f"{name}.log"
    path = os.pathsep.join(str(p) for p in launch.path)
    env = _base_environment() | environment.engine_env | ({"PYTHONPATH": path} if path else {}) | launch.env
    arguments = [*_common_arguments(environment, port, launch), *launch.arguments]
    begin = time.monotonic()
    process = start(
        [environment.python, "-m", "sglang.launch_server", *arguments],
        env=env,
        log=log,
    )
    engine = Engine(EngineClient(f"http://127.0.0.1:{port}"), process.pid, log, 0.0, process.poll)
    try:
        _wait_until_ready(engine, timeout)
    except BaseException:
        engine.stop()
        raise
    engine.boot_seconds = time.monotonic() - begin
    return engine


def _base_environment() -> dict[str, str]:
    """The caller's environment without what would reach into the engine's own Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _common_arguments(environment: Environment, port: int, launch: Launch) -> list[str]:
    given = [each for each in environment.engine_args if not (launch.warm_up and each == "--skip-server-warmup")]
    return [
        *given, "--model-path", str(environment.model_dir), "--host", "127.0.0.1", "--port", str(port)
    ]  # fmt: skip


def _wait_until_ready(engine: Engine, timeout: float) -> None:
    def ready() -> bool:
        if engine.exit_code() is not None:
            raise EngineExited(f"the engine exited with {engine.exit_code()} at start:\n{_tail(engine.log)}")
        return engine.client.ready()

    try:
        wait_for(ready, timeout, f"the engine did not become ready; see {engine.log}", every=0.2)
    except TimeoutError as error:
        raise EngineExited(f"{error}\n{_tail(engine.log)}") from error


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
