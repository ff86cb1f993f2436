"""The launch document: what is refused, and that the sentence never repeats a value."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbra_agent.launch import LaunchError, LaunchFile, child_environment, parse

VALID: dict[str, Any] = {
    "revision": "0123456789ab",
    "kit": "0.1.0",
    "argv": [sys.executable, "-m", "sglang.launch_server", ""],
    "env": {"NAME": "value"},
    "port": 30000,
    "drainTimeoutSeconds": 600,
    "live": {},
}


def encode(**changes: Any) -> bytes:
    return json.dumps({**VALID, **changes}).encode()


def test_valid_document() -> None:
    launch = parse(encode(newerField=[1]))
    assert launch.revision == "0123456789ab"
    assert launch.argv == tuple(VALID["argv"]), "an empty argument is an argument"
    assert launch.env == {"NAME": "value"}
    assert launch.drain_timeout_seconds == 600


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"", "annotation umbra.dev/launch"),
        (b"  \n", "annotation umbra.dev/launch"),
        (b'{"argv": ["SECRET"', "not JSON .line 1, column 19."),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be a JSON object"),
        (b" " * (256 * 1024) + b"{}", "at most 262144"),
        (encode(revision="xyz"), "revision must be 12 hexadecimal digits"),
        (encode(revision=None), "revision must be"),
        (encode(kit="../0.1.0"), "kit must be a kit version"),
        (encode(kit=""), "kit must be"),
        (encode(argv=[]), "argv must be a list"),
        (encode(argv="python -m SECRET"), "argv must be a list"),
        (encode(argv=["", "x"]), r"argv\[0\] must be"),
        (encode(argv=["x", 1]), r"argv\[1\] must be"),
        (encode(argv=["x", "SECRET\0"]), r"argv\[1\] must be"),
        (encode(argv=["x", "\ud800"]), r"argv\[1\] must be"),
        (encode(env=None), "env must be a JSON object"),
        (encode(env={"A=SECRET": "x"}), "env has a name"),
        (encode(env={"A": 1}), "env value of A"),
        (encode(env={"A": "SECRET\0"}), "env value of A"),
        (encode(port=0), "port must be a whole number from 1 to 65535"),
        (encode(port=True), "port must be"),
        (encode(port="30000"), "port must be"),
        (encode(drainTimeoutSeconds=3001), "from 0 to 3000"),
        (encode(drainTimeoutSeconds=1.5), "drainTimeoutSeconds must be"),
        (encode(live=[]), "live must be a JSON object"),
    ],
)
def test_broken_documents(text: bytes, sentence: str) -> None:
    with pytest.raises(LaunchError, match=sentence) as caught:
        parse(text)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None


@given(
    st.binary(max_size=300)
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps).map(str.encode)
)
def test_no_input_breaks_the_parser(text: bytes) -> None:
    with pytest.raises(LaunchError):
        parse(text)


@given(
    st.sampled_from(sorted(VALID)),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_any_field_value_is_taken_or_refused(name: str, value: Any) -> None:
    try:
        launch = parse(encode(**{name: value}))
    except LaunchError:
        return
    for text in [*launch.argv, *launch.env, *launch.env.values()]:
        assert b"\0" not in os.fsencode(text)


def test_kit_is_first_on_the_path_and_current_is_gone() -> None:
    launch = parse(encode(env={"A": "document"}))
    environment = child_environment({"PYTHONPATH": "/umbra/current:/profile", "A": "base"}, launch, Path("/umbra"))
    assert environment == {"PYTHONPATH": "/umbra/0.1.0:/profile", "A": "document"}


def test_no_kit_but_the_documents() -> None:
    assert child_environment({}, parse(encode()), Path("/umbra"))["PYTHONPATH"] == "/umbra/0.1.0"


def publish(volume: Path, generation: str, text: bytes) -> None:
    """Replace a downward-API volume's content as the kubelet does: new folder, `..data` renamed over the old link."""
    folder = volume / f"..{generation}"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_bytes(text)
    (volume / "..data_tmp").symlink_to(folder.name)
    (volume / "..data_tmp").replace(volume / "..data")
    if not (volume / "launch.json").is_symlink():
        (volume / "launch.json").symlink_to("..data/launch.json")


def test_file_is_followed_through_the_links_of_a_downward_api_volume(tmp_path: Path) -> None:
    file = LaunchFile(tmp_path / "launch.json")
    file.follow(os.environ)
    assert file.wanted is None
    assert file.problem is not None
    assert "No such file" in file.problem
    assert file.refused == 0, "an absent file is waited for, not refused"

    publish(tmp_path, "one", encode())
    file.follow(os.environ)
    first = file.wanted
    assert first is not None
    assert file.problem is None
    file.follow(os.environ)
    assert file.wanted is first, "an unchanged file is not parsed again"

    publish(tmp_path, "two", encode(revision="b" * 12))
    file.follow(os.environ)
    assert file.wanted is not None
    assert file.wanted.revision == "b" * 12

    publish(tmp_path, "three", encode(argv=["/nowhere/python"]))
    file.follow(os.environ)
    assert file.wanted.revision == "b" * 12
    assert file.problem == "The launch document's argv[0] is not an executable file in this container."
    assert file.refused == 1


def test_program_is_looked_up_on_the_documents_path(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "engine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    (tmp_path / "launch.json").write_bytes(encode(argv=["engine"], env={"PATH": str(program.parent)}))
    file = LaunchFile(tmp_path / "launch.json")
    file.follow({"PATH": "/nowhere"})
    assert file.problem is None
