"""The page of public reports: each of them is guarded by tests that there are."""

import re

from guards import guards
from product import ROOT

PAGE = ROOT / "docs/explanation/public-reports.md"


def rows() -> list[list[str]]:
    """The cells of each report's row."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_each_report_is_guarded_by_tests_that_there_are() -> None:
    for report, seen, done, tests in rows():
        assert seen and done
        named = re.findall(r"`(\S+)`", tests)
        assert named and ", ".join(f"`{name}`" for name in named) == tests, report
        assert [name for name in named if not guards(name)] == [], report


def test_each_report_stands_once_under_its_project_s_name() -> None:
    reports = [report for row in rows() for report in row[0].split(", ")]
    assert [report for report in reports if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report)] == []
    assert len(set(reports)) == len(reports)
