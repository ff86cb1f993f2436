"""The poller against real HTTP servers that answer well, badly, late or without end."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from builders import NAMESPACE, stored
from umbra_operator import poll
from umbra_operator.agents import Agents, EngineAgent, StoreAgent
from umbra_operator.poll import PATIENCE, Poller
from umbra_operator.records import PodRecord, pod_record
from umbra_operator.render import names

ADDRESS = "127.0.0.6"
ENGINE = {"revision": "abc", "wantedRevision": "abc", "state": "serving", "restarts": 0, "problem": None}
STORE = {"epoch": "e1", "state": "ready", "problem": None}
GOOD = Agents(EngineAgent("abc", "abc", "serving", 0, None), StoreAgent("e1", "ready", None))

Answer = Callable[[web.Request], Any]


def record(address: str = ADDRESS, started: bool = True) -> PodRecord:
    labels = {names.LABEL_DEPLOYMENT: "k3", names.LABEL_ORDINAL: "0", names.LABEL_ATTEMPT: "0"}
    body = stored({"metadata": {"name": "k3-0-0", "namespace": NAMESPACE, "labels": labels}}, "u1")
    statuses = [{"name": name, "started": started} for name in (names.STORE, names.ENGINE)]
    found = pod_record({**body, "status": {"podIP": address, "containerStatuses": statuses}})
    assert found
    return found


class Agent:
    """A server on one port whose answer a test chooses."""

    def __init__(self, good: dict[str, Any]) -> None:
        self.answer: Answer = lambda _: web.json_response(good)
        self.asked = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer


async def elsewhere(_: web.Request) -> web.Response:
    return web.json_response(ENGINE)


async def redirect(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/elsewhere")


@pytest.fixture
async def engine() -> AsyncIterator[Agent]:
    """The engine's agent, beside a store's agent that always answers well."""
    agents = {names.ENGINE_AGENT_PORT: Agent(ENGINE), names.STORE_AGENT_PORT: Agent(STORE)}
    runners = []
    for port, agent in agents.items():
        app = web.Application()
        app.router.add_get("/status", agent.handle)
        app.router.add_get("/elsewhere", elsewhere)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, ADDRESS, port).start()
        runners.append(runner)
    yield agents[names.ENGINE_AGENT_PORT]
    for runner in runners:
        await runner.cleanup()


async def ask(poller: Poller, turns: int = 1) -> None:
    """Whole turns, one after the other, as if the pauses between them were over."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=poll.ANSWER_SECONDS)) as session:
        for _ in range(turns):
            for uid, due in poller._due.items():
                poller._due[uid] = due if due > now() + 1.5 else 0.0
            async with asyncio.TaskGroup() as group:
                poller._turn(session, group)


def now() -> float:
    return asyncio.get_running_loop().time()


async def in_pieces(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    text = json.dumps(ENGINE).encode()
    for piece in (text[:20], text[20:]):
        await response.write(piece)
        await asyncio.sleep(0.05)
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 1024)


