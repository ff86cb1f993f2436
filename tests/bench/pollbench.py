"""``make bench-poll``: what asking and judging many engines costs the operator, as a share of one core.

The agents are servers in another process whose numbers differ in each answer, as a busy engine's do; poller and judge
are the operator's own, at their own pace.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from agentservers import AgentServers
from builders import NAMESPACE, stored
from figures import Figure, report
from series import Series
from umbra_operator.poll import STEADY_SECONDS, Poller
from umbra_operator.records import Key, PodRecord, pod_record
from umbra_operator.render import names

ENGINES = 100
MOST_PERCENT = 2.0
"""Of a core."""
WARM_SECONDS, MEASURED_SECONDS = 2 * STEADY_SECONDS, 6 * STEADY_SECONDS
REVISION = "abc"


def _address(number: int) -> str:
    return f"127.9.1.{number + 1}"


def _pod(number: int) -> PodRecord:
    labels = {names.LABEL_DEPLOYMENT: f"k{number}", names.LABEL_ORDINAL: "0", names.LABEL_ATTEMPT: "0"}
    meta = {"name": f"k{number}-0-0", "namespace": NAMESPACE, "labels": labels}
    body = stored({"metadata": {**meta, "annotations": {names.ANNOTATION_REVISION: REVISION}}}, f"u{number}")
    status = {
        "podIP": _address(number),
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": name, "started": True} for name in (names.STORE, names.ENGINE)],
    }
    found = pod_record({**body, "status": status})
    assert found
    return found


def _serve(line: Connection) -> None:
    """The agents, until the other end says something."""
    series = Series()

    def engine() -> dict[str, Any]:
        for name in ("promptTokens", "hitTokens", "computedTokens", "lookupPages", "storedBytes"):
            series.digest[name] += 50
        state = {"revision": REVISION, "wantedRevision": REVISION, "state": "serving", "restarts": 0, "problem": None}
        return {**state, **series.engine()}

    def store() -> dict[str, Any]:
        evictions = {"rounds": 0, "keys": 0, "bytes": 0, "stuck": 0}
        return {"epoch": "e1", "state": "ready", "problem": None, "capacityBytes": 1 << 40, "evictions": evictions}

    with AgentServers() as agents:
        for number in range(ENGINES):
            agents.open(_address(number), {names.ENGINE_AGENT_PORT: engine, names.STORE_AGENT_PORT: store})
        line.send("ready")
        line.recv()


async def _share() -> float:
    """Percent of a core that the poller takes once every engine is steady."""
    pods = [_pod(number) for number in range(ENGINES)]
    changed: list[Key] = []
    poller = Poller(lambda: pods, changed.append)
    asking = asyncio.create_task(poller.run())
    await asyncio.sleep(WARM_SECONDS)
    silent = [pod.name for pod in pods if not (answer := poller.agents([pod]).get(pod.uid)) or not answer.engine]
    assert not silent, f"{silent} did not answer: the figure would be about failures"
    changed.clear()
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.sleep(MEASURED_SECONDS)
    share = 100 * (time.process_time() - cpu) / (time.monotonic() - began)
    asking.cancel()
    assert not changed, "numbers that move are no news"
    return share


def main() -> None:
    """Measures and writes the report; fails above the bound."""
    here, there = multiprocessing.Pipe()
    agents = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,))
    agents.start()
    try:
        here.recv()
        share = asyncio.run(_share())
    finally:
        here.send("end")
        agents.join(10)
    report("poll", [Figure(f"poll_{ENGINES}_engines", round(share, 2), "% of a core")])
    if share > MOST_PERCENT:
        raise SystemExit(f"{share:.2f} % of a core for {ENGINES} engines; at most {MOST_PERCENT:g} % is wanted")


if __name__ == "__main__":
    main()
