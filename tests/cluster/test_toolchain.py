"""Which binaries are used, when they are built again, and what a user is told when they cannot be."""

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from localcluster import cache, golang, toolchain
from localcluster.errors import ClusterError
from localcluster.progress import Progress


def _module(folder: Path) -> Path:
    folder.mkdir()
    (folder / "go.mod").write_text("module umbra.dev/test\n\ngo 1.26\n")
    (folder / "go.sum").write_text("")
    return folder


def test_a_new_lock_file_or_flag_means_a_new_folder(tmp_path: Path) -> None:
    source = _module(tmp_path / "module")
    packages = {"tool": "example.test/tool"}
    first = golang.folder("tool", source, ["-trimpath"], packages)
    assert golang.folder("tool", source, ["-trimpath"], packages) == first
    assert golang.folder("tool", source, ["-race"], packages) != first
    (source / "go.sum").write_text("changed")
    assert golang.folder("tool", source, ["-trimpath"], packages) != first


def test_version_flags_match_the_locked_module() -> None:
    lock = (toolchain.SOURCE / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{toolchain.KUBERNETES_VERSION}" in lock
    flags = toolchain.version_flags("1.37.2")
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in flags
    assert "-X k8s.io/client-go/pkg/version.gitMinor=37" in flags


@pytest.mark.apiserver
def test_builds_once_for_this_machine_whatever_a_user_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = cache.root() / "go-build"
    compiled.mkdir(parents=True, exist_ok=True)
    (tmp_path / "cache").mkdir()
    # Go's own standard library need not be compiled again for this.
    (tmp_path / "cache" / "go-build").symlink_to(compiled)
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(golang, "COLD_BYTES", 0)
    _module(tmp_path / "other")
    (tmp_path / "go.work").write_text("go 1.26\n\nuse ./other\n")
    monkeypatch.setenv("GOOS", "windows")
    monkeypatch.setenv("GO111MODULE", "off")
    source = _module(tmp_path / "module")
    (source / "main.go").write_text("package main\n\nfunc main() {}\n")
    folder = golang.build("tool", source, [], {"tool": "."}, Progress())
    binary = folder / "tool"
    assert subprocess.run([binary], check=False, timeout=60).returncode == 0
    before = binary.stat().st_mtime_ns
    assert golang.build("tool", source, [], {"tool": "."}, Progress()) == folder
    assert binary.stat().st_mtime_ns == before


@pytest.mark.apiserver
def test_an_unreachable_module_proxy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(golang, "COLD_BYTES", 0)
    monkeypatch.setenv("GOPROXY", "http://127.0.0.1:1")
    with pytest.raises(ClusterError, match="module proxy cannot be reached"):
        toolchain.etcd(Progress())


def test_a_full_disk_is_told_before_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * 1024**3))
    with pytest.raises(ClusterError, match=r"2\.0 GB free and 7\.0 are needed \(tool 7\.0\)"):
        golang.build("tool", _module(tmp_path / "module"), [], {"tool": "."}, Progress())


def test_without_go_the_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match=r"Go 1\.26 or later"):
        golang.build("tool", _module(tmp_path / "module"), [], {"tool": "."}, Progress())


def test_prebuilt_binaries_are_taken_from_kubebuilder_assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ClusterError, match="kube-apiserver is not an executable"):
        toolchain.api_server()
    for name in ("kube-apiserver", "etcd", "kubectl"):
        (tmp_path / name).touch(mode=0o755)
    assert toolchain.api_server().etcd == tmp_path / "etcd"