async def late(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(5)
    return web.json_response(ENGINE)


async def test_good_answers_are_kept_and_reported_once(engine: Agent) -> None:
    changed: list[Any] = []
    poller = Poller(lambda: [record()], changed.append)
    await ask(poller, 2)
    assert poller.agents([record()]) == {"u1": GOOD}
    assert changed == [(NAMESPACE, "k3")]


async def test_an_answer_may_come_in_pieces(engine: Agent) -> None:
    engine.answer = in_pieces
    poller = Poller(lambda: [record()], lambda _: None)
    await ask(poller)
    assert poller.agents([record()])["u1"].engine == GOOD.engine


BAD: dict[str, Answer] = {
    "too long": lambda _: web.json_response({**ENGINE, "more": "x" * poll.ANSWER_BYTES}),
    "without end": endless,
    "not JSON": lambda _: web.Response(text="<html>"),
    "not an object": lambda _: web.json_response([1]),
    "too deep": lambda _: web.Response(text="[" * 4000),
    "not a number": lambda _: web.Response(text=json.dumps({**ENGINE, "restarts": float("inf")})),
    "incomplete": lambda _: web.json_response({"revision": "abc"}),
    "late": late,
    "an error": lambda _: web.Response(status=500),
    "a redirect": redirect,
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_answer_is_none_and_the_other_agent_still_counts(
    engine: Agent, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "ANSWER_SECONDS", 0.3)
    engine.answer = BAD[case]
    poller = Poller(lambda: [record()], lambda _: None)
    await asyncio.wait_for(ask(poller), 3)
    assert poller.agents([record()]) == {"u1": Agents(None, GOOD.store)}


async def test_one_lost_answer_changes_nothing_and_several_do(engine: Agent) -> None:
    changed: list[Any] = []
    poller = Poller(lambda: [record()], changed.append)
    await ask(poller)
    engine.answer = BAD["an error"]
    await ask(poller, PATIENCE - 1)
    assert (poller.agents([record()])["u1"], len(changed)) == (GOOD, 1)
    await ask(poller)
    assert (poller.agents([record()])["u1"].engine, len(changed)) == (None, 2)


async def test_a_container_that_is_not_started_is_not_asked(engine: Agent) -> None:
    poller = Poller(lambda: [record(started=False)], lambda _: None)
    await ask(poller)
    assert engine.asked == 0


async def test_an_address_where_nobody_listens_is_no_answer_and_a_gone_pod_is_forgotten() -> None:
    pods = [record("127.0.0.7")]
    poller = Poller(lambda: pods, lambda _: None)
    await ask(poller)
    assert poller.agents([record()]) == {"u1": Agents()}
    pods.clear()
    await ask(poller)
    assert poller.agents([record()]) == {}


async def test_a_steady_pod_is_asked_seldom_and_at_once_after_a_change(engine: Agent) -> None:
    steady = record()
    object.__setattr__(steady, "ready", True)
    object.__setattr__(steady, "launch_revision", "abc")
    poller = Poller(lambda: [steady], lambda _: None)
    await ask(poller, 3)
    assert engine.asked == 1
    poller.hasten("u1")
    await ask(poller)
    assert engine.asked == 2


async def test_haste_while_a_question_is_under_way_is_not_lost(engine: Agent) -> None:
    steady = record()
    object.__setattr__(steady, "ready", True)
    object.__setattr__(steady, "launch_revision", "abc")
    poller = Poller(lambda: [steady], lambda _: None)

    async def hasten(_: web.Request) -> web.StreamResponse:
        poller.hasten("u1")
        return web.json_response(ENGINE)

    engine.answer = hasten
    await ask(poller)
    await ask(poller)
    assert engine.asked == 2


async def test_a_first_round_that_was_cut_short_is_made_up_for(engine: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "FIRST_SECONDS", 0.2)
    poller = Poller(lambda: [record()], lambda _: None)
    good, engine.answer = engine.answer, late
    await poller.first()
    engine.answer = good
    await ask(poller)
    assert poller.agents([record()]) == {"u1": GOOD}


async def test_many_silent_pods_hold_up_nobody(engine: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = [record("127.0.0.6") for _ in range(100)]
    for number, pod in enumerate(silent):
        object.__setattr__(pod, "uid", f"silent-{number}")
        object.__setattr__(pod, "address", "127.0.0.8")
    held = [await asyncio.start_server(_say_nothing, "127.0.0.8", port) for port in (9600, 9601)]
    answers = record()
    poller = Poller(lambda: [*silent, answers], lambda _: None)
    for pod in silent:  # they were silent before
        poller._silent[pod.uid] = (PATIENCE, PATIENCE)
    task = asyncio.create_task(poller.run())
    await asyncio.sleep(2.5)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for server in held:
        server.close()
    assert engine.asked >= 2


async def _say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)
    writer.close()


async def test_a_pod_that_stays_silent_is_asked_less_and_less() -> None:
    pod = record("127.0.0.7")
    poller = Poller(lambda: [pod], lambda _: None)
    delays = []
    for silent in (1, PATIENCE, PATIENCE + 2, 1000):
        poller._silent["u1"] = (silent, silent)
        delays.append(poller._delay(pod, None))
    assert delays == [poll.BUSY_SECONDS, poll.BUSY_SECONDS, 4 * poll.BUSY_SECONDS, poll.SILENT_SECONDS]
