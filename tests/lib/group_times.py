"""A pytest plugin: prints how long each group of tests took, so that a slow group is seen before it hurts."""

from collections import Counter

import pytest

_SECONDS: Counter[str] = Counter()
_TESTS: Counter[str] = Counter()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds setup, call and teardown to the test's group; a session's fixture counts where it is first used."""
    group = "/".join(report.nodeid.split("/")[:2])
    _SECONDS[group] += report.duration
    _TESTS[group] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each group, the slowest first."""
    terminalreporter.section("seconds per group")
    for group, seconds in _SECONDS.most_common():
        terminalreporter.line(f"{seconds:8.1f} s  {_TESTS[group]:5} tests  {group}")
