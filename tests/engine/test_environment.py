"""What a builder of the environment is told when something is missing, and that nothing outlives its starter."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from cpuengine import EngineEnvironmentError, cache, debian, environment, packages, sharedlib
from cpuengine.processes import remove_dead_shared_memory, session_members, start, stop_session, wait_for
from umbra_images import builds

CLOSED_PORT = "http://127.0.0.1:9"


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda folder: usage(10**10, 9 * 10**9, 10**9))
    with pytest.raises(EngineEnvironmentError, match=r"needs 3 GB below .* and only 1.0 GB are free: free some disk"):
        cache.require_free_disk(tmp_path)


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineEnvironmentError, match=r"cannot compile x.so; install gcc.*gcc is not installed"):
        sharedlib.compile_library(tmp_path / "x.so", {"": ["f"]}, default="int %s(void) { return 0; }", special={})


def test_the_old_release_is_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UMBRA_DEBIAN_MIRROR", CLOSED_PORT)
    with pytest.raises(EngineEnvironmentError, match=r"cannot get Debian's bullseye libraries.*UMBRA_DEBIAN_MIRROR"):
        debian.unpack_libraries(tmp_path, tmp_path / "scratch")


def test_the_registry_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = packages.find_uv()
    monkeypatch.setattr(packages, "find_uv", lambda: uv)
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path))
    monkeypatch.setenv("UV_DEFAULT_INDEX", CLOSED_PORT)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EngineEnvironmentError, match=r"cannot install mori.txt; is the Python package registry reach"):
        packages.install_locked(Path(sys.executable), cache.MORI_LOCK, "--target", tmp_path / "target")


def test_the_last_used_builds_stay_and_so_does_one_that_is_in_use(tmp_path: Path) -> None:
    every = [tmp_path / f"{number:016x}" for number in range(builds.KEPT + 3)]
    for age, build in enumerate(every[:-1]):
        build.mkdir()
        (build / builds.DONE).touch()
        os.utime(build / builds.DONE, (1000 - age, 1000 - age))
    every[-1].mkdir()  # half-made
    (tmp_path / "uv").mkdir()
    used = every[builds.KEPT]
    shutil.copy("/bin/sleep", used / "sleep")
    with subprocess.Popen([used / "sleep", "60"]) as running:
        wait_for(lambda: builds.in_use(used), 5.0, "the program did not start")
        assert sorted(cache.remove_old(tmp_path)) == every[builds.KEPT + 1 :]
        running.kill()
    assert {path.name for path in tmp_path.iterdir()} == {"uv", *(path.name for path in every[: builds.KEPT + 1])}


def test_a_build_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UMBRA_CACHE", str(tmp_path))
    monkeypatch.setenv("UV_DEFAULT_INDEX", CLOSED_PORT)
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EngineEnvironmentError, match=r"cannot install engine.txt"):
        environment()
    assert [path.name for path in (tmp_path / "engine").iterdir() if re.fullmatch("[0-9a-f]{16}", path.name)] == []


def test_a_command_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "RUN_SECONDS", 0.1)
    with pytest.raises(EngineEnvironmentError, match=r"cannot rest: sleep did not end within .* minutes"):
        packages.run(["sleep", "60"], problem="cannot rest")


def test_scripts_that_only_run_engines_do_not_change_the_key() -> None:
    assert {path.name for path in cache.HERE.glob("*.py")} > cache._NOT_BUILT_FROM


def test_a_library_has_the_symbols_and_versions_asked_for(tmp_path: Path) -> None:
    library = tmp_path / "libthing.so.1"
    symbols = {"A_1": ["first"], "A_2": ["second"], "": ["plain"]}
    special = {"second": "int %s(void) { return 7; }"}
    sharedlib.compile_library(
        library, symbols, default="int %s(void) { return 1; }", special=special, soname=library.name
    )
    listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    assert {"first@@A_1", "second@@A_2"} <= {line.split()[-1] for line in listing.splitlines()}
    assert any(line.split()[-1].startswith("plain") for line in listing.splitlines())


def test_stopping_a_session_stops_its_children(tmp_path: Path) -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"
    process = start([sys.executable, "-c", script], env=dict(os.environ), log=tmp_path / "log")
    wait_for(lambda: len(session_members(process.pid)) == 2, 10.0, "the child did not start")
    assert stop_session(process.pid) == []
    assert session_members(process.pid) == []
    process.wait()


def test_load_reports_of_dead_engines_go_and_those_in_use_stay(tmp_path: Path) -> None:
    dead, opened, mapped = (tmp_path / f"sglang_loads_{name}.shm" for name in ("dead", "opened", "mapped"))
    other = tmp_path / "other.shm"
    for path in (dead, opened, mapped, other):
        path.write_bytes(bytes(4096))
    with mapped.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 4096)
    with opened.open():
        assert remove_dead_shared_memory(tmp_path) == [dead]
    assert sorted(tmp_path.iterdir()) == sorted([mapped, opened, other])
    memory.close()
    assert sorted(remove_dead_shared_memory(tmp_path)) == sorted([mapped, opened])


def test_servers_die_with_a_killed_test_run(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from cpuengine.processes import start\n"
        "print(start(['sleep', '60'], env=dict(os.environ), log=Path(sys.argv[1])).pid, flush=True); time.sleep(60)"
    )
    runner = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "log"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert runner.stdout is not None
    server = int(runner.stdout.readline())
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    wait_for(lambda: not session_members(server), 5.0, f"process {server} outlives its starter")
