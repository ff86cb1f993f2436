"""What a built environment offers: paths, variables, arguments. Changing this file rebuilds nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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


def describe(root: Path) -> Environment:
    """Return what a build below ``root`` offers."""
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
            # A container's home may be read-only; /tmp must be writable anyway.
            "SGLANG_CACHE_DIR": "/tmp/sglang-cache",
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
