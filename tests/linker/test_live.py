"""The file of live settings: read when it changes, bad ones change nothing."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from umbra_linker.live import NONE, LiveSettings, version_of
from umbra_linker.settings import Checkpoints, KeyLayout, Settings

BASE = Settings(rpc_parallelism=8)


def _write(path: Path, live: object) -> int:
    text = json.dumps({"revision": "0" * 12, "live": live}).encode()
    path.write_bytes(text)
    return version_of(text)


def test_without_a_file_the_settings_are_those_of_the_start(tmp_path: Path) -> None:
    live = LiveSettings(tmp_path / "live.json", BASE)
    live.look()
    assert live.latest == (NONE, BASE)


def test_the_file_speaks_over_the_start_and_only_while_it_does(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    first = _write(path, {"checkpoints": "All", "loadDeadlineSeconds": 3})
    live = LiveSettings(path, BASE)
    assert live.latest == (first, Settings(rpc_parallelism=8, checkpoints=Checkpoints.ALL, load_deadline_seconds=3))
    second = _write(path, {"loadDeadlineSeconds": 4})
    assert live.latest[0] == first
    live.look()
    assert live.latest == (second, Settings(rpc_parallelism=8, load_deadline_seconds=4))
    assert first != second


def test_names_of_a_newer_writer_and_what_cannot_change_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    version = _write(path, {"keyLayout": "PerRank", "liveFile": "/elsewhere", "invented": 1})
    assert LiveSettings(path, BASE).latest == (version, BASE)
    assert BASE.key_layout is KeyLayout.AUTO


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "{}", '{"live": 1}', '{"live": {"checkpoints": "Some"}}'])
def test_a_file_that_cannot_be_used_changes_nothing_and_is_told_once(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "live.json"
    good = _write(path, {"checkpoints": "All"})
    live = LiveSettings(path, BASE)
    path.write_text(text)
    with caplog.at_level(logging.ERROR):
        live.look()
        live.look()
    assert live.latest == (good, Settings(rpc_parallelism=8, checkpoints=Checkpoints.ALL))
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_read_is_told_once_until_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "live.json"
    live = LiveSettings(path, BASE)
    assert not caplog.records, "without a file nothing is to be changed"
    told = []
    for _ in range(2):
        path.mkdir()
        live.look()
        live.look()
        told.append(len(caplog.records))
        path.rmdir()
        version = _write(path, {"checkpoints": "All"})
        live.look()
        assert live.latest[0] == version
        path.unlink()
    assert told == [1, 2]
    assert "live settings cannot be read" in caplog.text
