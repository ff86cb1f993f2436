"""Keys and certificates of one cluster, made by the openssl command (elliptic curve, ten years)."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import cache
from .errors import ClusterError

# A cluster is taken down and made anew long before.
DAYS = 3650
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Authority:
    """A folder with `ca.crt`, `ca.key`, the service account key pair `sa.key`/`sa.pub` and issued certificates."""

    directory: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority."""
        return self.directory / "ca.crt"

    @property
    def service_account_key(self) -> Path:
        """Private key that signs ServiceAccount tokens."""
        return self.directory / "sa.key"

    @property
    def service_account_public_key(self) -> Path:
        """Public key that verifies ServiceAccount tokens."""
        return self.directory / "sa.pub"

    def certificate(self, name: str) -> tuple[Path, Path]:
        """Paths of an issued certificate and its key."""
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def issue(self, name: str, subject: str, addresses: Iterable[str] = ()) -> tuple[Path, Path]:
        """Issue `name`.crt for `subject`: a server certificate when addresses are given, else a client's.

        Addresses are subject alternative names in openssl's notation (`DNS:localhost`, `IP:127.0.0.1`).
        """
        certificate, key = self.certificate(name)
        names = ",".join(addresses)
        usage = "serverAuth" if names else "clientAuth"
        extensions = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", f"extendedKeyUsage={usage}"]
        if names:
            extensions += ["-addext", f"subjectAltName={names}"]
        _openssl(
            "req", "-x509", "-CA", self.ca, "-CAkey", self.directory / "ca.key", *_CURVE, "-days", DAYS,
            "-subj", subject, *extensions, "-keyout", key, "-out", certificate,
        )  # fmt: skip
        return certificate, key

    def kubeconfig(self, path: Path, server: str, name: str) -> Path:
        """Write a kubeconfig for the client certificate `name`; the keys are inside, so the file can be moved."""
        certificate, key = self.certificate(name)
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "umbra", "cluster": {"server": server, "certificate-authority-data": _encoded(self.ca)}}
            ],
            "users": [
                {
                    "name": name,
                    "user": {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)},
                }
            ],
            "contexts": [{"name": "umbra", "context": {"cluster": "umbra", "user": name, "namespace": "default"}}],
            "current-context": "umbra",
        }
        cache.write(path, json.dumps(content, indent=1), mode=0o600)
        return path


def create(directory: Path) -> Authority:
    """Make a new authority and its service account keys in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    authority = Authority(directory)
    _openssl(
        "req", "-x509", *_CURVE, "-days", DAYS, "-subj", "/CN=umbra-ca",
        "-addext", "keyUsage=critical,keyCertSign,digitalSignature",
        "-keyout", directory / "ca.key", "-out", authority.ca,
    )  # fmt: skip
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", authority.service_account_key)
    _openssl("ec", "-in", authority.service_account_key, "-pubout", "-out", authority.service_account_public_key)
    return authority


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: object) -> None:
    if shutil.which("openssl") is None:
        raise ClusterError("The openssl command makes the certificates and is missing: install it (package openssl).")
    result = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60)
    if result.returncode != 0:
        raise ClusterError(f"openssl {arguments[0]} failed: {result.stderr.strip().splitlines()[-1]}")
