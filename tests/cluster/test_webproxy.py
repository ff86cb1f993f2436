"""On a machine behind a web proxy, what the cluster's parts say to each other goes straight."""

import http.server
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from localcluster import webproxy

DEAD = "http://127.0.0.1:9"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A web server of this machine, while the environment names a proxy that nobody answers at."""
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, DEAD)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_server_of_this_machine_is_asked_without_the_proxy(address: str) -> None:
    # What `urlopen` uses is made once in a process, before this environment.
    client = urllib.request.build_opener()
    with pytest.raises(urllib.error.URLError):
        client.open(address, timeout=5)
    webproxy.bypass()
    with client.open(address, timeout=5) as answer:
        assert answer.status == 200


def test_what_the_user_excepted_stays_excepted_and_the_clusters_ranges_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "registry.example.com, 127.0.0.1")
    webproxy.bypass()
    webproxy.bypass()
    excepted = os.environ["NO_PROXY"].split(",")
    assert excepted[:2] == ["registry.example.com", "127.0.0.1"]
    assert {"10.244.0.0/24", "10.0.0.0/24", "10.244.0.1"} <= set(excepted)
    assert len(excepted) == len(set(excepted))
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"]
