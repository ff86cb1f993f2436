"""Building the CPU engine environment: the real SGLang and the real UMBP store on a machine without a GPU.

What is NOT genuine, and where: no CUDA (cudastub.py), no HIP and mori's Python 3.11 patch (mori.py), KDA kernels in
plain torch, Triton's interpreter, wide dummy weights and host pools in UMBP shared memory (site/).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from umbra_images.cachefolder import locked, writable

from . import cudastub, debian, mori
from .cache import DONE, ENGINE_LOCK, HERE, build_key, remove_old, require_free_disk
from .description import Environment, describe
from .packages import install_locked, make_venv, run, site_packages

LOCK_SECONDS = 3600.0
"""How long a second builder waits for the first; a build takes a minute, and much longer over a slow line."""


def environment() -> Environment:
    """Return the environment, building it on first use (about a minute, 2.6 GB); old ones then go.

    Raises:
        EngineEnvironmentError: with the reason and the remedy, when it cannot be built.
        CacheError: when the cache cannot be written, or another process builds for too long.
    """
    base = writable() / "engine"
    root = base / build_key()
    if not (root / DONE).exists():
        with locked(base / ".lock", "the build of the engine's environment", LOCK_SECONDS):
            if not (root / DONE).exists():
                _build_whole(root)
                remove_old(base)
    (root / DONE).touch()
    return describe(root)


def _build_whole(root: Path) -> None:
    """Build, or leave nothing: a half-made environment is of no use and takes gigabytes."""
    shutil.rmtree(root, ignore_errors=True)
    try:
        _build(root)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise


def _build(root: Path) -> None:
    require_free_disk(root.parent)
    root.mkdir()
    say = _progress()
    say("venv with the locked packages (SGLang, torch)")
    python = make_venv(root)
    install_locked(python, ENGINE_LOCK)
    packages = site_packages(python)
    scratch = root / "scratch"
    scratch.mkdir()
    say("CUDA library for a machine without CUDA")
    cudastub.install(packages)
    say("amd-mori for Python 3.11")
    mori.install(python, packages, scratch)
    say("libraries of the store server")
    libraries = root / "lib"
    libraries.mkdir()
    mori.build_gpu_libraries(packages, libraries)
    debian.unpack_libraries(libraries, scratch)
    say("site hooks and the tiny model")
    for source in (HERE / "site").iterdir():
        if source.is_dir():
            shutil.copytree(source, packages / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, packages / source.name)
    shutil.copytree(HERE / "model", root / "model")
    shutil.rmtree(scratch)
    say("native page hash and bytecode")
    _warm(describe(root))
    say("ready")
    (root / DONE).write_text(json.dumps({"builtAt": int(time.time())}) + "\n")


def _progress() -> Callable[[str], None]:
    start = time.monotonic()

    def say(step: str) -> None:
        print(f"cpuengine: {time.monotonic() - start:5.1f} s  {step}", file=sys.stderr, flush=True)

    return say


def _warm(built: Environment) -> None:
    """Compile what an engine would otherwise compile at its first start: it may see this folder read-only."""
    script = "from sglang.srt.mem_cache.cpp_utils import native_hash; native_hash._load_native_hash_module()"
    env = os.environ | built.engine_env | {"CPUENGINE_COMPILE_HASH": "1"}
    run([built.python, "-W", "ignore", "-c", script], problem="cannot compile SGLang's native page hash", env=env)
    script = "import cpuengine_preload"
    env = os.environ | built.engine_env
    run([built.python, "-W", "ignore", "-c", script], problem="the built environment cannot import SGLang", env=env)
