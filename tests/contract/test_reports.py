"""The page of public reports: each of them is guarded by tests that there are."""

import ast
import re

from product import ROOT

PAGE = ROOT / "docs/explanation/public-reports.md"


def rows() -> list[list[str]]:
    """The cells of each report's row."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_each_report_is_guarded_by_tests_that_there_are() -> None:
    for report, seen, done, tests in rows():
        assert seen and done
        guards = re.findall(r"`(\S+)::(\w+)`", tests)
        assert guards and ", ".join(f"`{file}::{name}`" for file, name in guards) == tests, report
        for file, name in guards:
            tree = ast.parse((ROOT / file).read_text())
            defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in defined, f"{report}: {file} has no {name}"


def test_each_report_stands_once_under_its_project_s_name() -> None:
    reports = [report for row in rows() for report in row[0].split(", ")]
    assert [report for report in reports if not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", report)] == []
    assert len(set(reports)) == len(reports)
