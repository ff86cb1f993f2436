"""Certificates that openssl itself accepts, and kubeconfigs that only their owner reads."""

import json
import subprocess
from pathlib import Path

import pytest

from localcluster import pki
from localcluster.errors import ClusterError


def test_issued_certificates_verify_and_carry_their_names(tmp_path: Path) -> None:
    authority = pki.create(tmp_path / "pki")
    server, _ = authority.issue("apiserver", "/CN=kube-apiserver", ["DNS:localhost", "IP:127.0.0.1"])
    client, _ = authority.issue("admin", "/O=system:masters/CN=admin")
    argv = ["openssl", "verify", "-CAfile", str(authority.ca), str(server), str(client)]
    subprocess.run(argv, check=True, capture_output=True)
    text = subprocess.run(
        ["openssl", "x509", "-in", str(server), "-noout", "-text"], check=True, capture_output=True, text=True
    ).stdout
    assert "DNS:localhost, IP Address:127.0.0.1" in text
    assert "CA:FALSE" in text


def test_a_kubeconfig_is_private_and_whole(tmp_path: Path) -> None:
    authority = pki.create(tmp_path / "pki")
    authority.issue("admin", "/O=system:masters/CN=admin")
    path = authority.kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:6443", "admin")
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_text())
    assert content["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:6443"
    assert set(content["users"][0]["user"]) == {"client-certificate-data", "client-key-data"}


def test_without_openssl_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="package openssl"):
        pki.create(tmp_path / "pki")
