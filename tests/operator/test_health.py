"""Liveness, readiness and the port that tells them."""

import gzip
import http.client
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from wsgiref.simple_server import WSGIServer

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from umbra_operator.fleet import Fleet
from umbra_operator.health import PATHS, STALE_LOOK_SECONDS, Health, serve


@pytest.fixture
def health() -> Health:
    return Health(resync_seconds=100)


@pytest.fixture
def server(health: Health) -> Iterator[WSGIServer]:
    server = serve(health, Fleet(), "127.0.0.1", 0)
    yield server
    server.shutdown()
    server.server_close()


def ask(server: WSGIServer, path: str, method: str = "GET") -> int:
    url = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=3) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + seconds)


def test_a_silent_client_keeps_nobody_waiting(server: WSGIServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port)):
        assert ask(server, "/healthz") == 200
        assert ask(server, "/metrics") == 200


def test_the_metrics_of_both_formats_can_be_read(server: WSGIServer) -> None:
    url = f"http://127.0.0.1:{server.server_port}/metrics"
    formats = {
        "text/plain;version=0.0.4": text_string_to_metric_families,
        "application/openmetrics-text;version=1.0.0": openmetrics,
    }
    for accept, parse in formats.items():
        asked = urllib.request.Request(url, headers={"Accept": accept, "Accept-Encoding": "gzip"})
        with urllib.request.urlopen(asked, timeout=3) as response:
            text = gzip.decompress(response.read()).decode()
        names = {family.name for family in parse(text)}
        assert {"umbra_deployment_replicas", "umbra_operator_last_resync_timestamp_seconds"} <= names


def test_three_paths_are_read_and_nothing_else_is_answered(health: Health, server: WSGIServer) -> None:
    health.resynced()
    for path in PATHS:
        for method in ("GET", "HEAD"):
            assert ask(server, path, method) == 200, (path, method)
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert ask(server, path, method) == 405, (path, method)
    for path in ("/", "/metrics/", "/metrics/x", "/healthz2", "/readyz/", "/favicon.ico"):
        for method in ("GET", "HEAD", "POST"):
            assert ask(server, path, method) == 404, (path, method)


def test_a_head_has_the_headers_of_a_get_and_no_body(health: Health, server: WSGIServer) -> None:
    health.resynced()
    client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=3)
    for method in ("GET", "HEAD"):
        client.request(method, "/readyz")
        answer = client.getresponse()
        body = answer.read()
        assert int(answer.headers["Content-Length"]) > 0
        assert bool(body) is (method == "GET")
    client.request("POST", "/metrics")
    refused = client.getresponse()
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD")


def test_who_waits_for_the_lease_is_ready_while_it_can_be_read(health: Health, server: WSGIServer) -> None:
    assert (ask(server, "/healthz"), ask(server, "/readyz")) == (200, 503)
    health.looked(answered=True)
    assert ask(server, "/readyz") == 200
    health.looked(answered=False)
    assert (ask(server, "/healthz"), ask(server, "/readyz")) == (200, 503)


def test_a_leader_is_ready_after_its_first_full_list(health: Health, server: WSGIServer) -> None:
    health.looked(answered=True)
    health.leads()
    assert ask(server, "/readyz") == 503
    health.resynced()
    assert ask(server, "/readyz") == 200


def test_a_leader_without_resyncs_is_dead(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    health.leads()
    health.resynced()
    pass_time(monkeypatch, 299)
    assert health.live()
    pass_time(monkeypatch, 2)
    assert not health.live()
    assert health.sentence() == "last resync 301 s ago"


def test_who_does_not_even_look_at_the_lease_is_dead(health: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    health.looked(answered=False)
    pass_time(monkeypatch, STALE_LOOK_SECONDS + 1)
    assert not health.live()
