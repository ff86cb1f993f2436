"""What goes wrong on the machine is one sentence with a remedy; a mistake in the code keeps its trace."""

import ast
import os
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cpuengine
from localcluster import controlplane, problems
from localcluster.errors import ClusterError
from localcluster.layout import layout
from localstack import __main__ as localstack
from product import ROOT
from umbra_images import cachefolder


def _full_disk() -> None:
    with Path("/dev/full").open("w") as file:
        file.write("a page")


def _no_space_from_a_tool() -> None:
    raise cpuengine.EngineEnvironmentError("cannot install engine.txt: No space left on device (os error 28)")


SITUATIONS: dict[str, tuple[Callable[[], object], str]] = {
    "full": (_full_disk, r"the disk is full: free some, or point UMBRA_CACHE at another disk"),
    "full for a tool": (_no_space_from_a_tool, r"cannot install engine.txt.*; the disk is full: free some"),
    "forbidden": (lambda: Path("/sys/umbra").mkdir(), r"^error: /sys/umbra: (this is not permitted|.* read-only): "),
    "missing": (
        lambda: subprocess.run(["no-such-command"], timeout=5, check=False),
        r"no-such-command: it is not there",
    ),
    "slow": (
        lambda: subprocess.run(["sleep", "60"], timeout=0.1, check=False),
        r"`sleep 60` did not end within 0 s: see whether",
    ),
    "unreachable": (
        lambda: urllib.request.urlopen("http://127.0.0.1:9", timeout=5),
        r"cannot be reached or hung up \(.*refused",
    ),
}


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of its own, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="umbra-") as folder:
        monkeypatch.setenv("UMBRA_CACHE", folder)
        yield


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("situation", SITUATIONS)
def test_one_sentence_with_the_remedy(
    situation: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cause, expected = SITUATIONS[situation]
    monkeypatch.setattr(localstack, "up", lambda progress: cause())
    monkeypatch.setattr("sys.argv", ["localstack", "up"])
    assert localstack.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert re.search(expected, line)


@pytest.mark.usefixtures("empty_cache")
def test_a_mistake_in_the_code_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localstack, "up", lambda progress: {}["no such key"])
    monkeypatch.setattr("sys.argv", ["localstack", "up"])
    with pytest.raises(KeyError):
        localstack.main()


def test_a_name_that_cannot_be_is_told_by_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBRA_CLUSTER", "Not-This")
    for command in ("down", "status"):
        monkeypatch.setattr("sys.argv", ["localstack", command])
        assert localstack.main() == 1
        assert "cannot name a cluster: set UMBRA_CLUSTER to" in capsys.readouterr().err


def test_kubectl_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hanging = tmp_path / "kubectl"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(controlplane, "KUBECTL_SECONDS", 0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        controlplane.run_kubectl(hanging, tmp_path, ["get", "pods"])


def test_every_command_has_a_bound() -> None:
    folders = (
        "images/umbra_images",
        "tests/cluster/localcluster",
        "tests/cluster/localstack",
        "tests/engine/cpuengine",
    )
    unbounded = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "subprocess.run"
        and "timeout" not in {keyword.arg for keyword in call.keywords}
    ]
    assert unbounded == []


@pytest.mark.parametrize(
    "said", ["pip failed: [Errno 28] No space left on device", "ctr: write data: no space left on device: unknown"]
)
def test_a_full_disk_is_told_of_a_cluster_error_too(said: str) -> None:
    problem = ClusterError(said)
    assert (problems.sentence(problem) or "").endswith(
        "the disk is full: free some, or point UMBRA_CACHE at another disk."
    )


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("mode", [[], ["--api-only"]])
def test_a_second_up_of_a_cluster_waits_for_the_first(
    mode: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UMBRA_CLUSTER", "twice")
    monkeypatch.setattr(localstack, "OTHER_SECONDS", 0.2)
    monkeypatch.setattr("sys.argv", ["localstack", "up", *mode])
    with cachefolder.locked(layout().whole_lock, "this cluster", 1):
        assert localstack.main() == 1
    said = capfd.readouterr().err
    assert f"waiting for this cluster, which process {os.getpid()}" in said
    assert "end it, or wait for its end and try again" in said
