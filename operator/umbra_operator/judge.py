"""What is told of engines and stores: the rules' signals with hysteresis. Pure but for what it remembers.

A rule is told once it was bad for a while, and taken back once it was good for a while: a value that moves around a
threshold changes nothing. What is told changes with the rules that are told, and its numbers every ten minutes at most:
no status is written because a number moved.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from umbra_operator.agents import SERVING, Agents
from umbra_operator.conditions import Reason, Type
from umbra_operator.records import Key, PodRecord
from umbra_operator.rules import (
    LEAST_LOOKUP_PAGES,
    LEAST_PROMPT_TOKENS,
    LONG_SECONDS,
    RULES,
    SPACING_SECONDS,
    Reading,
    Rule,
    Signal,
    Window,
    hit_ratio,
)

REFRESH_SECONDS = 600.0
"""Between two sets of numbers while the same rules are told."""
REMEMBERED_WINDOWS = 24
"""Six hours of long windows."""
OVER_SECONDS = 1800.0
"""A rule that could not tell anything for so long is taken back: what it saw is over, as when the requests ended."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a rule stands about one pod. Times are monotonic seconds."""

    told: bool = False
    turning: float | None = None
    """Since when the signal contradicts what is told."""
    seen_bad: float = 0.0
    sentence: str = ""
    """With the numbers of the last time that it was bad."""


def step(rule: Rule, standing: Standing, signal: Signal | None, now: float) -> Standing:
    """Where the rule stands after this signal."""
    if signal is not None and signal.bad:
        standing = replace(standing, seen_bad=now, sentence=signal.sentence)
    if standing.told and now - standing.seen_bad >= max(OVER_SECONDS, rule.good_seconds):
        return Standing()
    if signal is None or signal.bad is None or signal.bad == standing.told:
        return replace(standing, turning=None)
    turning = now if standing.turning is None else standing.turning
    if now - turning < (rule.bad_seconds if signal.bad else rule.good_seconds):
        return replace(standing, turning=turning)
    return Standing(told=True, seen_bad=now, sentence=signal.sentence) if signal.bad else Standing()


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that is told about a pod."""

    condition: Type
    reason: Reason
    pod: str
    sentence: str

    @property
    def what(self) -> tuple[Reason, str]:
        """All of it but the numbers."""
        return (self.reason, self.pod)


@dataclass(frozen=True, slots=True)
class CacheNumbers:
    """How well the caches of one deployment do, in numbers rounded so that they stay while nothing much changes."""

    hit_percent: int | None
    """Tokens of prompts that were hits, of the last 15 minutes, to the next 5; None with too few prompts."""
    hot_miss_percent: int | None
    """Pages that were asked of the stores and evicted before, likewise."""
    retention_seconds: int | None
    """In how long what is stored now is written over, two digits; None while next to nothing is stored."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What is told of one deployment. Equal ones need no reconcile."""

    findings: tuple[Finding, ...]
    cache: CacheNumbers
    compared: bool = False
    """Whether a sample of what is stored was compared."""


