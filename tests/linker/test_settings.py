"""Settings survive the way from the operator to the engine, and say what is wrong with a bad one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.settings import (
    MOST_CALLS,
    MOST_LOAD_SECONDS,
    MOST_LOOKUP_MILLISECONDS,
    MOST_PAGES,
    KeyLayout,
    Settings,
    SettingsError,
)


@given(
    st.sampled_from(KeyLayout),
    st.integers(1, MOST_CALLS),
    st.integers(1, MOST_PAGES),
    st.integers(1, MOST_LOOKUP_MILLISECONDS),
    st.integers(1, MOST_LOAD_SECONDS),
    st.integers(1, 100),
)
def test_round_trip(layout: KeyLayout, calls: int, pages: int, lookup: int, load: int, percent: int) -> None:
    settings = Settings(layout, calls, pages, lookup, load, percent)
    assert Settings.from_mapping(settings.to_mapping()) == settings


def test_defaults() -> None:
    assert Settings.from_mapping({}) == Settings(KeyLayout.AUTO, 4, 1024, 50, 10, 75)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"keyLayout": "Once"}, "linker setting 'keyLayout' is 'Once': set it to 'Auto' or 'PerRank'"),
        ({"keyLayout": None}, "linker setting 'keyLayout' is None: set it to 'Auto' or 'PerRank'"),
        ({"keyLayout": 1}, "linker setting 'keyLayout' is 1: set it to 'Auto' or 'PerRank'"),
        ({"rpcParallelism": 0}, "linker setting 'rpcParallelism' is 0: set it to a whole number from 1 to 32"),
        ({"rpcParallelism": 33}, "linker setting 'rpcParallelism' is 33: set it to a whole number from 1 to 32"),
        ({"rpcParallelism": True}, "linker setting 'rpcParallelism' is True: set it to a whole number from 1 to 32"),
        ({"chunkPages": "64"}, "linker setting 'chunkPages' is '64': set it to a whole number from 1 to 65536"),
        (
            {"loadDeadlineSeconds": 601},
            "linker setting 'loadDeadlineSeconds' is 601: set it to a whole number from 1 to 600",
        ),
        (
            {"lookupDeadlineMilliseconds": 0.5},
            "linker setting 'lookupDeadlineMilliseconds' is 0.5: set it to a whole number from 1 to 10000",
        ),
        ({"key_layout": "Auto"}, "unknown linker setting 'key_layout': use keyLayout"),
        ({"b": 1, "a": 2}, "unknown linker setting 'a', 'b': use keyLayout"),
    ],
)
def test_errors_name_the_field_and_what_it_accepts(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Settings.from_mapping(mapping)
