"""Replaying a trace: when requests come, how long the engine works on them, and what is counted.

A closed loop has lanes. A lane plays one session after another, each from a random point between a quarter and three
quarters of it, and asks the next question when the answer is there and the user has thought. Every play of a session
has prefixes of its own, as in the AgentX scenario. An open loop asks when the trace says, and
work takes no time in it: what is offered there is far more than one engine serves.

The same seed gives the same replay.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from umbra_sim.cache import DECODE_GRID, Cache, Lookup
from umbra_sim.trace import Pages, Request, Session, Trace

HOUR = 3600.0
BUCKETS = 60
"""Into so many parts of equal length a replay is cut for its curves."""
COLD_REQUESTS = 10
"""A lane's first requests are not counted in a closed loop: they find an empty cache."""
_START_SHARE = (0.25, 0.75)


@dataclass(frozen=True, slots=True)
class Load:
    """How requests come and how fast they are served."""

    lanes: int = 8
    idle_cap: float = 60.0
    """A user thinks at most so many seconds."""
    decode_rate: float = 100.0
    """Tokens a second of one answer."""
    prefill_rate: float = 10_000.0
    """Tokens a second that are computed, of one prompt after another."""
    prefill_seconds: float = 0.1
    """What each prefill takes besides."""
    min_requests: int = 150
    """Shorter sessions are left out."""
    seconds: float = HOUR
    """How long a closed loop is replayed."""


@dataclass(slots=True)
class Counts:
    """What a replay counted, in tokens and bytes. Lists have one entry a bucket."""

    requests: int = 0
    prompt_tokens: int = 0
    """Of all prompts; the ratios leave out the lanes' first requests."""
    hits: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    prompts: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    used: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    """Bytes in the store at the bucket's end."""
    looked_up_pages: int = 0
    device_pages: int = 0
    store_pages: int = 0
    """Pages restored from the device, and from the store."""
    missed_pages: int = 0

    @property
    def hit_ratio(self) -> float:
        """Share of prompt tokens that were restored."""
        return sum(self.hits) / max(1, sum(self.prompts))

    @property
    def hit_ratio_last_half(self) -> float:
        """The same in the second half of the time."""
        half = BUCKETS // 2
        return sum(self.hits[half:]) / max(1, sum(self.prompts[half:]))


@dataclass(frozen=True, slots=True)
class Step:
    """A prompt or the end of its answer, as it came in a replay."""

    now: float
    share: float
    """Of the time, that had passed."""
    pages: Pages
    prompt: int
    prompt_pages: int = 0
    """Of ``pages``, the prompt's, at the end of an answer; 0 in the step of a prompt."""
    counted: bool = True


@dataclass(slots=True)
class Script:
    """What came in a replay, in order."""

    steps: list[Step] = field(default_factory=list)
    found: list[Lookup] = field(default_factory=list)
    """What each prompt found."""


def replay(trace: Trace, load: Load, cache: Cache, seed: int, script: Script | None = None) -> Counts:
    """Replay a trace against a cache that is empty, and write down what came if ``script`` is given."""
    if trace.closed:
        return _Closed(trace, load, cache, seed, script).run()
    return _open(trace, length(trace, load), cache, script)


def length(trace: Trace, load: Load) -> float:
    """Seconds that a replay covers."""
    if trace.closed:
        return load.seconds
    requests = trace.sessions[0].requests
    return max(1e-9, requests[-1].at - requests[0].at)


def repeat(script: Script, cache: Cache) -> Counts:
    """Replay what came in an earlier replay, at the same times."""
    counts = Counts()
    for step in script.steps:
        if step.prompt_pages:
            _play_answer(step, cache)
        else:
            _play_prompt(step, cache, counts)
    _fill_curve(counts.used)
    return counts


def _open(trace: Trace, seconds: float, cache: Cache, script: Script | None) -> Counts:
    session = trace.sessions[0]
    cache.new_pages(session.page_numbers)
    begin = session.requests[0].at
    counts = Counts()
    for request in session.requests:
        now = request.at - begin
        _play_prompt(Step(now, now / seconds, request.pages, request.prompt), cache, counts, script)
    _fill_curve(counts.used)
    return counts


def _play_prompt(step: Step, cache: Cache, counts: Counts, script: Script | None = None) -> Lookup:
    """Look a prompt up and compute the rest; count it, and write it down if ``script`` is given."""
    found = cache.prefill(step.pages, step.prompt, step.now)
    if script is not None:
        script.steps.append(step)
        script.found.append(found)
    bucket = min(BUCKETS - 1, int(step.share * BUCKETS))
    counts.requests += 1
    counts.prompt_tokens += step.prompt
    counts.looked_up_pages += found.asked
    counts.device_pages += found.device
    counts.store_pages += found.hit - found.device
    counts.missed_pages += found.asked - found.hit
    counts.used[bucket] = cache.tier.used
    if step.counted:
        counts.hits[bucket] += found.hit * cache.page_tokens
        counts.prompts[bucket] += step.prompt
    return found


