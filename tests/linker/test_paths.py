"""Paths are asked for once, and only so many are remembered."""

from __future__ import annotations

from umbra_linker.paths import Paths


def test_a_path_is_asked_for_once_and_the_one_used_longest_ago_is_forgotten() -> None:
    paths = Paths(most_pages=5)
    asked: list[int] = []

    def path(node: int) -> list[str]:
        asked.append(node)
        return [str(node)] * 2

    for node in (1, 2, 1, 3, 1, 2):
        assert paths.of(node, lambda node=node: path(node)) == [str(node)] * 2  # type: ignore[misc]
    assert asked == [1, 2, 3, 2]
    paths.clear()
    paths.of(1, lambda: path(1))
    assert asked[-1] == 1


def test_a_path_longer_than_the_memory_is_remembered_alone() -> None:
    paths = Paths(most_pages=2)
    paths.put(1, ["a"])
    paths.put(2, ["a", "b", "c"])
    assert paths.of(2, list) == ["a", "b", "c"]
    assert paths.of(1, list) == []
