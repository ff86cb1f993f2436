"""`make up-api` again, after an early end or a change of the operator: what it says is of now, not of before."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubelet import reserved_name
from localcluster import cluster as local
from localcluster import images, problems, process
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localcluster.progress import Progress
from localcluster.state import State
from localstack import apionly, monitoring, summary
from localstack.__main__ import main
from product import install_crds

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


def test_what_is_missing_of_an_unfinished_start_is_said_with_the_command_that_goes_on(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = local.up(Progress(), api_only=True)
    again = layout().command("up-api")
    assert summary.status().endswith(f"\n\nUmbra is not installed on this cluster yet: `{again}` goes on from there.")
    install_crds(running)
    assert summary.status().endswith(f"\n\nThere is no K3Deployment: `{again}` makes one.")
    with pytest.raises(
        ClusterError, match=r"has no node, .* make down` removes it, .* make up` starts one with a node"
    ):
        monitoring.demo()
    # The other kind is refused here, and does not go on from anything.
    monkeypatch.setattr(sys, "argv", ["localstack", "up"])
    assert main() == 1
    assert f"a cluster runs: `{again}` goes on from there" in capsys.readouterr().err
    running.kubeconfig.unlink()
    assert summary.status().endswith(f"`{again}` goes on from there.")
    process.stop([State.load(layout().state).processes["apiserver"]], 10)
    assert summary.status().endswith(f"\n\nthe API server does not run; `{again}` repairs what is dead")
