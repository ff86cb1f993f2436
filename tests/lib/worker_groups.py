"""A pytest plugin: how `pytest -n 2` shares the tests between its workers.

What is started once for many tests (a node, an API server, a process that imported SGLang) is started in one worker
only: the files that need it form a group, which one worker runs whole and in order. A file that needs none of it is a
group of its own. The groups stand in the order of `_SHARED`, the longest first, then the files; a worker that comes to
the end of a group takes the next.

Only the workers collect tests, and their names alone do not say what they need: each worker tells the groups in a file.
"""

import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import parts

_SHARED = {
    "node": "kubelet",
    "API server": "apiserver",
    "ranks": "rank_lab",
    "engines": "engine",
}
"""Group: the marker or fixture of the tests that need what its worker starts; a file is of the first that it needs."""
_FOLDER = pytest.StashKey["tempfile.TemporaryDirectory[str]"]()
_TOLD = "groups_folder"


def groups(files: Iterable[tuple[str, set[str]]]) -> dict[str, str]:
    """The group of each file, of what each of its tests needs: in the order in which the groups shall begin."""
    needs: dict[str, set[str]] = {}
    for file, needed in files:
        needs.setdefault(file, set()).update(needed)
    found = {
        file: next((name for name, need in _SHARED.items() if need in needed), file) for file, needed in needs.items()
    }
    rank = {name: number for number, name in enumerate(_SHARED)}
    return dict(sorted(found.items(), key=lambda each: rank.get(each[1], len(rank))))


def pytest_configure(config: pytest.Config) -> None:
    """The folder in which the workers tell the groups; it goes with the configuration."""
    if not hasattr(config, "workerinput"):
        config.stash[_FOLDER] = tempfile.TemporaryDirectory(prefix="groups-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the folder."""
    if folder := config.stash.get(_FOLDER, None):
        folder.cleanup()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker the folder."""
    node.workerinput[_TOLD] = node.config.stash[_FOLDER].name


# After the markers were given to the tests, and after those that the command line does not want have gone.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Brings the tests of a worker into the groups' order, and tells the controller."""
    if not hasattr(config, "workerinput"):
        return
    found = groups((_file(item.nodeid), _needs(item)) for item in items)
    place = {file: number for number, file in enumerate(found)}
    items.sort(key=lambda item: place[_file(item.nodeid)])
    told = {"groups": found, "parts": sorted({part for item in items for part in parts.needed(item)})}
    folder = Path(config.workerinput[_TOLD])
    (folder / f"{config.workerinput['workerid']}.json").write_text(json.dumps(told))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out whole groups."""
    from xdist.scheduler import LoadScopeScheduling

    class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Hands out the groups in the order of the collection, which is theirs."""

        _groups: dict[str, str]

        def schedule(self) -> None:
            if self.collection is None:
                told = json.loads(next(Path(config.stash[_FOLDER].name).glob("*.json")).read_text())
                self._groups = told["groups"]
                parts.build(config, told["parts"])
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self._groups[_file(nodeid)]

    # xdist would begin with the group of the most tests; they are not the longest.
    config.option.loadscopereorder = False
    return GroupScheduling(config, log)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _needs(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()} | set(getattr(item, "fixturenames", ()))
