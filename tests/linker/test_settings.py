"""Settings survive the way from the operator to the engine, and say what is wrong with a bad one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.settings import MOST_CALLS, MOST_PAGES, KeyLayout, Settings, SettingsError


@given(st.sampled_from(KeyLayout), st.integers(1, MOST_CALLS), st.integers(1, MOST_PAGES))
def test_round_trip(layout: KeyLayout, calls: int, pages: int) -> None:
    settings = Settings(key_layout=layout, rpc_parallelism=calls, chunk_pages=pages)
    assert Settings.from_mapping(settings.to_mapping()) == settings


def test_defaults() -> None:
    assert Settings.from_mapping({}) == Settings(key_layout=KeyLayout.AUTO, rpc_parallelism=4, chunk_pages=1024)


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
        ({"key_layout": "Auto"}, "unknown linker setting 'key_layout': use keyLayout"),
        ({"b": 1, "a": 2}, "unknown linker setting 'a', 'b': use keyLayout"),
    ],
)
def test_errors_name_the_field_and_what_it_accepts(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Settings.from_mapping(mapping)
