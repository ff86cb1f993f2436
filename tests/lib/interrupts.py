"""A pytest plugin: a run that is told to end, by SIGINT or SIGTERM, first ends what its fixtures started.

pytest does so for SIGINT in the process that got it. Workers that a controller leaves alone are killed ten seconds
later, and a node takes longer to go: so the controller tells them, and waits. Whoever wants the end at once sends
the signal to the controller again.
"""

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any

import pytest

END_SECONDS = 90.0
"""For the end of what the workers' fixtures started; a node, the slowest of it, takes some ten seconds."""
_WORKERS = pytest.StashKey[list[Any]]()


def pytest_configure(config: pytest.Config) -> None:
    """Says what the signals do."""
    config.stash[_WORKERS] = []
    if hasattr(config, "workerinput"):
        # A terminal's Ctrl-C reaches every process, and the controller tells its workers anyway.
        signal.signal(signal.SIGINT, _interrupt_once)
        signal.signal(signal.SIGTERM, _interrupt_once)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodeready(node: Any) -> None:
    """Remembers a worker."""
    node.config.stash[_WORKERS].append(node)


# Before xdist ends the workers its way.
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the workers of an interrupted run, and waits."""
    workers = [each for each in session.config.stash[_WORKERS] if not hasattr(each, "workeroutput")]
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.gateway._rinfo().pid, signal.SIGINT)
    end = time.monotonic() + END_SECONDS
    for worker in workers:
        # Whatever it ended with.
        with contextlib.suppress(Exception):
            worker.channel.waitclose(max(0.0, end - time.monotonic()))


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt the first time only: a second one would end the end of the fixtures."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _nothing)
    signal.default_int_handler(number, frame)


def _nothing(number: int, frame: FrameType | None) -> None:
    """For a signal that says what is known; unlike SIG_IGN it is not passed on to what is started from now on."""
