"""`make up-api` again, after the operator's code changed or broke: what it says is of now, not of before."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet import reserved_name
from localcluster import cluster as local
from localcluster import images, problems
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localcluster.progress import Progress
from localcluster.state import State
from localstack import apionly

pytestmark = pytest.mark.apiserver


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what `make up-api` takes from the repository, and a cluster of its own that goes at the end."""
    for folder in ("operator", "linker", "crds", "examples"):
        shutil.copytree(images.REPOSITORY / folder, tmp_path / folder)
    monkeypatch.setattr(images, "REPOSITORY", tmp_path)
    with reserved_name("again") as name:
        monkeypatch.setenv("UMBRA_CLUSTER", name)
        yield tmp_path
        local.down(Progress())


def _operator() -> int:
    return State.load(layout().state).processes[apionly.OPERATOR].pid


def test_changed_code_means_a_new_operator_and_a_broken_one_is_told(repository: Path) -> None:
    apionly.up(Progress())
    first = _operator()
    apionly.up(Progress())
    assert _operator() == first
    # A cluster with a node would take the place of this one, and with it all its objects.
    with pytest.raises(ClusterError, match=r"control plane without a node.* make down` first"):
        local.up(Progress())
    assert _operator() == first
    module = repository / "operator" / "umbra_operator" / "plan.py"
    module.write_text(module.read_text() + "\n# changed\n")
    apionly.up(Progress())
    assert _operator() != first
    # The status in the cluster is as it was, and complete.
    module.write_text("raise RuntimeError('this operator is broken')\n")
    with pytest.raises(ClusterError, match=r"operator ended: .*this operator is broken"):
        apionly.up(Progress())


def test_a_start_that_fails_says_what_it_could_not_remove(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ClusterError("etcd ended at once: read its log.")

    asked: list[object] = []

    def clear(where: object) -> None:
        asked.append(where)
        if len(asked) == 2:
            raise ClusterError("Processes 7 do not end.")

    monkeypatch.setenv("UMBRA_CLUSTER", "halfway")
    monkeypatch.setattr(local, "_control_plane_only", fails)
    monkeypatch.setattr(local, "clear", clear)
    with pytest.raises(ClusterError) as caught:
        local.up(Progress(), api_only=True)
    said = problems.sentence(caught.value)
    assert said == "etcd ended at once: read its log. What was started could not be removed: Processes 7 do not end."