def _play_answer(step: Step, cache: Cache, script: Script | None = None) -> None:
    """Keep what an answer added, and write it down if ``script`` is given."""
    cache.finish(step.pages, step.prompt_pages, step.prompt, step.now)
    if script is not None:
        script.steps.append(step)


def _fill_curve(used: list[int]) -> None:
    """A bucket without a request ends as the one before."""
    for bucket in range(1, BUCKETS):
        used[bucket] = used[bucket] or used[bucket - 1]


@dataclass(slots=True)
class _Lane:
    session: Session
    first_page: int
    next: int
    asked: int = 0

    @property
    def request(self) -> Request:
        return self.session.requests[self.next]


_ARRIVAL, _PREFILLED, _ANSWERED = range(3)


class _Closed:
    """Lanes, one engine that computes prompts one after another, and answers beside each other."""

    def __init__(self, trace: Trace, load: Load, cache: Cache, seed: int, script: Script | None) -> None:
        self._load = load
        self._script = script
        self._cache = cache
        self._random = random.Random(seed)  # noqa: S311 - a replay is to be repeatable
        self._sessions = [s for s in trace.sessions if len(s.requests) >= load.min_requests]
        self._queue: Iterator[Session] = iter(())
        self._events: list[tuple[float, int, int, _Lane, Pages]] = []
        self._order = 0
        self._waiting: deque[_Lane] = deque()
        self._busy = False
        self._counts = Counts()

    def run(self) -> Counts:
        for _ in range(self._load.lanes):
            lane = _Lane(*self._next_session())
            self._schedule(0.0, _ARRIVAL, lane)
        while self._events:
            now, _, kind, lane, pages = heapq.heappop(self._events)
            if now >= self._load.seconds:
                break
            if kind == _ARRIVAL:
                self._waiting.append(lane)
            elif kind == _PREFILLED:
                self._busy = False
                self._schedule(now + lane.request.output / self._load.decode_rate, _ANSWERED, lane, pages)
            else:
                self._answered(lane, pages, now)
            if self._waiting and not self._busy:
                self._prefill(self._waiting.popleft(), now)
        _fill_curve(self._counts.used)
        return self._counts

    def _schedule(self, at: float, kind: int, lane: _Lane, pages: Pages | None = None) -> None:
        self._order += 1
        heapq.heappush(self._events, (at, self._order, kind, lane, np.zeros(0, np.int64) if pages is None else pages))

    def _next_session(self) -> tuple[Session, int, int]:
        """Draw a session; all are played before one is played again."""
        session = next(self._queue, None)
        if session is None:
            shuffled = list(self._sessions)
            self._random.shuffle(shuffled)
            self._queue = iter(shuffled)
            session = next(self._queue)
        start = int(len(session.requests) * self._random.uniform(*_START_SHARE))
        return session, self._cache.new_pages(session.page_numbers), start

    def _prefill(self, lane: _Lane, now: float) -> None:
        request = lane.request
        pages = request.pages + lane.first_page
        lane.asked += 1
        step = Step(now, now / self._load.seconds, pages, request.prompt, counted=lane.asked > COLD_REQUESTS)
        found = _play_prompt(step, self._cache, self._counts, self._script)
        computed = request.prompt - found.hit * self._cache.page_tokens
        self._busy = True
        took = computed / self._load.prefill_rate + self._load.prefill_seconds
        self._schedule(now + took, _PREFILLED, lane, pages)

    def _answered(self, lane: _Lane, pages: Pages, now: float) -> None:
        request = lane.request
        # The next prompt of a recorded session does not hold this answer but the recorded one.
        end = (request.prompt + request.output) // DECODE_GRID * DECODE_GRID // self._cache.page_tokens
        if end > len(pages) > 0:
            first = self._cache.new_pages(end - len(pages))
            added = np.arange(first, first + end - len(pages))
            step = Step(now, 0.0, np.concatenate((pages, added)), request.prompt, prompt_pages=len(pages))
            _play_answer(step, self._cache, self._script)
        lane.next += 1
        if lane.next == len(lane.session.requests):
            lane.session, lane.first_page, lane.next = self._next_session()
        self._schedule(now + min(lane.request.think, self._load.idle_cap), _ARRIVAL, lane)
