"""Tests that a table or a page names, as `tests/operator/test_plan.py::test_an_ended_pod_is_replaced`."""

import ast
from functools import cache

from product import ROOT


def guards(name: str) -> bool:
    """Whether there is a test of that name."""
    file, _, test = name.partition("::")
    return test.startswith("test_") and test in _defined(file)


@cache
def _defined(file: str) -> set[str]:
    if not (ROOT / file).exists():
        return set()
    tree = ast.parse((ROOT / file).read_text())
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
