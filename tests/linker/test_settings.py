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
    MOST_STORE_BYTES,
    MOST_TOUCH_SECONDS,
    Checkpoints,
    KeyLayout,
    Settings,
    SettingsError,
    Switch,
    Touch,
)


@given(
    st.builds(
        Settings,
        key_layout=st.sampled_from(KeyLayout),
        rpc_parallelism=st.integers(1, MOST_CALLS),
        chunk_pages=st.integers(1, MOST_PAGES),
        lookup_deadline_milliseconds=st.integers(1, MOST_LOOKUP_MILLISECONDS),
        load_deadline_seconds=st.integers(1, MOST_LOAD_SECONDS),
        offload_backpressure_percent=st.integers(1, 100),
        checkpoints=st.sampled_from(Checkpoints),
        touch=st.sampled_from(Touch),
        touch_interval_seconds=st.integers(1, MOST_TOUCH_SECONDS),
        rewrite_missing=st.sampled_from(Switch),
        store_bytes=st.integers(0, MOST_STORE_BYTES),
    )
)
def test_round_trip(settings: Settings) -> None:
    assert Settings.from_mapping(settings.to_mapping()) == settings


def test_defaults() -> None:
    assert Settings.from_mapping({}).to_mapping() == {
        "keyLayout": "Auto",
        "rpcParallelism": 4,
        "chunkPages": 1024,
        "lookupDeadlineMilliseconds": 50,
        "loadDeadlineSeconds": 10,
        "offloadBackpressurePercent": 75,
        "checkpoints": "Adaptive",
        "touch": "Auto",
        "touchIntervalSeconds": 30,
        "rewriteMissing": "Enabled",
        "storeBytes": 0,
        "liveFile": "/run/umbra/live.json",
    }


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
        (
            {"checkpoints": "Some"},
            "linker setting 'checkpoints' is 'Some': set it to 'All' or 'Adaptive' or 'PromptEnd'",
        ),
        ({"storeBytes": -1}, "linker setting 'storeBytes' is -1: set it to a whole number from 0 to 140737488355328"),
        ({"key_layout": "Auto"}, "unknown linker setting 'key_layout': use keyLayout"),
        ({"b": 1, "a": 2}, "unknown linker setting 'a', 'b': use keyLayout"),
    ],
)
def test_errors_name_the_field_and_what_it_accepts(mapping: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        Settings.from_mapping(mapping)
