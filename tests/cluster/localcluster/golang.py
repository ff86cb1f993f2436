"""Go programs, built by the ordinary `go` command from a committed go.mod and go.sum into the cache."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from . import cache, disk
from .errors import ClusterError
from .progress import Progress

MINIMUM = (1, 26)
# Fetching takes a minute over a good line, compiling 7 minutes on two idle cores.
SECONDS = 2700.0
# Without inlining and debug information the compiler needs an eighth less time. The servers are then a little slower,
# which no test notices, and nobody debugs them.
_QUICK = "-gcflags=all=-l -dwarf=false"
# The compiler collects garbage a fifth of its time; 4 GB for two of them are there anyway.
_COMPILER_GOGC = "400"
# Measured: 0.6 GB of modules, 4.8 GB of build cache, 0.6 GB of binaries, and what the linker needs meanwhile.
COLD_BYTES = 7 * 1024**3
# Measured: at most 0.2 GB for a group of binaries, and as much again while they are linked.
WARM_BYTES = 1024**3 // 2

_UNREACHABLE = re.compile(
    r"dial tcp|no such host|i/o timeout|proxyconnect|TLS handshake|connection refused|status code 4\d\d"
)


def folder(group: str, source: Path, flags: list[str], packages: dict[str, str]) -> Path:
    """Where a group of Go binaries lives: the name carries go.mod, go.sum, flags and packages as a hash."""
    hashed = cache.key(source / "go.mod", source / "go.sum", _QUICK, *flags, *packages.values())
    return cache.root() / "tools" / f"{group}-{hashed}"


def build(group: str, source: Path, flags: list[str], packages: dict[str, str], progress: Progress) -> Path:
    """Build `packages` (executable name -> package) and return the folder that holds the executables.

    Of several packages each executable's name must be the last part of its package's path.
    """
    target = folder(group, source, flags, packages)
    if not cache.complete(target):
        what = " and ".join(packages)
        go = check_go()
        disk.require(cache.root(), {what: needed_bytes([target])})
        log = cache.root() / "log" / f"build-{group}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

        def make(temporary: Path) -> None:
            with progress.step(f"go-download-{group}", f"{group}: fetching the Go modules"):
                argv = [go, "list", "-deps", *packages.values()]
                listing = subprocess.run(
                    argv, cwd=source, env=_go_env(), capture_output=True, check=False, timeout=SECONDS
                )
                said = listing.stderr.decode()
                log.write_text(said)
                _check_result(listing.returncode, said, log, "The Go modules could not be fetched")
            # All in one call: while one program is linked, which takes one core, the next is compiled.
            (temporary / "bin").mkdir()
            output = f"{temporary}/bin/{next(iter(packages)) if len(packages) == 1 else ''}"
            with progress.step(f"go-build-{group}", f"{group}: building {what}"), log.open("ab") as out:
                argv = [go, "build", "-p", "2", _QUICK, *flags, "-o", output, *packages.values()]
                built = subprocess.run(
                    argv, cwd=source, env=_go_env(), stdout=out, stderr=out, check=False, timeout=SECONDS
                )
            _check_result(built.returncode, log.read_text(), log, f"{what} could not be built")

        cache.build(target, make)
    return target / "bin"


def _go_env() -> dict[str, str]:
    """Environment of the `go` command: its caches under ours, no other toolchain than the installed one.

    A user's own target, and a go.work above the repository, are meant for the user's own programs.
    """
    return {
        **{name: value for name, value in os.environ.items() if name not in ("GOOS", "GOARCH")},
        "GO111MODULE": "on",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOCACHE": str(cache.root() / "go-build"),
        "GOMODCACHE": str(cache.root() / "go-mod"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw",
        "GOGC": _COMPILER_GOGC,
    }


def _check_result(code: int, output: str, log: Path, what: str) -> None:
    if code == 0:
        return
    if _UNREACHABLE.search(output):
        raise ClusterError(f"{what}: the Go module proxy cannot be reached; check `go env GOPROXY` and {log}.")
    if "no space left" in output:
        raise ClusterError(f"{what}: the disk is full; free 7 GB under {cache.root()} or set UMBRA_CACHE.")
    if "signal: killed" in output:
        raise ClusterError(f"{what}: the compiler was killed, so memory ran out; 4 GB must be free (log: {log}).")
    raise ClusterError(f"{what}: read {log}.")


def check_go() -> str:
    """The `go` command's path; raises ClusterError when it is missing or too old."""
    go = shutil.which("go")
    wanted = ".".join(map(str, MINIMUM))
    if go is None:
        raise ClusterError(f"Go {wanted} or later builds Kubernetes and is not on the PATH: install it.")
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False, timeout=60).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    if found is None or tuple(map(int, found.groups())) < MINIMUM:
        raise ClusterError(f"Go {wanted} or later is needed, and this is {text.strip()!r}: install a newer one.")
    return go


def needed_bytes(folders: Iterable[Path]) -> int:
    """What the disk must have for the groups in these folders: with a filled build cache, only for the binaries."""
    missing = [folder for folder in folders if not cache.complete(folder)]
    # An interrupted first build leaves a part of the build cache, and no group.
    if missing and not list((cache.root() / "tools").glob("kubernetes-*/done")):
        return COLD_BYTES
    return len(missing) * WARM_BYTES
