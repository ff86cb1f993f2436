"""amd-mori (client, store server, master) made usable without a GPU.

NOT genuine: the wheel is built for CPython 3.10, so one version string in its binding library is changed to 3.11;
the HIP and HSA libraries answer "no device". What runs is the real store and the real client, in host memory.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .cache import MORI_LOCK
from .errors import EngineEnvironmentError
from .packages import install_locked
from .sharedlib import compile_library, undefined_symbols

_BUILT_FOR, _RUNS_ON = b"\x003.10\x00", b"\x003.11\x00"
_SERVERS = ("umbp_standalone_server", "umbp_master")

_NO_HIP = "int %s(void) { return 100; }"  # hipErrorNoDevice
_HIP_SPECIAL = {
    "hipGetErrorString": 'const char *%s(int e) { return e ? "no GPU on this machine" : "no error"; }',
    "hipGetLastError": "int %s(void) { return 0; }",
    "hipGetDeviceCount": "int %s(int *n) { if (n) *n = 0; return 100; }",
    "hipRuntimeGetVersion": "int %s(int *v) { if (v) *v = 70200000; return 0; }",
    "__hipRegisterFatBinary": "void **%s(const void *d) { static void *handle; (void)d; return &handle; }",
    "__hipRegisterFunction": "void %s(void) {}",
    "__hipUnregisterFatBinary": "void %s(void **h) { (void)h; }",
}
_NO_HSA = "int %s(void) { return 0x1000; }"  # HSA_STATUS_ERROR
_HSA_SPECIAL = {"hsa_status_string": 'int %s(int e, const char **s) { (void)e; *s = "no GPU"; return 0; }'}


def install(python: Path, packages: Path, scratch: Path) -> None:
    """Put the wheel's ``mori`` package and its metadata into ``packages``, patched for Python 3.11."""
    wheel = scratch / "mori-wheel"
    install_locked(
        python, MORI_LOCK, "--target", wheel, "--python-version", "3.10", "--python-platform", "x86_64-manylinux_2_35"
    )
    for entry in [wheel / "mori", *wheel.glob("amd_mori-*.dist-info")]:
        shutil.copytree(entry, packages / entry.name, ignore=shutil.ignore_patterns("_jit-sources"))
    shutil.rmtree(wheel)
    binding = packages / "mori" / "libmori_pybinds.so"
    content = binding.read_bytes()
    if content.count(_BUILT_FOR) != 1:
        raise EngineEnvironmentError(
            f"{binding.name} does not hold exactly one Python version string: this amd-mori build is unknown; "
            "install the version that requirements/mori.in names"
        )
    binding.write_bytes(content.replace(_BUILT_FOR, _RUNS_ON))
    for server in _SERVERS:
        (packages / "mori" / server).chmod(0o755)


def build_gpu_libraries(packages: Path, output: Path) -> int:
    """Compile libamdhip64 and libhsa-runtime64 with the symbols that mori expects; return their number."""
    folder = packages / "mori"
    hip: dict[str, set[str]] = {}
    hsa: dict[str, set[str]] = {}
    for path in [*folder.glob("*.so"), *(folder / server for server in _SERVERS)]:
        for name, version in undefined_symbols(path):
            if version.startswith("hip_"):
                hip.setdefault(version, set()).add(name)
            elif version.startswith("ROCR_"):
                hsa.setdefault(version, set()).add(name)
    name = "libamdhip64.so.7"
    compile_library(output / name, hip, default=_NO_HIP, special=_HIP_SPECIAL, soname=name)
    name = "libhsa-runtime64.so.1"
    compile_library(output / name, hsa, default=_NO_HSA, special=_HSA_SPECIAL, soname=name)
    return sum(len(names) for names in [*hip.values(), *hsa.values()])
