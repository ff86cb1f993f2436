"""The numbers of one engine and its store over time, as their agents say them, and what a judge makes of them."""

from typing import Any

from builders import NAME, NAMESPACE, stored
from umbra_operator.agents import Agents, engine_agent, store_agent
from umbra_operator.conditions import Reason
from umbra_operator.judge import Assessment, Judge
from umbra_operator.records import PodRecord, pod_record
from umbra_operator.render import names

KEY = (NAMESPACE, NAME)
RANKS = 8
GIB = 1 << 30
STEP_SECONDS = 10
"""Between two answers, as from a pod that is steady."""
COUNTERS = (
    "promptTokens",
    "hitTokens",
    "computedTokens",
    "lookupPages",
    "calls",
    "fastCalls",
    "loads",
    "failedLoads",
    "offloads",
    "heldBackOffloads",
    "storedBytes",
    "comparedObjects",
)
BUSY: dict[str, float] = {
    # A second of a healthy engine: 5,000 prompt tokens, of which the caches have 96.7 %.
    "promptTokens": 5000,
    "hitTokens": 4835,
    "computedTokens": 600,
    "lookupPages": 78,
    "calls": 16,
    "fastCalls": 16,
    "loads": 2,
    "offloads": 3,
    "storedBytes": 20 << 20,
    "comparedObjects": 5,
    "hitPages": 70,
    "evictedTokens": 5000,
}


def record(name: str = "k3-0-0") -> PodRecord:
    labels = {names.LABEL_DEPLOYMENT: NAME, names.LABEL_ORDINAL: "0", names.LABEL_ATTEMPT: "0"}
    found = pod_record(stored({"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}}, f"uid-{name}"))
    assert found
    return found


class Series:
    """One pod over time. A test sets ``digest``, ``ranks`` and ``store`` as an agent would say them."""

    def __init__(self, judge: Judge | None = None, name: str = "k3-0-0", capacity: int = 1160 * GIB) -> None:
        self.judge = judge or Judge()
        self.pod = record(name)
        self.now = 1000.0
        self.told = 0
        """How often something else was told."""
        ranks = [str(rank) for rank in range(RANKS)]
        self.ranks: dict[str, Any] = {
            "reporting": "0-7",
            "treeCore": {"rust": "0-7"},
            "keys": {"0.1.0 Auto umbra1-once-eb72105c": "0-7"},
            "store": {"1760000000.250": "0-7"},
            "breakerOpen": "",
            "hitPages": dict.fromkeys(ranks, 0),
            "evictedTokens": dict.fromkeys(ranks, 0),
            "differentObjects": {},
        }
        self.digest: dict[str, Any] = {
            **dict.fromkeys(COUNTERS, 0),
            "runningRequests": 20,
            "missedPages": {},
            "lockedCheckpoints": 3,
            "checkpointSlots": 120,
            "oldestCallSeconds": 0.0,
        }
        self.problem: str | None = None
        self.started_at = 1.76e9
        self.store: dict[str, Any] = {"epoch": "e1", "capacityBytes": capacity, "rounds": 0, "stuck": 0}
        self.judge.expect([self.pod.uid], RANKS)

    def engine(self) -> dict[str, Any]:
        """The numbers of the engine, as its agent says them."""
        digest = {**self.digest, "at": self.started_at + self.now, "ranks": self.ranks}
        return {
            "startedAt": self.started_at,
            "digest": None if self.problem else digest,
            "digestProblem": self.problem,
        }

    def answer(self) -> Agents:
        """What both agents say now, parsed as the operator parses it."""
        engine = {
            "revision": "abc",
            "wantedRevision": "abc",
            "state": "serving",
            "restarts": 0,
            "problem": None,
            **self.engine(),
        }
        evictions = {"rounds": self.store["rounds"], "keys": 0, "bytes": 0, "stuck": self.store["stuck"]}
        store = {
            "epoch": self.store["epoch"],
            "state": "ready",
            "problem": None,
            "capacityBytes": self.store["capacityBytes"],
            "evictions": evictions,
        }
        return Agents(engine_agent(engine), store_agent(store))

    def step(self, **rates: float) -> None:
        """Ten seconds at the pace of a healthy engine, or at another one."""
        pace = {**BUSY, **rates}
        for name in COUNTERS:
            self.digest[name] += int(pace.get(name, 0) * STEP_SECONDS)
        missed = self.digest["missedPages"]
        missed["evicted_recently"] = missed.get("evicted_recently", 0) + int(pace.get("hot", 0) * STEP_SECONDS)
        self.store["rounds"] += int(pace.get("evictionRounds", 0))
        for name in ("hitPages", "evictedTokens"):
            for rank in self.ranks[name]:
                self.ranks[name][rank] += int(pace[f"{name}{rank}" if f"{name}{rank}" in pace else name] * STEP_SECONDS)
        self.now += STEP_SECONDS
        self.told += self.judge.hear(self.pod, self.answer(), self.now)

    def run(self, seconds: float, **rates: float) -> None:
        """So long at that pace."""
        for _ in range(round(seconds / STEP_SECONDS)):
            self.step(**rates)

    def until(self, reason: Reason | None, within: float, **rates: float) -> float:
        """Seconds until exactly this is told, or nothing; fails when that takes longer than ``within``."""
        began = self.now
        while self.reasons() != ([reason] if reason else []):
            assert self.now - began < within, f"{self.reasons()} after {within} s"
            self.step(**rates)
        return self.now - began

    def assessment(self) -> Assessment:
        found = self.judge.assessment(KEY)
        assert found is not None
        return found

    def reasons(self) -> list[Reason]:
        found = self.judge.assessment(KEY)
        return [finding.reason for finding in found.findings] if found else []

    def sentence(self) -> str:
        (finding,) = self.assessment().findings
        return finding.sentence
