"""Asks the agents of every pod for their status: bounded in size, time and number at once."""

import asyncio
import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import aiohttp

from umbra_operator import metrics
from umbra_operator.agents import Agents, EngineAgent, engine_agent, store_agent
from umbra_operator.judge import Judge
from umbra_operator.records import Key, PodRecord
from umbra_operator.render import names

T = TypeVar("T")

ANSWER_BYTES = 4096
"""An agent's ``/status`` is at most this long."""
ANSWER_SECONDS = 3.0
BUSY_SECONDS, STEADY_SECONDS, SILENT_SECONDS = 1.0, 10.0, 60.0
"""Between two questions to a pod that is changing, to one that is not, and at most to one that does not answer."""
AT_ONCE, SILENT_AT_ONCE = 32, 8
"""Questions under way, to pods that answer and to those that do not: a dead node must not slow down the others."""
TURN_SECONDS = 0.25
"""Between two looks at which pods are due."""
FIRST_SECONDS = 10.0
PATIENCE = 3
"""Questions in a row without an answer after which the last answer no longer counts."""


class Poller:
    """Keeps the last answers of every pod's agents, by pod uid, and reports keys of which something else is known."""

    def __init__(self, pods: Callable[[], Iterable[PodRecord]], changed: Callable[[Key], None]) -> None:
        self._pods = pods
        self._changed = changed
        self.judge = Judge()
        """What the numbers in the answers come to."""
        self._answers: dict[str, Agents] = {}
        self._due: dict[str, float] = {}
        self._silent: dict[str, tuple[int, int]] = {}
        self._asking: set[str] = set()
        self._hasty: set[str] = set()
        self._limit, self._silent_limit = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(SILENT_AT_ONCE)

    def agents(self, pods: Iterable[PodRecord]) -> dict[str, Agents]:
        """Last answers of these pods, by uid."""
        return {pod.uid: self._answers[pod.uid] for pod in pods if pod.uid in self._answers}

    def hasten(self, uid: str) -> None:
        """Ask this pod's agents soon, whatever is under way: something about it has just changed."""
        self._hasty.add(uid)

    async def first(self) -> None:
        """Asks every pod once, for at most 10 s: without their answers a new operator would deny what is ready."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_SECONDS), _session() as session, asyncio.TaskGroup() as group:
                self._turn(session, group)

    async def run(self) -> None:
        """Asks for ever."""
        async with _session() as session, asyncio.TaskGroup() as group:
            while True:
                self._turn(session, group)
                await asyncio.sleep(TURN_SECONDS)

    def _turn(self, session: aiohttp.ClientSession, group: asyncio.TaskGroup) -> None:
        """Begins a question to each pod that is due; waits for none."""
        now = asyncio.get_running_loop().time()
        pods = [pod for pod in self._pods() if pod.address and not pod.deleting]
        known = {pod.uid for pod in pods}
        for gone in self._answers.keys() - known:
            del self._answers[gone]
            self._due.pop(gone, None)
            self._silent.pop(gone, None)
        self.judge.forget(known)
        self._hasty &= known
        for pod in pods:
            due = pod.uid in self._hasty or self._due.get(pod.uid, 0.0) <= now
            if due and pod.uid not in self._asking:
                self._asking.add(pod.uid)
                self._hasty.discard(pod.uid)
                group.create_task(self._ask(session, pod))

    async def _ask(self, session: aiohttp.ClientSession, pod: PodRecord) -> None:
        try:
            async with self._silent_limit if min(self._silent.get(pod.uid, (0, 0))) else self._limit:
                engine, store = await asyncio.gather(
                    _status(session, pod, names.ENGINE, names.ENGINE_AGENT_PORT, engine_agent),
                    _status(session, pod, names.STORE, names.STORE_AGENT_PORT, store_agent),
                )
        finally:
            self._asking.discard(pod.uid)
        answer = self._patiently(pod.uid, Agents(engine=engine, store=store))
        delay = self._delay(pod, engine) * random.uniform(0.8, 1.2)  # noqa: S311 - jitter, not a secret
        now = asyncio.get_running_loop().time()
        self._due[pod.uid] = now + delay
        judged = self.judge.hear(pod, answer, now)
        changed = self._answers.get(pod.uid) != answer
        self._answers[pod.uid] = answer
        if changed or judged:
            self._changed(pod.key)

    def _delay(self, pod: PodRecord, engine: EngineAgent | None) -> float:
        if pod.ready and engine is not None and engine.revision == pod.launch_revision:
            return STEADY_SECONDS
        # Neither agent of a pod that should answer does: its node may be gone, and each question costs 3 s.
        silent = min(self._silent[pod.uid]) if _should_answer(pod) else 0
        return min(SILENT_SECONDS, BUSY_SECONDS * 2.0 ** max(0, min(silent, 16) - PATIENCE))

    def _patiently(self, uid: str, answer: Agents) -> Agents:
        """The answer, its gaps filled from the last one: a single lost question must not look like a lost engine."""
        last, (engine, store) = self._answers.get(uid, Agents()), self._silent.get(uid, (0, 0))
        engine, store = (0 if answer.engine else engine + 1), (0 if answer.store else store + 1)
        self._silent[uid] = (engine, store)
        return Agents(
            engine=answer.engine or (last.engine if engine < PATIENCE else None),
            store=answer.store or (last.store if store < PATIENCE else None),
        )


def _should_answer(pod: PodRecord) -> bool:
    return all((record := pod.container(name)) and record.started for name in (names.ENGINE, names.STORE))


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), trust_env=False)


async def _status(
    session: aiohttp.ClientSession, pod: PodRecord, container: str, port: int, parse: Callable[[Any], T]
) -> T | None:
    record = pod.container(container)
    if record is None or not record.started:
        return None
    host = f"[{pod.address}]" if pod.address and ":" in pod.address else pod.address
    try:
        async with session.get(f"http://{host}:{port}/status", allow_redirects=False) as response:
            raw = await _read(response)
        if response.status != 200 or len(raw) > ANSWER_BYTES:
            raise ValueError(f"status {response.status}, {len(raw)} bytes")
        answer = parse(json.loads(raw))
    except Exception:
        # Too late, too long, too deep, not a number: whatever a pod answers must not stop the operator.
        metrics.POLLS.labels(container, "failure").inc()
        return None
    metrics.POLLS.labels(container, "success").inc()
    return answer


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """The answer, up to one byte more than it may have; it can arrive in several pieces."""
    raw = b""
    while len(raw) <= ANSWER_BYTES and (piece := await response.content.read(ANSWER_BYTES + 1 - len(raw))):
        raw += piece
    return raw
