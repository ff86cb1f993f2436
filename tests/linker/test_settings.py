"""Settings survive the way from the operator to the engine, and say what is wrong with a bad one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_linker.settings import KeyLayout, Settings, SettingsError


@given(st.sampled_from(KeyLayout))
def test_round_trip(layout: KeyLayout) -> None:
    settings = Settings(key_layout=layout)
    assert Settings.from_mapping(settings.to_mapping()) == settings


def test_defaults() -> None:
    assert Settings.from_mapping({}) == Settings(key_layout=KeyLayout.AUTO)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"keyLayout": "Once"}, "linker setting 'keyLayout' is 'Once': set it to 'Auto' or 'PerRank'"),
        ({"keyLayout": None}, "linker setting 'keyLayout' is None: set it to 'Auto' or 'PerRank'"),
        ({"keyLayout": 1}, "linker setting 'keyLayout' is 1: set it to 'Auto' or 'PerRank'"),
        ({"key_layout": "Auto"}, "unknown linker setting 'key_layout': use keyLayout"),
        ({"b": 1, "a": 2}, "unknown linker setting 'a', 'b': use keyLayout"),
    ],
)
def test_errors_name_the_field_and_what_it_accepts(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Settings.from_mapping(mapping)
