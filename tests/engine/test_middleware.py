"""The gate in the real server: what needs the admin key, and what a drain refuses, route by route."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cpuengine.launcher import Engine, EngineExited, ForkLauncher, Launch
from cpuengine.processes import wait_for
from cpuengine.store import Store
from engine_fixtures import linker_arguments
from traffic import prompt
from umbra_agent.drain import DRAIN_FLAG
from umbra_agent.middleware import ADMIN_KEY_FILE, API_KEY_FILE, PUBLIC, Access, access

pytestmark = pytest.mark.engine

KEY = "k3y-of-the-test"


@dataclass
class Guarded:
    """An engine behind the gate, and the files that the gate looks at."""

    engine: Engine
    key: Path
    flag: Path

    @property
    def address(self) -> str:
        return self.engine.client.base.removeprefix("http://")

    def ask(self, method: str, path: str, token: str | None = None, body: object = None) -> http.client.HTTPResponse:
        """One request on a connection of its own; the answer has been read and is closed."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        response.text = response.read().decode()  # type: ignore[attr-defined]
        connection.close()
        return response

    def status(self, method: str, path: str, token: str | None = None, body: object = None) -> int:
        return self.ask(method, path, token, body).status

    def routes(self) -> set[tuple[str, str]]:
        """Method and path of every route that the server tells of."""
        found = json.loads(self.ask("GET", "/openapi.json", KEY).text)  # type: ignore[attr-defined]
        return {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}


