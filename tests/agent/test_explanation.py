"""The page about the agent names every state, reason and cause, and nothing else."""

import re
from pathlib import Path
from typing import get_args

import pytest

from umbra_agent.engine_view import ExitReason, State
from umbra_agent.exit_cause import Cause

PAGE = (Path(__file__).parents[2] / "docs/explanation/agent.md").read_text()


def first_cells(header: str) -> set[str]:
    """The names in the first column of the table whose first heading is `header`."""
    table = PAGE.partition(f"\n| {header} |")[2].partition("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)`", table, re.M))


@pytest.mark.parametrize(("header", "names"), [("state", State), ("reason", ExitReason), ("cause", Cause)])
def test_every_name_has_its_line(header: str, names: object) -> None:
    assert first_cells(header) == set(get_args(names))


def test_the_picture_has_every_state() -> None:
    picture = PAGE.partition("```mermaid\n")[2].partition("```")[0]
    drawn = set(re.findall(r"^    (\w+) -->", picture, re.M)) | set(re.findall(r"--> (\w+)", picture))
    assert drawn == set(get_args(State))
