"""Command lines of the control plane, the same for a bare API server in a test and for the whole cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .pki import Authority

SERVICE_RANGE = "10.0.0.0/24"
API_SERVICE_IP = "10.0.0.1"


@dataclass(frozen=True)
class Ports:
    """TCP ports of the control plane on its address."""

    api: int
    etcd: int
    etcd_peer: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True)
class ControlPlaneSettings:
    """Where a control plane keeps its files and which address it is reached by.

    `bind` is the address that the API server listens on, `advertise` the one that nodes and pods use; they differ
    only when a node exists. etcd and the health ports stay on the loopback address in any case.
    """

    directory: Path
    authority: Authority
    ports: Ports
    bind: str = "127.0.0.1"
    advertise: str | None = None

    @property
    def url(self) -> str:
        """How processes beside the API server reach it."""
        return f"https://{self.advertise or self.bind}:{self.ports.api}"

    def kubeconfig(self, name: str) -> Path:
        """Path of the kubeconfig of one component."""
        return self.directory / f"{name}.kubeconfig"


def issue_certificates(settings: ControlPlaneSettings) -> None:
    """Issue what the control plane needs and write the kubeconfigs `admin`, `controller-manager`, `scheduler`."""
    authority = settings.authority
    names = ["DNS:localhost", "DNS:kubernetes", "DNS:kubernetes.default", "DNS:kubernetes.default.svc"]
    addresses = {"127.0.0.1", API_SERVICE_IP, settings.advertise or settings.bind} - {"0.0.0.0"}
    authority.issue("apiserver", "/CN=kube-apiserver", [*names, *(f"IP:{address}" for address in sorted(addresses))])
    clients = {
        "admin": "/O=system:masters/CN=admin",
        "controller-manager": "/CN=system:kube-controller-manager",
        "scheduler": "/CN=system:kube-scheduler",
    }
    for name, subject in clients.items():
        authority.issue(name, subject)
        authority.kubeconfig(settings.kubeconfig(name), settings.url, name)


def etcd(binary: Path, settings: ControlPlaneSettings) -> list[str]:
    """etcd without fsync: the data of a local cluster does not outlive the machine."""
    client = f"http://127.0.0.1:{settings.ports.etcd}"
    peer = f"http://127.0.0.1:{settings.ports.etcd_peer}"
    return [
        str(binary),
        f"--data-dir={settings.directory / 'etcd'}",
        "--unsafe-no-fsync",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def api_server(binary: Path, settings: ControlPlaneSettings, extra: Sequence[str] = ()) -> list[str]:
    """kube-apiserver; with `settings.advertise` it serves nodes too."""
    authority = settings.authority
    certificate, key = authority.certificate("apiserver")
    client, client_key = authority.certificate("admin")
    # On loopback the address of the `kubernetes` Service would be useless; "none" avoids an invalid Endpoints.
    node = (
        [
            f"--kubelet-client-certificate={client}",
            f"--kubelet-client-key={client_key}",
            "--kubelet-preferred-address-types=InternalIP",
        ]
        if settings.advertise
        else ["--endpoint-reconciler-type=none"]
    )
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{settings.ports.etcd}",
        f"--bind-address={settings.bind}",
        f"--advertise-address={settings.advertise or settings.bind}",
        f"--secure-port={settings.ports.api}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={authority.ca}",
        f"--service-account-key-file={authority.service_account_public_key}",
        f"--service-account-signing-key-file={authority.service_account_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged",
        f"--cert-dir={settings.directory / 'certs'}",
        *node,
        *extra,
    ]


def controller_manager(binary: Path, settings: ControlPlaneSettings) -> list[str]:
    """kube-controller-manager; the client limits are lifted, else garbage collection of many objects takes minutes."""
    return [
        str(binary),
        f"--kubeconfig={settings.kubeconfig('controller-manager')}",
        "--bind-address=127.0.0.1",
        f"--secure-port={settings.ports.controller_manager}",
        "--leader-elect=false",
        "--use-service-account-credentials",
        f"--service-account-private-key-file={settings.authority.service_account_key}",
        f"--root-ca-file={settings.authority.ca}",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        f"--cert-dir={settings.directory / 'certs'}",
    ]


def scheduler(binary: Path, settings: ControlPlaneSettings) -> list[str]:
    """kube-scheduler."""
    return [
        str(binary),
        f"--kubeconfig={settings.kubeconfig('scheduler')}",
        "--bind-address=127.0.0.1",
        f"--secure-port={settings.ports.scheduler}",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        f"--cert-dir={settings.directory / 'certs'}",
    ]
