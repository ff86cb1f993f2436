"""The record of a cluster: on disk at once, worthless after a reboot, never fatal."""

import json
import os
from pathlib import Path

from localcluster import process
from localcluster.state import State


def _recorded(path: Path) -> State:
    state = State.load(path)
    me = process.identify(os.getpid())
    assert me is not None
    state.record("me", me, "identity")
    state.set("port", "1234")
    return state


def test_survives_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    written = _recorded(path)
    read = State.load(path)
    assert read == written
    assert read.runs("me", "identity")


def test_another_identity_does_not_run(tmp_path: Path) -> None:
    state = _recorded(tmp_path / "state.json")
    assert not state.runs("me", "new flag")
    assert not state.runs("other", "identity")


def test_pids_of_another_boot_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    _recorded(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
    assert State.load(path).processes == {}


def test_a_broken_file_is_an_empty_record(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in ("", "{", "[]", '{"boot": 1}'):
        path.write_text(content)
        assert State.load(path).processes == {}
