"""Each bad situation is told in one sentence with a way out."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from localcluster import cgroups, disk, host, layout, machine
from localcluster.errors import ClusterError
from localcluster.progress import Progress


def test_without_root_the_control_plane_alone_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="make up-api`, which runs the control plane"):
        machine.check_rights()


def test_without_cgroup_controllers_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    with pytest.raises(ClusterError, match="No cgroup controllers"):
        machine.check_rights()


def test_cgroups_that_cannot_be_written_are_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "access", lambda folder, mode: folder != tmp_path)
    with pytest.raises(ClusterError, match=f"{tmp_path} cannot be written.*make up-api"):
        machine.check_rights()


@pytest.mark.parametrize(("controllers", "version"), [("cpuset cpu io memory pids", 2), ("cpuset io", None), (None, 1)])
def test_cgroup_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, controllers: str | None, version: int | None
) -> None:
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    if controllers is None:
        for name in ("memory", "cpu", "pids"):
            (tmp_path / name).mkdir()
    else:
        (tmp_path / "cgroup.controllers").write_text(controllers)
    assert machine.cgroup_version() == version


def test_the_disk_is_asked_for_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * disk.GB))
    folder = tmp_path / "not" / "yet" / "there"
    disk.require(folder, {"one": 2 * disk.GB, "other": 2 * disk.GB})
    sentence = (
        rf"{tmp_path} has 4\.0 GB free and 5\.0 are needed \(one 2\.0, other 3\.0\): free some or point UMBRA_CACHE"
    )
    with pytest.raises(ClusterError, match=sentence):
        disk.require(folder, {"one": 2 * disk.GB, "other": 3 * disk.GB, "there already": 0})


def test_on_another_system_the_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "CNI_FOLDERS", (tmp_path,))
    with pytest.raises(ClusterError, match=r"not Debian.*containerd containernetworking-plugins"):
        machine.install_packages(Progress())


@pytest.mark.parametrize("name", ["Upper", "with-dash", "waytoolong", "../up", "größe", "٣", "a\n"])
def test_a_name_that_cannot_be_a_folder_or_a_cgroup_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="cannot name a cluster"):
        layout.layout(name)


def test_a_name_of_digits_is_as_good_as_one_of_letters() -> None:
    assert layout.layout("2026").directory.name == "cluster-2026"


def test_a_cache_too_deep_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CACHE", "/" + "deep/" * 20)
    with pytest.raises(ClusterError, match="point UMBRA_CACHE at a shorter path"):
        layout.layout("")


def test_two_clusters_share_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBRA_CACHE", "/cache")
    monkeypatch.setenv("UMBRA_CLUSTER", "test")
    mine, other = layout.layout(""), layout.layout()
    assert {mine.namespace, mine.directory, mine.lock, mine.logs}.isdisjoint(
        {other.namespace, other.directory, other.lock, other.logs}
    )
    assert {root.name for root in cgroups.roots(mine.name)}.isdisjoint(root.name for root in cgroups.roots(other.name))


def test_clusters_of_two_caches_share_no_name_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    names = set()
    for root in ("/one", "/two", str(Path("~root").expanduser() / ".cache/umbra")):
        monkeypatch.setenv("UMBRA_CACHE", root)
        names.add(layout.layout("").namespace)
    assert len(names) == 3
    assert "umbra" in names


def test_the_last_cluster_puts_back_what_the_first_one_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, folder = tmp_path / "setting", tmp_path / "folder"
    setting.write_text("0\n")
    monkeypatch.setattr(host, "RECORD", tmp_path / "record" / "host.json")
    monkeypatch.setattr(host, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(host, "SYSCTLS", (str(setting), str(tmp_path / "no-such-setting")))
    monkeypatch.setattr(host, "FOLDERS", (str(folder),))
    host.claim("first", tmp_path)
    setting.write_text("1\n")
    (folder / "empty").mkdir(parents=True)
    host.claim("second", tmp_path)
    host.release("first")
    assert setting.read_text() == "1\n"
    host.release("second")
    host.release("second")
    assert setting.read_text() == "0"
    assert not folder.exists()
    assert not host.RECORD.parent.exists()


def test_after_a_reboot_settings_are_forgotten_and_folders_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, folder = tmp_path / "setting", tmp_path / "folder"
    setting.write_text("0\n")
    monkeypatch.setattr(host, "RECORD", tmp_path / "record" / "host.json")
    monkeypatch.setattr(host, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(host, "SYSCTLS", (str(setting),))
    monkeypatch.setattr(host, "FOLDERS", (str(folder),))
    host.claim("first", tmp_path)
    folder.mkdir()
    host.RECORD.write_text(json.dumps({**json.loads(host.RECORD.read_text()), "boot": "an earlier one"}))
    assert host.owners() == {}
    setting.write_text("2\n")
    host.claim("first", tmp_path)
    host.release("first")
    assert setting.read_text() == "2\n"
    assert not folder.exists()


def test_files_of_others_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    monkeypatch.setattr(host, "RECORD", tmp_path / "record" / "host.json")
    monkeypatch.setattr(host, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(host, "SYSCTLS", ())
    monkeypatch.setattr(host, "FOLDERS", (str(folder),))
    host.claim("first", tmp_path)
    folder.mkdir()
    (folder / "theirs").write_text("keep")
    host.release("first")
    assert (folder / "theirs").read_text() == "keep"
