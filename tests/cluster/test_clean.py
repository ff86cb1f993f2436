"""`make clean-cache` removes what Umbra made and nothing else, and nothing that is in use."""

import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster import clean
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localcluster.progress import Progress
from umbra_images import cachefolder


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with something of everything; its path is short enough for a cluster."""
    parent = tempfile.TemporaryDirectory(prefix="umbra-")
    folder = Path(parent.name) / "cache"
    monkeypatch.setenv("UMBRA_CACHE", str(folder))
    for name in ("engine", "tools", "venv", "log"):
        (folder / name).mkdir(parents=True)
        (folder / name / "content").touch()
    for name in ("durations.json", ".durations.lock", ".cluster-mine.lock", ".session-test.lock"):
        (folder / name).touch()
    yield folder
    parent.cleanup()


def test_everything_that_was_built_goes(cache: Path) -> None:
    clean.clean(Progress())
    assert not cache.exists()
    said = io.StringIO()
    clean.clean(Progress(said))
    assert "nothing to remove" in said.getvalue()


def test_files_of_others_stay_and_are_named(cache: Path) -> None:
    (cache / "thesis.txt").write_text("mine")
    said = io.StringIO()
    clean.clean(Progress(said))
    assert [path.name for path in cache.iterdir()] == ["thesis.txt"]
    assert "thesis.txt" in said.getvalue()


def test_a_cluster_is_taken_down_first(cache: Path) -> None:
    (cache / "cluster-mine").mkdir()
    with pytest.raises(ClusterError, match=rf"run `UMBRA_CLUSTER=mine UMBRA_CACHE={cache} make down` first"):
        clean.clean(Progress())
    assert (cache / "engine" / "content").exists()


def test_a_build_is_waited_for(cache: Path) -> None:
    with (
        cachefolder.locked(cache / "engine" / ".lock", "it", 1),
        pytest.raises(ClusterError, match=r"in use by process \d+ \(.*\): end it"),
    ):
        clean.clean(Progress())
    assert (cache / "engine" / "content").exists()


def test_a_hint_works_when_it_is_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UMBRA_CACHE", raising=False)
    monkeypatch.delenv("UMBRA_CLUSTER", raising=False)
    assert layout().command("down") == "make down"
    monkeypatch.setenv("UMBRA_CLUSTER", "mine")
    assert layout().command("down") == "UMBRA_CLUSTER=mine make down"
    monkeypatch.setenv("UMBRA_CACHE", "/c/it's")
    assert layout().command("status") == """UMBRA_CLUSTER=mine UMBRA_CACHE='/c/it'"'"'s' make status"""
