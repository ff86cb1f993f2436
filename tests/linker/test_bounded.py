"""A bounded mapping forgets what was set longest ago, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.bounded import Bounded


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 10))
def test_the_entries_set_last_are_remembered(keys: list[int], most: int) -> None:
    bounded: Bounded[int, int] = Bounded(most)
    for turn, key in enumerate(keys):
        bounded[key] = turn
    last = {key: turn for turn, key in enumerate(keys)}
    assert bounded == dict(sorted(last.items(), key=lambda entry: entry[1])[-most:])
    assert list(bounded) == sorted(bounded, key=lambda key: last[key]), "the oldest comes first"
