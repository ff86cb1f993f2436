"""Kit mode: what the engine and store containers find under /umbra."""

import os
from pathlib import Path

import pytest
from agent_process import AgentProcess, wait_for

from umbra_agent.kit import KitError, in_place, install, installed_version


def make_source(folder: Path, version: str) -> Path:
    source = folder / version
    (source / "umbra_agent" / "__pycache__").mkdir(parents=True)
    (source / "umbra_agent" / "__init__.py").write_text(f"version = {version!r}\n")
    (source / "umbra_agent" / "__pycache__" / "x.pyc").write_bytes(b"x")
    info = source / f"umbra_operator-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: umbra-operator\nVersion: {version}\n")
    (source / "umbra_agent" / "__init__.py").chmod(0o600)
    return source


def test_copies_and_points_current_at_the_version(tmp_path: Path) -> None:
    source = make_source(tmp_path / "image", "0.1.0")

    target = install(source, tmp_path / "umbra")

    assert target == tmp_path / "umbra" / "0.1.0"
    assert (tmp_path / "umbra" / "current").readlink() == Path("0.1.0"), (
        "relative: the mount point differs by container"
    )
    assert (target / "umbra_operator-0.1.0.dist-info" / "METADATA").exists()
    assert not list(target.rglob("__pycache__"))
    assert (target / "umbra_agent" / "__init__.py").stat().st_mode & 0o777 == 0o644, "other users must read it"


def test_upgrade_keeps_the_old_version_and_its_inodes(tmp_path: Path) -> None:
    root = tmp_path / "umbra"
    install(make_source(tmp_path / "image", "0.1.0"), root)
    old = (root / "0.1.0" / "umbra_agent" / "__init__.py").stat().st_ino

    install(make_source(tmp_path / "image", "0.2.0"), root)

    assert (root / "current").resolve().name == "0.2.0"
    assert (root / "0.1.0" / "umbra_agent" / "__init__.py").stat().st_ino == old
    assert sorted(entry.name for entry in root.iterdir()) == ["0.1.0", "0.2.0", "current"]


def test_is_idempotent_and_clears_what_a_killed_copy_left(tmp_path: Path) -> None:
    root = tmp_path / "umbra"
    source = make_source(tmp_path / "image", "0.1.0")
    (root / ".tmp-0.1.0" / "umbra_agent").mkdir(parents=True)
    (root / ".tmp-current").symlink_to("nowhere")

    install(source, root)
    before = (root / "0.1.0" / "umbra_agent" / "__init__.py").stat().st_mtime_ns, os.lstat(root / "current").st_ino
    install(source, root)

    after = (root / "0.1.0" / "umbra_agent" / "__init__.py").stat().st_mtime_ns, os.lstat(root / "current").st_ino
    assert before == after
    assert sorted(entry.name for entry in root.iterdir()) == ["0.1.0", "current"]


def test_current_always_leads_somewhere_while_it_is_replaced(tmp_path: Path) -> None:
    """A reader that looks all the time never finds the link missing."""
    root = tmp_path / "umbra"
    sources = [make_source(tmp_path / "image", f"0.{minor}.0") for minor in range(2)]
    install(sources[0], root)
    reader = os.fork()
    if reader == 0:
        for _ in range(20000):
            if not (root / "current" / "umbra_agent" / "__init__.py").exists():
                os._exit(1)
        os._exit(0)
    for turn in range(200):
        install(sources[turn % 2], root)
    assert os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1]) == 0


def test_refuses_a_source_without_the_agent(tmp_path: Path) -> None:
    (tmp_path / "0.1.0").mkdir()
    with pytest.raises(KitError, match="UMBRA_KIT_SOURCE"):
        install(tmp_path / "0.1.0", tmp_path / "umbra")


def test_check_wants_this_version_not_any(tmp_path: Path) -> None:
    root = tmp_path / "umbra"
    old, new = make_source(tmp_path / "image", "0.1.0"), make_source(tmp_path / "image", "0.2.0")
    assert not in_place(old, root)
    install(old, root)
    assert in_place(old, root)
    assert not in_place(new, root), "after an image patch the probe waits for the new version"


def test_version_comes_from_the_dist_info_beside_the_package(tmp_path: Path) -> None:
    source = make_source(tmp_path / "image", "0.3.1")
    assert installed_version(source / "umbra_agent") == "0.3.1"
    assert installed_version(tmp_path) == "unknown"


def test_process_copies_sleeps_and_ends_on_sigterm(tmp_path: Path) -> None:
    source = make_source(tmp_path / "image", "0.1.0")
    arguments = ["kit", "--root", str(tmp_path / "umbra")]
    environment = {"UMBRA_KIT_SOURCE": str(source)}
    check = AgentProcess(tmp_path / "check", [*arguments, "--check"], environment)
    check.start()
    assert check.wait() == 1
    kit = AgentProcess(tmp_path / "kit", arguments, environment)
    kit.start()
    wait_for((tmp_path / "umbra" / "current").exists, "the kit is in place")
    check.start()
    assert check.wait() == 0
    kit.terminate()
    assert kit.wait() == 0
