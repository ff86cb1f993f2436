"""The gate where the real server cannot be brought to: web sockets, and what a client may send."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from umbra_agent.drain import RunningCount, RunningRequests
from umbra_agent.middleware import Gate, Message, Receive, Scope, Send


async def _engine(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "passed on"})


def answers(gate: Gate, scope: dict[str, Any], body: list[Message] | None = None) -> list[Message]:
    """What the gate sends; what of `body` it leaves unread stays in the list."""
    sent: list[Message] = []

    async def receive() -> Message:
        assert body, "the request has no more"
        return body.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(gate({"headers": [], **scope}, receive, send))
    return sent


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    (tmp_path / "key").write_text("secret")
    files = {"admin_key_file": tmp_path / "key", "api_key_file": None, "drain_flag": tmp_path / "drain"}
    return Gate(_engine, **files, running=UNCOUNTED)


UNCOUNTED = RunningRequests(None)


AUTHORISED = (b"authorization", b"Bearer secret")


def test_a_web_socket_is_taken_with_the_key_and_not_in_a_drain(gate: Gate, tmp_path: Path) -> None:
    refused, taken = [{"type": "websocket.close", "code": 1008}], [{"type": "passed on"}]
    assert answers(gate, {"type": "websocket"}) == refused
    assert answers(gate, {"type": "websocket", "headers": [AUTHORISED]}) == taken
    (tmp_path / "drain").touch()
    assert answers(gate, {"type": "websocket", "headers": [AUTHORISED]}) == refused


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer secre")],
        [(b"authorization", b"Basic secret")],
        [(b"authorization", "Bearer secr\u00e9t".encode())],
        [AUTHORISED, AUTHORISED],
    ],
)
def test_what_is_no_key_opens_nothing(gate: Gate, headers: list[tuple[bytes, bytes]]) -> None:
    sent = answers(gate, {"type": "http", "method": "GET", "path": "/server_info", "headers": headers})
    assert sent[0]["status"] == 401


def test_without_a_key_file_every_route_is_open(tmp_path: Path) -> None:
    gate = Gate(_engine, admin_key_file=None, api_key_file=None, drain_flag=tmp_path / "drain", running=UNCOUNTED)
    assert answers(gate, {"type": "http", "method": "GET", "path": "/server_info"}) == [{"type": "passed on"}]


def test_a_refused_request_is_read_to_its_end(gate: Gate, tmp_path: Path) -> None:
    """A connection that is closed over unread bytes is reset, and the client never sees the 503."""
    (tmp_path / "drain").touch()
    body: list[Message] = [{"type": "http.request", "more_body": True}] * 3 + [{"type": "http.request"}]
    sent = answers(gate, {"type": "http", "method": "POST", "path": "/generate"}, body)
    assert sent[0]["status"] == 503
    assert {(b"retry-after", b"1"), (b"connection", b"close")} <= set(sent[0]["headers"])
    assert body == []
    gone: list[Message] = [{"type": "http.request", "more_body": True}, {"type": "http.disconnect"}]
    assert answers(gate, {"type": "http", "method": "POST", "path": "/generate"}, gone)[0]["status"] == 503


def _status(gate: Gate, path: str, token: str | None) -> int:
    """Status of a refusal; 200 when the request was passed on."""
    headers = [(b"authorization", f"Bearer {token}".encode())] if token is not None else []
    method = "POST" if path == "/generate" else "GET"
    (first, *_) = answers(
        gate, {"type": "http", "method": method, "path": path, "headers": headers}, [{"type": "http.request"}]
    )
    return int(first.get("status", 200))


def test_an_api_key_stays_closed_without_an_admin_key(tmp_path: Path) -> None:
    (tmp_path / "api").write_text("user")
    gate = Gate(_engine, admin_key_file=None, api_key_file=tmp_path / "api", drain_flag=None, running=UNCOUNTED)
    assert [_status(gate, "/generate", token) for token in (None, "", "user")] == [401, 401, 200]


def test_the_engine_itself_may_do_all(tmp_path: Path) -> None:
    files = {"admin_key_file": tmp_path / "missing", "api_key_file": tmp_path / "missing"}
    gate = Gate(_engine, **files, drain_flag=None, running=UNCOUNTED, own_key=b"own")
    paths = ("/generate", "/freeze_gc")
    assert [_status(gate, path, token) for path in paths for token in (None, "", "own")] == [401, 401, 200] * 2
    gate = Gate(_engine, **files, drain_flag=None, running=UNCOUNTED)
    assert [_status(gate, path, "") for path in paths] == [401, 401]


def counts_of(tmp_path: Path, scope: dict[str, Any]) -> list[int]:
    """What the agent reads of the count: before, while and after the engine or a refusal works on the request."""
    count = RunningCount(tmp_path / "run" / "running")
    seen: list[int] = []

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(count.latest)
        await receive()

    async def receive() -> Message:
        seen.append(count.latest)
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        seen.append(count.latest)

    running = RunningRequests(tmp_path / "run" / "running")
    files = {"admin_key_file": None, "api_key_file": None, "drain_flag": tmp_path / "drain"}
    seen.append(count.latest)
    asyncio.run(Gate(engine, **files, running=running)({"headers": [], **scope}, receive, send))
    return [*seen, count.latest]


GENERATE = {"type": "http", "method": "POST", "path": "/generate"}


@pytest.mark.parametrize("scope", [GENERATE, GENERATE | {"path": "/v1/embeddings"}, {"type": "websocket"}])
def test_a_request_counts_from_before_its_body_is_read_until_its_answer_is_whole(
    tmp_path: Path, scope: dict[str, Any]
) -> None:
    assert counts_of(tmp_path, scope) == [0, 1, 1, 0]


@pytest.mark.parametrize("scope", [{"type": "http", "method": "GET", "path": "/metrics"}, {"type": "lifespan"}])
def test_what_loses_nobody_an_answer_does_not_count(tmp_path: Path, scope: dict[str, Any]) -> None:
    assert counts_of(tmp_path, scope) == [0, 0, 0, 0]


def test_a_refused_request_holds_up_no_drain(tmp_path: Path) -> None:
    (tmp_path / "drain").touch()
    assert counts_of(tmp_path, GENERATE) == [0, 0, 0, 0, 0]


def test_a_request_counts_before_the_flag_is_looked_at(tmp_path: Path) -> None:
    """Else one could pass between the agent's flag and its look at the count, and be lost."""
    count = RunningCount(tmp_path / "running")
    seen: list[int] = []

    class Flag(type(tmp_path)):  # type: ignore[misc]
        def exists(self, **_options: Any) -> bool:
            seen.append(count.latest)
            return False

    files = {"admin_key_file": None, "api_key_file": None, "drain_flag": Flag(tmp_path / "drain")}
    answers(Gate(_engine, **files, running=RunningRequests(tmp_path / "running")), GENERATE)
    assert seen == [1]


def test_a_request_that_fails_is_not_counted_for_ever(tmp_path: Path) -> None:
    async def fails(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("the route failed")

    running = RunningRequests(tmp_path / "running")
    gate = Gate(fails, admin_key_file=None, api_key_file=None, drain_flag=None, running=running)
    with pytest.raises(RuntimeError, match="the route failed"):
        answers(gate, GENERATE)
    assert RunningCount(tmp_path / "running").latest == 0


def test_a_count_that_cannot_be_written_costs_no_engine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").write_text("a file where the folder should be")
    with RunningRequests(tmp_path / "run" / "running"):
        assert RunningCount(tmp_path / "run" / "running").latest == 0
    assert "Requests cannot be counted" in capfd.readouterr().err
