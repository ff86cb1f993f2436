"""The CPU engine environment: the real SGLang and the real UMBP store on a machine without a GPU.

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
from dataclasses import dataclass
from pathlib import Path

from . import cudastub, debian, mori
from .cache import ENGINE_LOCK, HERE, build_key, cache_root, exclusive, require_free_disk
from .packages import install_locked, make_venv, run, site_packages

_DONE = "done"


@dataclass(frozen=True, slots=True)
class Environment:
    """A built environment. A plain ``python -m sglang.launch_server`` with these values serves."""

    root: Path
    python: Path
    site_packages: Path
    store_server: Path
    library_path: str
    """Value of LD_LIBRARY_PATH for the store server and for the engine."""
    engine_env: dict[str, str]
    engine_args: list[str]
    """Server arguments that the CPU needs; host, port, parallelism and the linker are the caller's."""
    model_dir: Path
    mounts: list[Path]
    """Host folders that a container must see at the same path (read-only is enough)."""


def environment() -> Environment:
    """Return the environment, building it on first use (about a minute, 2.6 GB).

    Raises:
        EngineEnvironmentError: with the reason and the remedy, when it cannot be built.
    """
    base = cache_root() / "engine"
    root = base / build_key()
    if not (root / _DONE).exists():
        with exclusive(base):
            if not (root / _DONE).exists():
                _build(root)
    return _describe(root)


def _build(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)  # a half-made one
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
    _warm(_describe(root))
    say("ready")
    (root / _DONE).write_text(json.dumps({"builtAt": int(time.time())}) + "\n")


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


def _describe(root: Path) -> Environment:
    packages = root / "venv" / "lib" / "python3.11" / "site-packages"
    interpreter = (root / "venv" / "bin" / "python").resolve()
    prefix = interpreter.parents[1]
    system = [Path(p) for p in ("/usr", "/lib", "/lib64", "/bin")]
    library_path = str(root / "lib")
    cpus = f"0-{(os.cpu_count() or 1) - 1}"
    return Environment(
        root=root,
        python=root / "venv" / "bin" / "python",
        site_packages=packages,
        store_server=packages / "mori" / "umbp_standalone_server",
        library_path=library_path,
        engine_env={
            "LD_LIBRARY_PATH": library_path,
            "TORCH_EXTENSIONS_DIR": str(root / "extensions"),
            "TRITON_INTERPRET": "1",
            "SGLANG_USE_CPU_ENGINE": "0",
            # The tensors are tiny: a second thread costs more than it saves, and much more on a busy machine.
            "OMP_NUM_THREADS": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": f"{cpus}|{cpus}",
            # torch is a CUDA build: without this SGLang would load NCCL and call into the CUDA library above.
            "SGLANG_NCCL_SO_PATH": "/nonexistent/libnccl.so",
            # Only the tiny model's class: importing all of SGLang's models takes 4 s more.
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "cpuengine_models",
            "HF_HUB_OFFLINE": "1",
        },
        engine_args=_ENGINE_ARGS.split(),
        model_dir=root / "model",
        mounts=[root, *system, *([] if prefix == Path("/usr") else [prefix])],
    )


_ENGINE_ARGS = (
    "--device cpu --load-format dummy --skip-tokenizer-init --skip-server-warmup --attention-backend triton "
    "--max-total-tokens 8192 --max-running-requests 4 --max-mamba-cache-size 32 "
    "--mamba-radix-cache-strategy extra_buffer --page-size 64 --enable-cache-report --enable-metrics"
)
