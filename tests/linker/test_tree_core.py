"""Rust only when every rank chose it, and a sentence that says whose choice decided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.tree_core import Agreement, TreeCore, ballot, settle

CHOICES = st.lists(st.sampled_from(["rust", "python"]), min_size=1, max_size=16)


def settled(choices: list[str]) -> list[TreeCore]:
    """What ranks with these choices settle on."""
    ballots = [ballot(choice) for choice in choices]
    result = (min(rust for rust, _ in ballots), min(other for _, other in ballots))
    return [settle(choice, result) for choice in choices]


@given(CHOICES)
def test_all_ranks_use_one_core(choices: list[str]) -> None:
    assert {one.core for one in settled(choices)} == {"rust" if set(choices) == {"rust"} else "python"}


@given(CHOICES)
def test_who_decided_is_named(choices: list[str]) -> None:
    mixed = len(set(choices)) > 1
    for choice, one in zip(choices, settled(choices), strict=True):
        expected = Agreement.ALL_RANKS
        if mixed:
            expected = Agreement.OTHER_RANK if choice == "rust" else Agreement.THIS_RANK
        assert (one.chosen, one.agreement) == (choice, expected)


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (settle("rust", (1, 0)), "tree core: rust on rank 1 of 8: every rank chose it"),
        (
            settle("python", (0, 1), fallback="no toolchain"),
            "tree core: python on rank 1 of 8: every rank chose it (no toolchain)",
        ),
    ],
)
def test_the_line_of_ranks_that_agree(one: TreeCore, line: str) -> None:
    assert one.describe(1, 8) == line
