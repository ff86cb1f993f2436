"""Python packages by hash: a venv with SGLang and torch, filled by uv from the lock files.

Nothing is resolved here: ``--no-deps --require-hashes --only-binary :all:``.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from umbra_images import cachefolder

from .cache import REPOSITORY
from .errors import EngineEnvironmentError

# Debian's own interpreter first: a container that has /usr then needs no further folder.
_INTERPRETERS = ("/usr/bin/python3.11", "python3.11")


RUN_SECONDS = 1800
"""Bound on one command: the longest fetches a gigabyte of wheels, in a minute over a good line."""


def run(argv: list[str | Path], *, problem: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run ``argv`` and return its stdout.

    Raises:
        EngineEnvironmentError: ``problem`` followed by the last lines of the command's own error.
    """
    try:
        done = subprocess.run(argv, env=env, cwd=cwd, text=True, capture_output=True, check=False, timeout=RUN_SECONDS)
    except FileNotFoundError as error:
        raise EngineEnvironmentError(f"{problem}: {argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise EngineEnvironmentError(f"{problem}: {argv[0]} did not end within {RUN_SECONDS // 60} minutes") from error
    if done.returncode:
        tail = " | ".join(line for line in (done.stderr or done.stdout).splitlines()[-4:] if line.strip())
        raise EngineEnvironmentError(f"{problem} (exit status {done.returncode}): {tail}")
    return done.stdout


def uv_environment() -> dict[str, str]:
    """Return the environment of uv: our own package cache, and never a downloaded interpreter."""
    return os.environ | {"UV_CACHE_DIR": str(cachefolder.root() / "uv"), "UV_PYTHON_DOWNLOADS": "never"}


def find_uv() -> Path:
    """Return a uv executable: the development venv's, the one on PATH, or one installed for this purpose."""
    beside = Path(sys.executable).parent / "uv"
    if beside.exists():
        return beside
    on_path = shutil.which("uv")
    if on_path:
        return Path(on_path)
    return _install_uv(cachefolder.root() / "engine" / "uv")


def _install_uv(folder: Path) -> Path:
    lock = (REPOSITORY / "requirements" / "dev.txt").read_text()
    entry = re.search(r"^uv==.*(?:\n[ \t]+--hash=.*)+", lock, re.MULTILINE)
    if entry is None:
        raise EngineEnvironmentError("requirements/dev.txt pins no uv: regenerate the lock files with `make lock`")
    folder.mkdir(parents=True, exist_ok=True)
    pinned = folder / "uv.txt"
    pinned.write_text(entry.group() + "\n")
    run([sys.executable, "-m", "venv", folder], problem="cannot make a venv for uv")
    run(
        [folder / "bin" / "pip", "install", "-q", "--require-hashes", "--no-deps", "-r", pinned],
        problem="cannot install uv; is the Python package registry reachable?",
    )
    return folder / "bin" / "uv"


def make_venv(root: Path) -> Path:
    """Create ``root/venv`` on Python 3.11 and return its interpreter."""
    argv: list[str | Path] = [find_uv(), "venv", "-q", "-p", find_interpreter(), root / "venv"]
    run(argv, problem="cannot make the engine's venv", env=uv_environment())
    return root / "venv" / "bin" / "python"


def find_interpreter() -> str:
    """Return a Python that the locked wheels fit.

    Raises:
        EngineEnvironmentError: on another system or processor, or without Python 3.11.
    """
    if (where := (platform.system(), platform.machine())) != ("Linux", "x86_64"):
        raise EngineEnvironmentError(f"amd-mori exists for Linux on x86_64 only, and this is {' on '.join(where)}")
    for interpreter in _INTERPRETERS:
        found = shutil.which(interpreter)
        # The native page hash is compiled, so the interpreter must come with its headers.
        if found and _has_headers(found):
            return found
    raise EngineEnvironmentError(
        "SGLang 0.5.23 needs Python 3.11 with its headers: install python3.11 and python3.11-dev"
    )


def _has_headers(interpreter: str) -> bool:
    script = "import sys, sysconfig; print(sys.version_info[:2] == (3, 11), sysconfig.get_path('include'))"
    right, _, include = run([interpreter, "-c", script], problem=f"cannot run {interpreter}").strip().partition(" ")
    return right == "True" and (Path(include) / "Python.h").exists()


def install_locked(python: Path, lock: Path, *extra: str | Path) -> None:
    """Install the packages of ``lock`` by hash, wheels only, without resolving anything."""
    argv: list[str | Path] = [find_uv(), "pip", "install", "-q", "--python", python, "--no-deps", "--require-hashes"]
    run(
        [*argv, "--only-binary", ":all:", *extra, "-r", lock],
        problem=f"cannot install {lock.name}; is the Python package registry reachable?",
        env=uv_environment(),
    )


def site_packages(python: Path) -> Path:
    """Return the venv's site-packages folder."""
    script = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run([python, "-c", script], problem="cannot run the engine's Python").strip())
