"""A pytest plugin for the real parts that a test needs: API server, engine, kubelet.

Where a machine cannot run a part, its tests are skipped with the reason, and the end of the run names the part. In CI
(`CI` is set) they fail instead: a run that left a part out must not be taken for one that passed.
"""

import functools
import os
import sys
from collections import Counter
from collections.abc import Callable, Container, Generator
from typing import Any, NoReturn

import pytest

from cpuengine import EngineEnvironmentError, environment
from cpuengine.packages import find_interpreter
from localcluster import golang, images, machine, toolchain
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from umbra_images.cachefolder import CacheError

_CHECKS: dict[str, Callable[[], object]] = {
    "apiserver": golang.check_go,
    "engine": find_interpreter,
    "kubelet": machine.check_rights,
}
_BUILDS: dict[str, tuple[Callable[[Progress], object], ...]] = {
    "engine": (lambda _: environment(),),
    "apiserver": (toolchain.api_server, toolchain.controllers),
    "kubelet": (toolchain.kubernetes, toolchain.prometheus, lambda _: (images.base(), images.operator(), images.kit())),
}
# Whoever uses one of these fixtures needs the part, whether the test is marked or not.
_FIXTURES = {"control_plane": "apiserver", "engine_env": "engine", "cluster": "kubelet"}
_LEFT_OUT: Counter[tuple[str, str]] = Counter()
_PROPERTY = "left out"


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
    for part in needed(item):
        if reason := obstacle(part):
            leave_out(part, reason)


def needed(item: pytest.Item) -> list[str]:
    """The parts that a test needs."""
    return [part for part in _CHECKS if item.get_closest_marker(part) is not None]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds what the tests need; several workers do not do it each for itself."""
    if not hasattr(session.config, "workerinput") and not session.config.option.collectonly:
        build(session.config, {part for item in session.items for part in needed(item)})


def build(config: pytest.Config, parts: Container[str]) -> None:
    """Builds these parts: on a machine that has nothing of them it takes longer than a test may.

    What cannot be built is said again, and counts, in the tests that need it.
    """
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        progress = Progress(sys.stderr)
        for part, builds in _BUILDS.items():
            if part not in parts or obstacle(part):
                continue
            try:
                for make in builds:
                    make(progress)
            except (ClusterError, EngineEnvironmentError, CacheError) as error:
                progress.note(f"{part}: {error}")


def leave_out(part: str, reason: str) -> NoReturn:
    """Ends a test that needs what this machine cannot run; for what only the test itself finds out."""
    ends = pytest.fail.Exception if os.environ.get("CI") else pytest.skip.Exception
    end = ends(f"{part}: {reason}", pytrace=False)
    end.left_out = [part, reason]  # type: ignore[union-attr]
    raise end


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes into a test's report what it was left out for: the report may be one of another process."""
    report = yield
    if left_out := getattr(call.excinfo and call.excinfo.value, "left_out", None):
        report.user_properties.append((_PROPERTY, left_out))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts the tests that were left out."""
    for name, value in report.user_properties:
        if name == _PROPERTY:
            part, reason = value  # type: ignore[misc]
            _LEFT_OUT[part, reason] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each part that this machine cannot run."""
    if _LEFT_OUT:
        terminalreporter.section("parts that this machine cannot run")
    for (part, reason), tests in sorted(_LEFT_OUT.items()):
        terminalreporter.line(f"{part:10} {tests:5} tests  {reason}")
