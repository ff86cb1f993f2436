"""A pytest plugin for the real parts that a test needs: API server, engine, kubelet.

Where a machine cannot run a part, its tests are skipped with the reason, and the end of the run names the part. In CI
(`CI` is set) they fail instead: a run that left a part out must not be taken for one that passed.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

import pytest

from cpuengine import EngineEnvironmentError
from cpuengine.packages import find_interpreter
from localcluster import golang, machine
from localcluster.errors import ClusterError

_CHECKS: dict[str, Callable[[], object]] = {
    "apiserver": golang.check_go,
    "engine": find_interpreter,
    "kubelet": machine.check_rights,
}
# Whoever uses one of these fixtures needs the part, whether the test is marked or not.
_FIXTURES = {"control_plane": "apiserver", "engine_env": "engine", "cluster": "kubelet"}
_LEFT_OUT: Counter[tuple[str, str]] = Counter()


@functools.cache
def obstacle(part: str) -> str | None:
    """Why this machine cannot run the part; None when it can."""
    try:
        _CHECKS[part]()
    except (ClusterError, EngineEnvironmentError) as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by the fixtures that they use, so that `-m` selects by what a test really needs."""
    for item in items:
        for fixture, part in _FIXTURES.items():
            if fixture in getattr(item, "fixturenames", ()) and item.get_closest_marker(part) is None:
                item.add_marker(part)


# Before the fixtures are set up.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips or fails a test whose part cannot run here."""
    for part in _CHECKS:
        if item.get_closest_marker(part) is None:
            continue
        if reason := obstacle(part):
            leave_out(part, reason)


def leave_out(part: str, reason: str) -> NoReturn:
    """Ends a test that needs what this machine cannot run; for what only the test itself finds out."""
    _LEFT_OUT[part, reason] += 1
    if os.environ.get("CI"):
        pytest.fail(f"{part}: {reason}", pytrace=False)
    pytest.skip(f"{part}: {reason}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each part that this machine cannot run."""
    if _LEFT_OUT:
        terminalreporter.section("parts that this machine cannot run")
    for (part, reason), tests in sorted(_LEFT_OUT.items()):
        terminalreporter.line(f"{part:10} {tests:5} tests  {reason}")
