"""Cache folders are keyed by content and complete only when their build ended."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cpuengine import packages
from localcluster import cache, images
from product import ROOT
from umbra_images import builds, cachefolder
from umbra_images.cachefolder import CacheError


def test_key_changes_with_content_and_with_the_border_between_parts(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("one")
    first = cache.key(lock, "flags")
    lock.write_text("two")
    assert cache.key(lock, "flags") != first
    assert cache.key("ab", "c") != cache.key("a", "bc")


def test_an_interrupted_build_leaves_nothing_and_is_done_again(tmp_path: Path) -> None:
    folder = tmp_path / "tool"

    def breaks(temporary: Path) -> None:
        (temporary / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build(folder, breaks)
    assert not cache.complete(folder)
    assert not list(tmp_path.glob(".tool.?*/"))
    cache.build(folder, lambda temporary: (temporary / "whole").touch())
    assert sorted(path.name for path in folder.iterdir()) == ["done", "whole"]


def test_a_complete_folder_is_not_built_again(tmp_path: Path) -> None:
    built: list[Path] = []
    for _ in range(2):
        cache.build(tmp_path / "tool", built.append)
    assert len(built) == 1


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("UMBRA_CACHE", raising=False)
    assert cachefolder.root() == tmp_path / "umbra"
    monkeypatch.setenv("UMBRA_CACHE", "/elsewhere")
    assert cachefolder.root() == Path("/elsewhere")


def test_relative_paths_homes_and_links_are_resolved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "link").symlink_to("real")
    for value, found in (("here", "here"), ("~/there", "there"), ("link", "real")):
        monkeypatch.setenv("UMBRA_CACHE", value)
        assert cachefolder.root() == tmp_path / found


@pytest.mark.parametrize("value", ["/with space", "/line\nbreak", "~no-such-user-here/cache"])
def test_a_path_that_make_cannot_handle_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("UMBRA_CACHE", value)
    with pytest.raises(CacheError, match=r"point UMBRA_CACHE at|correct it"):
        cachefolder.root()


@pytest.mark.parametrize("value", ["/proc/umbra", "{file}/umbra"])
def test_a_folder_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("UMBRA_CACHE", value.format(file=tmp_path / "file"))
    with pytest.raises(CacheError, match=r"cannot be written \(.*\): point UMBRA_CACHE at a folder of yours"):
        cachefolder.writable()


def test_every_package_uses_the_same_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UMBRA_CACHE", "here")
    assert packages.uv_environment()["UV_CACHE_DIR"] == f"{tmp_path}/here/uv"
    assert images.layers() == tmp_path / "here" / "layers"


def test_whoever_waits_says_for_what_and_who_has_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with cachefolder.locked(tmp_path / "lock", "the house", 1):
        held = rf"process {os.getpid()} \(.*\)"
        with (
            pytest.raises(CacheError, match=rf"{held} has the house for more than 0 s"),
            cachefolder.locked(tmp_path / "lock", "the house", 0.3),
        ):
            pass
    assert re.search(rf"waiting for the house, which {held} has", capfd.readouterr().err)
    with cachefolder.locked(tmp_path / "lock", "the house", 1):
        pass
    assert capfd.readouterr().err == ""


def test_a_wait_ends_when_it_is_abandoned() -> None:
    # In a process of its own: no later test could wait.
    script = (
        "import sys, tempfile, threading\n"
        "from pathlib import Path\n"
        "from umbra_images.cachefolder import CacheError, abandon, locked\n"
        "path = Path(tempfile.mkdtemp()) / 'lock'\n"
        "threading.Timer(0.3, abandon).start()\n"
        "try:\n"
        "    with locked(path, 'it', 1), locked(path, 'it', 60):\n"
        "        pass\n"
        "except CacheError as error:\n"
        "    print(error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "images")}
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=20
    )
    assert result.stdout.strip() == "The wait for it was given up."


def test_a_duration_that_cannot_be_kept_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CACHE", "/proc/umbra")
    cache.remember_duration("step", 1.0)
    assert cache.last_duration("step") is None


def test_older_builds_of_a_kind_go_and_those_of_another_stay(tmp_path: Path) -> None:
    other = cache.build(tmp_path / f"tool-more-{'0' * 16}", lambda folder: None)
    every = [tmp_path / f"tool-{number:016x}" for number in range(builds.KEPT + 2)]
    for age, folder in enumerate(every):
        cache.build(folder, lambda folder: None)
        os.utime(folder / builds.DONE, (age, age))
    cache.build(every[1], lambda folder: None)  # used again
    cache.build(tmp_path / f"tool-{'f' * 16}", lambda folder: None)
    left = {path for path in tmp_path.iterdir() if path.is_dir()}
    assert left == {other, every[1], every[-1], tmp_path / f"tool-{'f' * 16}"}
