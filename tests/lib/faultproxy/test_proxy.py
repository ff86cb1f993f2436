"""The proxy before the real API server: each fault does to the client and to the server exactly what it says."""

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from apiproxy import proxied
from faultproxy import (
    WRITES,
    Answer,
    Crash,
    CutAfter,
    CutBefore,
    Delay,
    Expire,
    Fault,
    FaultProxy,
    Freeze,
    LoseEvents,
    Match,
    ReplyLost,
    Silence,
    StaleList,
)
from localcluster import pki
from localcluster.controlplane import ControlPlane

pytestmark = pytest.mark.apiserver

GONE = (http.client.RemoteDisconnected, ConnectionError, ssl.SSLError)


class Client:
    """A namespace's ConfigMaps through the proxy, or straight from the server."""

    def __init__(self, url: str, authority: pki.Authority, token: str, namespace: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port)
        self._context = ssl.create_default_context(cafile=str(authority.ca))
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    def open(
        self, method: str, name: str = "", body: Any = None, timeout: float = 5, query: str = ""
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(*self._address, context=self._context, timeout=timeout)
        path = self._path + (f"/{name}" if name else "") + query
        connection.request(method, path, json.dumps(body) if body else None, self._headers)
        return connection, connection.getresponse()

    def ask(self, *arguments: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        connection, response = self.open(*arguments, **more)
        with closing(connection):
            return response.status, json.loads(response.read())

    def create(self, name: str, timeout: float = 5) -> int:
        return self.ask("POST", body={"metadata": {"name": name}, "data": {"a": "1"}}, timeout=timeout)[0]

    def names(self) -> set[str]:
        items = self.ask("GET")[1]["items"]
        return {item["metadata"]["name"] for item in items} - {"kube-root-ca.crt"}

    def watch(self, timeout: float = 5) -> Iterator[tuple[str, str]]:
        """(type, name) of events, until the stream ends or is silent for `timeout` seconds."""
        connection, response = self.open("GET", timeout=timeout, query="?watch=true")
        with closing(connection):
            try:
                while line := response.readline():
                    event = json.loads(line)
                    yield event["type"], event["object"].get("metadata", {}).get("name", "")
            except TimeoutError:
                yield "SILENCE", ""


class Sides:
    """A proxy, and a client on each side of it."""

    def __init__(self, proxy: FaultProxy, near: Client, far: Client) -> None:
        self.proxy, self.near, self.far = proxy, near, far


@pytest.fixture
def sides(control_plane: ControlPlane, namespace: str) -> Iterator[Sides]:
    control_plane.kubectl(
        "-n", namespace, "create", "rolebinding", "all", "--clusterrole=admin", f"--serviceaccount={namespace}:default"
    )
    token = control_plane.kubectl("-n", namespace, "create", "token", "default").strip()
    authority = pki.Authority(control_plane.directory / "pki")
    with proxied(control_plane) as proxy:
        near, far = (Client(url, authority, token, namespace) for url in (proxy.url, control_plane.url))
        while far.ask("GET")[0] == 403:
            time.sleep(0.05)  # the server's authorizer follows a new binding a moment later
        yield Sides(proxy, near, far)


def test_without_rules_it_is_not_there(sides: Sides) -> None:
    assert sides.near.create("a") == 201
    assert sides.near.create("a") == 409
    assert sides.near.names() == sides.far.names() == {"a"}
    assert [str(each).split()[0] for each in sides.proxy.requests()][:3] == ["create", "create", "list"]


def test_it_counts_what_the_server_carried_out_by_object(sides: Sides) -> None:
    with sides.proxy.failing(CutBefore(), Match(name="b")), pytest.raises(GONE):
        sides.near.create("b")
    for name in ("a", "a", "c"):
        sides.near.create(name)
    sides.near.ask("DELETE", "c")
    counts = {key[2]: count for key, count in sides.proxy.writes().items()}
    assert counts == {"a": 1, "c": 2}, "a refused create and one that never arrived changed nothing"


def test_a_delay_comes_before_the_server_sees_the_request(sides: Sides) -> None:
    with sides.proxy.failing(Delay(0.5), Match(WRITES)):
        began = time.monotonic()
        late = threading.Thread(target=sides.near.create, args=("a",))
        late.start()
        time.sleep(0.2)
        assert sides.far.names() == set()
        late.join()
        assert 0.5 <= time.monotonic() - began < 3
    assert sides.far.names() == {"a"}


@pytest.mark.parametrize(
    ("fault", "problem", "stored"),
    [
        (CutBefore(), GONE, False),
        (CutAfter(), GONE, True),
        (Silence(), TimeoutError, False),
        (ReplyLost(), TimeoutError, True),
    ],
)
def test_broken_and_silent_connections(
    sides: Sides, fault: Fault, problem: type[Exception] | tuple[type[Exception], ...], stored: bool
) -> None:
    with sides.proxy.failing(fault, Match({"create"})), pytest.raises(problem):
        sides.near.create("a", timeout=1)
    assert sides.far.names() == ({"a"} if stored else set())
    assert sides.near.create("b") == 201


def test_an_answer_has_the_form_of_the_api_server(sides: Sides) -> None:
    with sides.proxy.failing(Answer(429, retry_after=7), Match({"create"}), skip=1, times=1):
        assert sides.near.create("a") == 201
        connection, response = sides.near.open("POST", body={"metadata": {"name": "b"}})
        with closing(connection):
            assert (response.status, response.headers["Retry-After"]) == (429, "7")
            assert json.loads(response.read())["reason"] == "TooManyRequests"
        assert sides.near.create("c") == 201
    assert sides.far.names() == {"a", "c"}


def test_a_list_stays_as_it_was(sides: Sides) -> None:
    stale = StaleList()
    with sides.proxy.failing(stale, Match({"list"})):
        sides.near.create("a")
        assert sides.near.names() == {"a"}
        sides.near.create("b")
        assert sides.near.names() == {"a", "b"}
        stale.hold()
        sides.near.create("c")
        assert sides.near.names() == {"a", "b"}
    assert sides.near.names() == {"a", "b", "c"}


def _names(events: Iterator[tuple[str, str]], until: str) -> list[tuple[str, str]]:
    """Events of our own objects, up to the first of the type `until`."""
    found = []
    for event in events:
        if event[1] != "kube-root-ca.crt":
            found.append(event)
        if event[0] == until:
            break
    return found


def test_a_watch_passes_event_by_event(sides: Sides) -> None:
    sides.far.create("a")
    found: list[tuple[str, str]] = []
    reader = threading.Thread(target=lambda: found.extend(_names(sides.near.watch(), "DELETED")))
    reader.start()
    time.sleep(0.5)
    sides.far.ask("DELETE", "a")
    reader.join(5)
    assert found == [("ADDED", "a"), ("DELETED", "a")]


def test_a_half_open_watch_is_silent_though_the_server_speaks(sides: Sides) -> None:
    sides.far.create("a")
    with sides.proxy.failing(Freeze(), Match({"watch"})):
        assert _names(sides.near.watch(timeout=1), "SILENCE") == [("SILENCE", "")]


def test_a_frozen_stream_goes_on_where_it_stood(sides: Sides) -> None:
    sides.far.create("a")
    with sides.proxy.failing(Freeze(seconds=1), Match({"watch"})):
        began = time.monotonic()
        assert _names(sides.near.watch(), "ADDED")[-1][0] == "ADDED"
        assert time.monotonic() - began >= 1


def test_lost_events(sides: Sides) -> None:
    for name in ("a", "b"):
        sides.far.create(name)

    def lose(event: dict[str, Any]) -> bool:
        return str(event["object"]["metadata"].get("name")) == "a"

    with sides.proxy.failing(LoseEvents(lose), Match({"watch"})):
        assert _names(sides.near.watch(timeout=1), "SILENCE") == [("ADDED", "b"), ("SILENCE", "")]


def test_an_expired_watch_ends_with_410_in_its_stream(sides: Sides) -> None:
    with sides.proxy.failing(Expire(), Match({"watch"})):
        assert list(sides.near.watch()) == [("ERROR", "")]


@pytest.mark.parametrize(("point", "stored", "told"), [("before", 0, 0), ("reply-lost", 1, 0), ("after", 1, 1)])
def test_a_crash_at_each_point_of_a_write(sides: Sides, point: Any, stored: int, told: int) -> None:
    seen_at_crash: list[set[str]] = []
    crashed = threading.Event()

    def kill() -> None:
        seen_at_crash.append(sides.far.names())
        crashed.set()

    with sides.proxy.failing(Crash(point, kill), Match(WRITES), skip=1, times=1):
        assert sides.near.create("a") == 201
        if told:
            assert sides.near.create("b") == 201
        else:
            with pytest.raises(GONE):
                sides.near.create("b")
        assert crashed.wait(5)
    assert seen_at_crash == [{"a", "b"} if stored else {"a"}]


def test_a_client_that_goes_away_leaves_no_watch_at_the_server(sides: Sides, control_plane: ControlPlane) -> None:
    def watches() -> int:
        text = control_plane.kubectl("get", "--raw", "/metrics")
        lines = [line for line in text.splitlines() if line.startswith("apiserver_longrunning_requests{")]
        return sum(
            int(line.rsplit(" ", 1)[1])
            for line in lines
            if 'resource="configmaps"' in line and 'scope="namespace"' in line
        )

    before = watches()
    connection, _ = sides.near.open("GET", query="?watch=true")
    assert watches() == before + 1
    # An RST, as from a process that was killed.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    connection.close()
    end = time.monotonic() + 5
    while watches() > before and time.monotonic() < end:
        time.sleep(0.1)
    assert watches() == before
