"""One library in place of CUDA's fourteen, so that PyPI's torch imports without 4 GB of wheels.

NOT genuine: every function returns 100 (no device), so ``torch.cuda.is_available()`` is False. No GPU is used.
"""

from __future__ import annotations

import re
from pathlib import Path

from .sharedlib import compile_library, needed_libraries, undefined_symbols

_CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nv)")
_CUDA_SYMBOL = re.compile(r"cu[A-Zfrs]|nccl|nvshmem|nvrtc|__cuda")
_MESSAGE = 'const char *%s(int e) { (void)e; return "no CUDA device on this machine"; }'
_SUCCESS = "int %s(void) { return 0; }"
_SPECIAL = {
    "cudaGetErrorString": _MESSAGE,
    "cudaGetErrorName": _MESSAGE,
    "ncclGetErrorString": _MESSAGE,
    "cudaGetLastError": _SUCCESS,
    "cudaPeekAtLastError": _SUCCESS,
    "__cudaRegisterFatBinary": "void **%s(void *p) { static void *handle; (void)p; return &handle; }",
}
_NAME = "libcuda_none_for_tests.so"


def install(packages: Path) -> int:
    """Write the library into torch's folder under each missing soname; return the number of symbols."""
    folder = packages / "torch" / "lib"
    libraries = sorted(p for p in folder.glob("*.so*") if not p.is_symlink() and not _CUDA_LIBRARY.match(p.name))
    sonames = {name for path in libraries for name in needed_libraries(path) if _CUDA_LIBRARY.match(name)}
    sonames.discard("libcuda.so.1")
    versions = sonames | {"NVSHMEM"}
    symbols: dict[str, set[str]] = {}
    for path in libraries:
        for name, version in undefined_symbols(path):
            if version in versions or (not version and _CUDA_SYMBOL.match(name)):
                symbols.setdefault(version, set()).add(name)
    versioned = set().union(*(names for version, names in symbols.items() if version))
    symbols[""] = symbols.get("", set()) - versioned
    compile_library(folder / _NAME, symbols, default="int %s(void) { return 100; }", special=_SPECIAL)
    for soname in sorted(sonames):
        link = folder / soname
        if not link.exists():
            link.symlink_to(_NAME)
    return sum(len(names) for names in symbols.values())