@dataclass(slots=True)
class _Pod:
    """What is remembered of one pod."""

    name: str
    epoch: str | None
    readings: deque[Reading] = field(default_factory=deque)
    best: dict[int, float] = field(default_factory=dict)
    """By number of the long window, the best ratio of hits in it."""
    standings: dict[Reason, Standing] = field(default_factory=dict)
    compared: bool = False
    """Whether a sample of what this store has was compared."""

    def window(self, ranks: int | None) -> Window:
        return Window(tuple(self.readings), ranks, max(self.best.values(), default=None))

    def take(self, reading: Reading) -> None:
        """Add a reading; the last one gives way while the one before it is not old enough."""
        kept = self.readings
        if kept and kept[-1].engine.started_at != reading.engine.started_at:
            kept.clear()
            # Another engine: only what concerns the store is still the same.
            self.standings = {
                rule.reason: self.standings[rule.reason]
                for rule in RULES
                if rule.condition in (Type.CACHE_EFFECTIVE, Type.CANARY_PASSED) and rule.reason in self.standings
            }
        if len(kept) > 1 and kept[-1].now - kept[-2].now < SPACING_SECONDS:
            kept.pop()
        kept.append(reading)
        self.compared |= reading.engine.compared_objects > 0
        while len(kept) > 2 and kept[1].now <= reading.now - LONG_SECONDS:
            kept.popleft()

    def remember_ratio(self, ratio: float, now: float) -> None:
        """Keep it if it is the best of its window."""
        number = int(now // LONG_SECONDS)
        self.best[number] = max(ratio, self.best.get(number, 0.0))
        for old in [each for each in self.best if each <= number - REMEMBERED_WINDOWS]:
            del self.best[old]


class Judge:
    """Remembers the readings of every pod, by uid, and what was told of every deployment."""

    def __init__(self) -> None:
        self._pods: dict[Key, dict[str, _Pod]] = defaultdict(dict)
        """By deployment and uid."""
        self._ranks: dict[str, int] = {}
        self._told: dict[Key, tuple[float, Assessment]] = {}

    def expect(self, pods: Iterable[str], ranks: int) -> None:
        """The engines of these pods, by uid, have so many ranks each."""
        self._ranks.update(dict.fromkeys(pods, ranks))

    def assessment(self, key: Key) -> Assessment | None:
        """What is told of a deployment; None while none of its engines was measured."""
        found = self._told.get(key)
        return found[1] if found else None

    def forget(self, known: set[str]) -> None:
        """Forget every pod whose uid is not known any more."""
        for key, pods in [*self._pods.items()]:
            for uid in pods.keys() - known:
                del pods[uid]
            if not pods:
                del self._pods[key]
                self._told.pop(key, None)
        for uid in self._ranks.keys() - known:
            del self._ranks[uid]

    def hear(self, pod: PodRecord, agents: Agents, now: float) -> bool:
        """Take what a pod's agents say at ``now``, in monotonic seconds; return whether something else is told."""
        engine, store = agents.engine, agents.store
        if engine is None or engine.state != SERVING:
            return False
        pods = self._pods[pod.key]
        held = pods.get(pod.uid)
        reading, problem = engine.reading, engine.digest_problem
        if reading is None:
            if held is None or not held.readings or problem is None:
                return False
            # The numbers stay as they were; that there are no newer ones is what is new.
            reading = held.readings[-1].engine
        if held is None or (store is not None and store.epoch != held.epoch):
            # Another store began empty: what was there before is no measure for it.
            held = pods[pod.uid] = _Pod(pod.name, store.epoch if store else None)
        held.take(Reading(now, reading, store.reading if store else None, problem))
        window = held.window(self._ranks.get(pod.uid))
        if (ratio := hit_ratio(window)) is not None:
            held.remember_ratio(ratio, now)
            window = replace(window, best_hit_ratio=max(held.best.values()))
        for rule in RULES:
            standing = held.standings.get(rule.reason, Standing())
            held.standings[rule.reason] = step(rule, standing, rule.look(window), now)
        return self._tell(pod.key, now)

    def _tell(self, key: Key, now: float) -> bool:
        pods = sorted(self._pods[key].values(), key=lambda pod: pod.name)
        findings = tuple(
            Finding(rule.condition, rule.reason, pod.name, pod.standings[rule.reason].sentence)
            for rule in RULES
            for pod in pods
            if pod.standings[rule.reason].told
        )
        compared = any(pod.compared for pod in pods)
        made, last = self._told.get(key, (now, None))
        same = (
            last is not None
            and compared == last.compared
            and [each.what for each in findings] == [each.what for each in last.findings]
        )
        if same and now - made < REFRESH_SECONDS:
            return False
        windows = [pod.window(None) for pod in pods if pod.readings]
        told = Assessment(findings, cache_numbers(windows, last.cache if last else None), compared)
        self._told[key] = (now, told)
        return told != last


def cache_numbers(windows: Iterable[Window], told: CacheNumbers | None) -> CacheNumbers:
    """The numbers of a deployment's pods together; those that were ``told`` stay while they are about right."""
    prompt = hits = pages = evicted = stored = capacity = 0
    for window in windows:
        if pair := window.since(LONG_SECONDS):
            prompt += pair[1].prompt_tokens - pair[0].prompt_tokens
            hits += pair[1].hit_tokens - pair[0].hit_tokens
            pages += pair[1].lookup_pages - pair[0].lookup_pages
            evicted += pair[1].evicted_pages - pair[0].evicted_pages
        stores = window.stores(LONG_SECONDS)
        if pair and stores:
            stored += pair[1].stored_bytes - pair[0].stored_bytes
            capacity += stores[1].capacity_bytes
    before = told or CacheNumbers(None, None, None)
    return CacheNumbers(
        hit_percent=_percent(hits, prompt, LEAST_PROMPT_TOKENS, before.hit_percent),
        hot_miss_percent=_percent(evicted, pages, LEAST_LOOKUP_PAGES, before.hot_miss_percent),
        retention_seconds=_retention(capacity, stored, before.retention_seconds),
    )


def _percent(part: int, whole: int, least: int, told: int | None) -> int | None:
    """To the next 5; None when the whole is less than ``least``."""
    if whole < least:
        return None
    ratio = part / whole
    return told if told is not None and abs(100 * ratio - told) < 4 else 5 * round(ratio * 20)


def _retention(capacity: int, stored: int, told: int | None) -> int | None:
    """Seconds of which only two digits say anything; None for a store that takes more than a day to fill."""
    if not 0 < capacity < 96 * stored:
        return None
    seconds = LONG_SECONDS * capacity / stored
    return told if told is not None and abs(seconds - told) < told / 10 else int(float(f"{seconds:.1e}"))
