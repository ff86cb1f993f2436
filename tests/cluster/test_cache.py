"""Cache folders are keyed by content and complete only when their build ended."""

from pathlib import Path

import pytest

from localcluster import cache


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
    assert cache.root() == tmp_path / "umbra"
    monkeypatch.setenv("UMBRA_CACHE", "/elsewhere")
    assert cache.root() == Path("/elsewhere")
