"""`make help` tells of every target under its heading, and of every variable that the tools read."""

import os
import re
import subprocess
import sys
from pathlib import Path

from product import ROOT

# What runs inside an engine is no tool.
_TOOLS = ("images/*", "tests/cluster", "tests/cluster/localcluster", "tests/engine/cpuengine", "tests/lib")
_READ = re.compile(r"environ(?:\.get\(|\[)\"([A-Z_]+)\"")
# Every program's own.
_COMMON = {"HOME", "NO_PROXY", "PATH", "XDG_CACHE_HOME"}


def _make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = ["make", "-C", str(ROOT), "--no-print-directory", *arguments]
    return subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def test_help_has_every_target_and_every_heading() -> None:
    text, shown = (ROOT / "Makefile").read_text(), _make("help").stdout
    for heading in re.findall(r"^##@ (.*)", text, re.MULTILINE):
        assert f"\n{heading}\n" in shown
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    assert targets - set(re.findall(r"^  make ([a-z-]+) +\S", shown, re.MULTILINE)) == {"python"}


def test_help_has_every_variable() -> None:
    sources = [path for folder in _TOOLS for path in ROOT.glob(f"{folder}/*.py")]
    read = {name for path in sources for name in _READ.findall(path.read_text())}
    assert "UMBRA_CLUSTER" in read
    shown = re.findall(r"^  ([A-Z_]+) ", _make("help").stdout, re.MULTILINE)
    assert read - set(shown) <= _COMMON


def test_the_cache_is_absolute_wherever_it_is_set(tmp_path: Path) -> None:
    relative = os.path.relpath(tmp_path / "here", ROOT)
    for given in (_make("-pn", "help", UMBRA_CACHE=relative), _make("-pn", "help", f"UMBRA_CACHE={relative}")):
        assert f"\nCACHE := {tmp_path}/here\n" in given.stdout
        assert f"UMBRA_CACHE := {tmp_path}/here\n" in given.stdout


def test_a_cache_that_make_cannot_handle_is_refused() -> None:
    refused = _make("help", UMBRA_CACHE="/with space")
    assert refused.returncode != 0
    assert "error: '/with space' has blanks" in refused.stderr


def test_images_need_a_registry() -> None:
    refused = _make("images")
    assert refused.returncode != 0
    assert "make images REGISTRY=registry.example.com/umbra" in refused.stdout


def test_a_second_clone_uses_the_tools_of_the_first() -> None:
    os.utime(ROOT / "requirements/dev.txt")
    assert "install" not in _make("-n", "venv").stdout


def test_a_users_rule_for_pip_is_not_ours(tmp_path: Path) -> None:
    seen, python = tmp_path / "seen", tmp_path / "python"
    python.write_text(f'#!/bin/bash\necho "$PIP_USER $PIP_REQUIRE_VIRTUALENV" >{seen}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert _make("python", f"PYTHON={python}", PIP_USER="1", PIP_REQUIRE_VIRTUALENV="true").returncode == 0
    assert seen.read_text() == "0 0\n"


def test_a_warning_of_the_python_chooses_no_other_tools(tmp_path: Path) -> None:
    """Bash warns of a locale that the machine lacks, which ssh brings along; pyenv's python is a script of bash."""
    warns = tmp_path / "python"
    warns.write_text(f'#!/bin/bash\necho "warning: cannot change locale" >&2\nexec {sys.executable} "$@"\n')
    warns.chmod(0o755)
    quiet, warned = (_make("-pn", "help", f"PYTHON={python}").stdout for python in (sys.executable, warns))
    chosen = re.findall(r"^VENV := .*", quiet, re.MULTILINE)
    assert len(chosen) == 1
    assert re.findall(r"^VENV := .*", warned, re.MULTILINE) == chosen
