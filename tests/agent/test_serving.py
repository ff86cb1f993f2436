"""The HTTP server and what it encodes: sizes are bounded whatever the texts hold."""

import json
import socket
import time
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parts import leave_out
from umbra_agent.child import Exit
from umbra_agent.engine_view import EngineSnapshot, LastExit, status
from umbra_agent.metrics import Metric, Sample, render
from umbra_agent.report import bounded
from umbra_agent.serving import Server, Views, encode_status

LONG = st.text(max_size=6000)


@given(LONG, LONG, LONG, LONG)
def test_status_is_bounded_json_for_any_text(problem: str, kit: str, revision: str, epoch: str) -> None:
    snapshot = EngineSnapshot(
        kit=kit, revision=revision, problem=problem, last_exit=LastExit(Exit(255, None, 1.8e9), "StartFailed")
    )
    raw = encode_status(status(snapshot, epoch, 1.8e9))
    assert len(raw) <= 4096
    assert json.loads(raw)["agent"] == "engine"


@given(st.text(), st.integers(min_value=8, max_value=400))
def test_bounded_text_stays_bounded_in_json(text: str, limit: int) -> None:
    line = bounded(text, limit)
    assert len(line.encode()) <= limit
    assert len(json.dumps(line, ensure_ascii=False).encode()) == len(line.encode()) + 2
    assert "\n" not in line


def test_labels_are_escaped() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    value = 'a"b\\c\nd'
    text = render([Sample(Metric("umbra_agent_x", "gauge", "Help."), 0.1, {"label": value})])
    (family,) = text_string_to_metric_families(text)
    assert family.samples[0].labels == {"label": value}
    assert family.samples[0].value == 0.1


def make_server(**changes: Any) -> Server:
    views = {"status": dict, "ready": lambda: None, "metrics": lambda: "", **changes}
    return Server("127.0.0.1", 0, Views(**views))


def test_a_silent_client_blocks_nobody() -> None:
    server = make_server()
    try:
        silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(20)]
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=2) as client:
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - began < 1
        silent[0].settimeout(8)
        assert silent[0].recv(1) == b"", "it is dropped after the request timeout"
        for connection in silent:
            connection.close()
    finally:
        server.close()


def test_ipv6_address() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        leave_out("IPv6", f"no loopback address ::1 can be bound here: {error.strerror}")
    server = Server("::1", 0, Views(dict, lambda: None, str))
    try:
        with socket.create_connection(("::1", server.server_port), timeout=2) as client:
            client.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        server.close()


def test_port_is_free_again_after_close() -> None:
    server = make_server()
    port = server.server_port
    server.close()
    Server("127.0.0.1", port, Views(dict, lambda: None, str)).close()
