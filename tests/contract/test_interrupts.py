"""A run that is told to end leaves nothing behind, whoever of its processes was told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0

_CONFTEST = """
import os, pathlib, pytest, time
pytest_plugins = ["interrupts"]
HERE = pathlib.Path(__file__).parent

@pytest.fixture(scope="session")
def slow_to_end():
    mark = HERE / f"started-{os.getpid()}"
    mark.touch()
    yield
    time.sleep(float(os.environ["END_SECONDS"]))
    mark.rename(HERE / f"ended-{os.getpid()}")
"""
_TESTS = "import time, pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_long(slow_to_end, n): time.sleep(100)\n"


def started(argv: list[str], folder: Path, end_seconds: int) -> "subprocess.Popen[str]":
    paths = ":".join(str(ROOT / each) for each in os.environ["PYTHONPATH"].split(":"))
    environment = os.environ | {"PYTHONPATH": paths, "END_SECONDS": str(end_seconds)}
    return subprocess.Popen(
        argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def until(done: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + SECONDS
    while not done():
        assert time.monotonic() < end, f"not within {SECONDS:.0f} s: {what}"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("workers", "number", "everybody", "end_seconds"),
    [
        (0, signal.SIGTERM, False, 0),
        # xdist kills a worker after 10.
        (2, signal.SIGTERM, False, 12),
        # A terminal's Ctrl-C, and what ends a whole job, reach the workers too.
        (2, signal.SIGINT, True, 2),
    ],
)
def test_an_interrupted_run_ends_its_fixtures(
    tmp_path: Path, workers: int, number: int, everybody: bool, end_seconds: int
) -> None:
    (tmp_path / "conftest.py").write_text(_CONFTEST)
    (tmp_path / "test_long.py").write_text(_TESTS)
    argv = [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "load", "-p", "no:cacheprovider", "."]
    run = started(argv, tmp_path, end_seconds)
    try:
        until(lambda: len(list(tmp_path.glob("started-*"))) == max(workers, 1), "the tests run")
        (os.killpg if everybody else os.kill)(run.pid, number)
        said, _ = run.communicate(timeout=SECONDS)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    assert len(list(tmp_path.glob("ended-*"))) == max(workers, 1), said
    assert not list(tmp_path.glob("started-*"))