@pytest.fixture(scope="module")
def guarded(
    fork_launcher: ForkLauncher, kit_path: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("gate")
    key, flag = folder / "key", folder / "drain"
    key.write_text(f"{KEY}\n")
    env = {ADMIN_KEY_FILE: str(key), DRAIN_FLAG: str(flag)}
    # Without a warm-up SGLang asks to freeze before it listens, now and then, and asks no second time.
    engine = fork_launcher.launch(Launch(["--enable-metrics"], env=env, path=kit_path, warm_up=True), "gate")
    yield Guarded(engine, key, flag)
    engine.stop()


def test_the_engine_passes_its_own_gate(guarded: Guarded) -> None:
    """It asks itself to freeze the garbage collectors of all its processes before it calls itself ready."""
    asked = 'POST /freeze_gc HTTP/1.1" '
    wait_for(lambda: asked in guarded.engine.log.read_text(), 60.0, "the engine did not ask itself")
    assert guarded.engine.log.read_text().split(asked)[1].startswith("200")


def test_every_route_but_the_public_ones_needs_the_key(guarded: Guarded) -> None:
    routes = guarded.routes()
    assert len(routes) > 60
    closed = {(method, path) for method, path in routes if access(method, _filled(path)) is Access.ADMIN}
    assert ("POST", "/flush_cache") in closed
    assert ("GET", "/server_info") in closed
    answers = {
        (method, path): (guarded.status(method, _filled(path)), guarded.status(method, _filled(path), "wrong"))
        for method, path in closed
    }
    assert {route: answer for route, answer in answers.items() if answer != (401, 401)} == {}


def test_every_public_route_exists_and_is_answered_without_a_key(guarded: Guarded) -> None:
    told = {(method, path) for path, method in PUBLIC.items()} - {("GET", "/metrics")}  # mounted, so not told of
    assert told <= guarded.routes()
    answers = {
        path: guarded.status(method, path, body={} if method == "POST" else None) for path, method in PUBLIC.items()
    }
    # An empty body is refused for what it lacks.
    assert {path: status for path, status in answers.items() if status in (401, 403, 404, 405)} == {}


def test_the_key_opens_the_rest_and_is_told_nowhere(guarded: Guarded) -> None:
    info = guarded.ask("GET", "/server_info", KEY)
    assert info.status == 200
    assert KEY not in info.text  # type: ignore[attr-defined]
    assert guarded.status("POST", "/flush_cache", KEY, {}) == 200
    assert KEY not in guarded.engine.log.read_text()


def test_with_an_api_key_work_needs_it_and_what_only_tells_does_not(
    fork_launcher: ForkLauncher, kit_path: list[Path], tmp_path: Path
) -> None:
    admin_key, api_key = tmp_path / "admin", tmp_path / "api"
    admin_key.write_text(KEY)
    api_key.write_text("us3r\n")
    env = {ADMIN_KEY_FILE: str(admin_key), API_KEY_FILE: str(api_key)}
    engine = fork_launcher.launch(Launch(["--enable-metrics"], env=env, path=kit_path, warm_up=True), "api-key")
    keyed = Guarded(engine, admin_key, tmp_path / "drain")
    body = {"input_ids": prompt(64, seed=9), "sampling_params": {"max_new_tokens": 1}}
    try:
        answers = {token: keyed.status("POST", "/generate", token, body) for token in (None, "", "wrong", "us3r", KEY)}
        told = {path: keyed.status(method, path) for path, method in PUBLIC.items() if method == "GET"}
        refused = {path: keyed.status(method, path, "wrong", {}) for path, method in PUBLIC.items() if method == "POST"}
        admin = keyed.status("GET", "/server_info", "us3r")
        browser = keyed.status("OPTIONS", "/v1/chat/completions")
        api_key.write_text("rotated")
        rotated = {token: keyed.status("POST", "/generate", token, body) for token in ("us3r", "rotated")}
        api_key.write_text("")
        emptied = {token: keyed.status("POST", "/generate", token, body) for token in (None, "")}
    finally:
        engine.stop()
    assert answers == {None: 401, "": 401, "wrong": 401, "us3r": 200, KEY: 200}
    assert {path for path, status in told.items() if status == 401} == set()
    assert set(refused.values()) == {401}
    assert admin == 401
    assert browser != 401
    assert rotated == {"us3r": 401, "rotated": 200}
    assert set(emptied.values()) == {401}


@pytest.mark.parametrize(
    "path", ["/server_info/", "//server_info", "/generate/../server_info", "/SERVER_INFO", "/docs"]
)
def test_another_spelling_is_no_way_in(guarded: Guarded, path: str) -> None:
    assert guarded.status("GET", path) == 401


def test_a_key_that_is_replaced_is_taken_at_once(guarded: Guarded) -> None:
    guarded.key.write_text("another")
    try:
        assert guarded.status("GET", "/server_info", KEY) == 401
        assert guarded.status("GET", "/server_info", "another") == 200
        guarded.key.write_text("\n")
        assert guarded.status("GET", "/server_info", "") == 401
    finally:
        guarded.key.write_text(KEY)


def test_a_web_socket_needs_the_key(guarded: Guarded) -> None:
    # 401 where the server has no library for web sockets and takes it for an ordinary request.
    assert _upgrade(guarded, "") in (401, 403)
    assert _upgrade(guarded, f"Authorization: Bearer {KEY}\r\n") not in (401, 403)


def test_a_drain_refuses_what_is_new_and_lets_the_rest_end(guarded: Guarded) -> None:
    body = {
        "input_ids": prompt(64, seed=7),
        "stream": True,
        "sampling_params": {"max_new_tokens": 30, "ignore_eos": True},
    }
    connection = http.client.HTTPConnection(guarded.address, timeout=60)
    connection.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
    running = connection.getresponse()
    assert running.readline().startswith(b"data: ")
    guarded.flag.touch()
    try:
        refused = guarded.ask("POST", "/generate", body={"input_ids": prompt(200_000)})
        # /health asks the engine for a token, and that takes it a second.
        others = {path: guarded.status(method, path) for path, method in PUBLIC.items() if "health" not in path}
        admin = guarded.status("GET", "/server_info", KEY)
        rest = running.read().decode().strip().split("\n\n")
    finally:
        guarded.flag.unlink()
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2].removeprefix("data: "))["meta_info"]["completion_tokens"] == 30
    assert (refused.status, refused.getheader("connection")) == (503, "close")
    serving = {path for path, method in PUBLIC.items() if method == "POST"}
    assert {path for path, status in others.items() if status == 503} == serving
    assert admin == 200
    assert len(guarded.engine.client.generate(prompt(64, seed=8)).logprobs) == 4


def test_an_empty_key_file_ends_the_engine(fork_launcher: ForkLauncher, kit_path: list[Path], tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    with pytest.raises(EngineExited, match="holds no key"):
        fork_launcher.launch(Launch([], env={ADMIN_KEY_FILE: str(tmp_path / "key")}, path=kit_path), "no-key")


def test_several_tokenizer_workers_end_the_engine(
    fork_launcher: ForkLauncher, kit_path: list[Path], store: Store
) -> None:
    arguments = [*linker_arguments(store.address), "--tokenizer-worker-num", "2"]
    with pytest.raises(EngineExited, match="2 tokenizer workers would serve without the admin key"):
        fork_launcher.launch(Launch(arguments, path=kit_path), "workers")


def _filled(path: str) -> str:
    """The path with something in the place of its parameters."""
    return re.sub(r"\{[^}]*\}", "any", path)


def _upgrade(guarded: Guarded, header: str) -> int:
    """The status that answers a web socket's handshake."""
    host, _, port = guarded.address.partition(":")
    lines = f"GET /v1/realtime HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{header}"
    lines += "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(lines.encode())
        return int(connection.recv(64).split()[1])
