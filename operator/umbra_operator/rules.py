"""When a pod is unwell: one function a rule, over a window of its readings. Pure.

A rule says bad, good, or neither between two thresholds; ``judge`` has what is made of that over time.
docs/explanation/health.md has the rules as a table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from umbra_operator.conditions import Reason, Type
from umbra_operator.readings import EngineReading, StoreReading

LONG_SECONDS = 900.0
"""The longest window, and the length of those whose best hit ratio is remembered."""
SPACING_SECONDS = 60.0
"""Between two readings of a window, but for the last."""

LEAST_PROMPT_TOKENS = 500 * int(LONG_SECONDS)
"""In a long window: below this a ratio of hits says more about who asked than about the cache."""
LEAST_LOOKUP_PAGES = 1000
LEAST_CALLS = 100
LEAST_OFFLOADS = 100
LEAST_LOADS = 50
LEAST_RANK_PAGES = 100
LEAST_EVICTED_TOKENS = 1 << 16
MOST_NAMED = 4
"""Ranks with their pools that a sentence names."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One pod at one moment."""

    now: float
    """The operator's monotonic seconds."""
    engine: EngineReading
    store: StoreReading | None
    problem: str | None
    """Why the engine said nothing new."""


@dataclass(frozen=True, slots=True)
class Window:
    """The readings of one pod, oldest first, and what else a rule may look at."""

    readings: tuple[Reading, ...]
    ranks: int | None
    """How many the engine should have."""
    best_hit_ratio: float | None
    """Of the windows of the last six hours."""

    @property
    def last(self) -> EngineReading:
        """The newest reading of the engine."""
        return self.readings[-1].engine

    def since(self, seconds: float) -> tuple[EngineReading, EngineReading] | None:
        """The newest reading that is at least so old, and the last one; None without so old a one."""
        first = self._before(seconds)
        return None if first is None else (first.engine, self.last)

    def stores(self, seconds: float) -> tuple[StoreReading, StoreReading] | None:
        """The same for the store."""
        first, last = self._before(seconds), self.readings[-1].store
        return None if first is None or first.store is None or last is None else (first.store, last)

    def _before(self, seconds: float) -> Reading | None:
        end = self.readings[-1].now - seconds
        return next((each for each in reversed(self.readings) if each.now <= end), None)


class Signal(NamedTuple):
    """What a rule sees: True is bad, False good, None between the two thresholds."""

    bad: bool | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which a pod can be unwell."""

    condition: Type
    reason: Reason
    look: Callable[[Window], Signal | None]
    """None: nothing can be told."""
    bad_seconds: float = 0.0
    """How long it must be bad before it is told."""
    good_seconds: float = 0.0
    """How long it must be good before it is taken back."""


def _between(value: float, bad: float, good: float, sentence: str) -> Signal:
    """Bad from ``bad`` on, good up to ``good``, which is smaller."""
    return Signal(True if value >= bad else False if value <= good else None, sentence)


def _differ(held: Mapping[str, str], what: str, remedy: str) -> Signal | None:
    if not held:
        return None
    if len(held) == 1:
        return Signal(False, "")
    most = max(held, key=lambda value: rank_count(held[value]))
    odd = "; ".join(f"{rank_name(ranks)} {value}" for value, ranks in held.items() if value != most)
    return Signal(True, f"{what}: {odd}; {rank_name(held[most])} {most}; {remedy}")


def rank_count(ranks: str) -> int:
    """How many ranks a text such as "0-6,9" names."""
    count = 0
    for run in filter(None, ranks.split(",")):
        first, _, last = run.partition("-")
        count += int(last or first) - int(first) + 1
    return count


def rank_name(ranks: str) -> str:
    """The words for some ranks."""
    return f"rank {ranks} has" if ranks.isdecimal() else f"ranks {ranks} have"


def tree_cores(window: Window) -> Signal | None:
    """Trees of another core evict in another order, and ranks then wait for each other for ever."""
    return _differ(window.last.ranks.tree_core, "tree cores differ", "set spec.toolchain.treeCore to Python")


def keys(window: Window) -> Signal | None:
    """Ranks that name pages in another way find none of what the others stored."""
    return _differ(window.last.ranks.keys, "names of pages differ", "give all ranks one kit (spec.restart.id)")


def stores(window: Window) -> Signal | None:
    """A rank that asks an earlier store finds nothing, and its misses count for all."""
    return _differ(window.last.ranks.store, "ranks ask different stores", "restart the engine (spec.restart.id)")


def missing_rank(window: Window) -> Signal | None:
    """Every rank's linker should be there."""
    if window.ranks is None:
        return None
    there = window.last.ranks.reporting
    sentence = f"of {window.ranks} ranks only {there or 'none'} report; look at the log of the engine"
    return Signal(rank_count(there) < window.ranks, sentence)


def diverging_ranks(window: Window) -> Signal | None:
    """Ranks hold the same tree, so each finds and evicts what the others do."""
    pair = window.since(LONG_SECONDS)
    if pair is None:
        return None
    first, last = pair
    signals = [
        _diverging(first.ranks.hit_pages, last.ranks.hit_pages, LEAST_RANK_PAGES, "pages found"),
        _diverging(first.ranks.evicted_tokens, last.ranks.evicted_tokens, LEAST_EVICTED_TOKENS, "tokens evicted"),
    ]
    told = [signal for signal in signals if signal is not None]
    # The worst of them: bad, then between, then good.
    return max(told, key=lambda signal: (signal.bad is not False) + (signal.bad is True), default=None)


def _diverging(first: Mapping[str, int], last: Mapping[str, int], least: int, what: str) -> Signal | None:
    grown = {rank: last[rank] - first.get(rank, 0) for rank in last}
    if len(grown) < 2 or max(grown.values()) < least:
        return None
    middle = median(grown.values())
    odd = max(grown, key=lambda rank: abs(grown[rank] - middle))
    spread = (max(grown.values()) - min(grown.values())) / max(grown.values())
    sentence = (
        f"ranks differ by {spread:.0%} in {what} in 15 minutes: rank {odd} {grown[odd]}, "
        f"the others about {middle:.0f}; restart the engine (spec.restart.id)"
    )
    return _between(spread, 0.05, 0.02, sentence)


def stored_bytes(window: Window) -> Signal | None:
    """What comes back from a store must be what was written: a wrong byte in a cache is a wrong answer."""
    last = window.last
    if not last.compared_objects:
        return None
    # Without an older reading everything since the engine's start counts: an earlier operator may have told it.
    pair = window.since(LONG_SECONDS)
    before = pair[0].ranks.different_objects if pair else {}
    found = {
        (pool, rank): count - before.get(pool, {}).get(rank, 0)
        for pool, ranks in last.ranks.different_objects.items()
        for rank, count in ranks.items()
    }
    worst = sorted((place for place in found if found[place] > 0), key=lambda place: -found[place])
    named = ", ".join(f"{found[place]} of pool {place[0]} on rank {place[1]}" for place in worst[:MOST_NAMED])
    more = f" and on {len(worst) - MOST_NAMED} more" if len(worst) > MOST_NAMED else ""
    sentence = (
        f"samples came back from the store with other bytes than were written: {named}{more}; answers may be wrong: "
        "delete the pod, which empties its store, and look at the node's memory"
    )
    return Signal(bool(worst), sentence)


def frozen_store(window: Window) -> Signal | None:
    """Calls that are not answered, or a store that is not asked any more because of such calls."""
    last = window.last
    if last.oldest_call_seconds >= 15.0:
        sentence = f"the store has not answered a call for {last.oldest_call_seconds:.0f} s: requests are misses"
        return Signal(True, f"{sentence}; delete the pod if it does not come back, which empties the store")
    if last.ranks.breaker_open:
        word = rank_name(last.ranks.breaker_open).removesuffix(" has").removesuffix(" have")
        return Signal(True, f"{word} do not ask the store, which answers too late: requests are misses")
    return Signal(False if last.oldest_call_seconds < 5.0 else None, "")


def slow_store(window: Window) -> Signal | None:
    """Calls of lookups that take longer than a tenth of a second; a healthy store takes 1 to 32 ms."""
    pair = window.since(300.0)
    if pair is None or (calls := pair[1].calls - pair[0].calls) < LEAST_CALLS:
        return None
    slow = 1 - (pair[1].fast_calls - pair[0].fast_calls) / calls
    sentence = (
        f"{slow:.0%} of the store's answers take longer than 0.1 s; "
        "look at the node's load and at spec.cache.policy.rpcParallelism"
    )
    return _between(slow, 0.01, 0.005, sentence)


def hit_ratio(window: Window) -> float | None:
    """Tokens of prompts that some cache had, of the long window; None with too few prompts."""
    pair = window.since(LONG_SECONDS)
    if pair is None or (prompt := pair[1].prompt_tokens - pair[0].prompt_tokens) < LEAST_PROMPT_TOKENS:
        return None
    return (pair[1].hit_tokens - pair[0].hit_tokens) / prompt


def falling_hits(window: Window) -> Signal | None:
    """The ratio of hits against the best of six hours, while the store evicts; without that it is the traffic's."""
    ratio, stores = hit_ratio(window), window.stores(LONG_SECONDS)
    if ratio is None or not window.best_hit_ratio or stores is None:
        return None
    if stores[1].eviction_rounds == stores[0].eviction_rounds:
        return Signal(False, "")
    best = window.best_hit_ratio
    sentence = (
        f"{ratio:.1%} of the prompts' tokens are hits, after {best:.1%} before; status.cache.advice says what helps"
    )
    return _between(-ratio / best, -0.93, -0.96, sentence)


def hot_share(window: Window) -> float | None:
    """Pages that were asked for, not found, and had been stored lately, of all that were asked for."""
    pair = window.since(LONG_SECONDS)
    if pair is None or (pages := pair[1].lookup_pages - pair[0].lookup_pages) < LEAST_LOOKUP_PAGES:
        return None
    return (pair[1].evicted_pages - pair[0].evicted_pages) / pages


def hot_evictions(window: Window) -> Signal | None:
    """The store evicts what is asked again."""
    share = hot_share(window)
    if share is None:
        return None
    sentence = (
        f"{share:.0%} of the pages that are asked of the store were there and are evicted; "
        "status.cache.advice says what helps"
    )
    return _between(share, 0.2, 0.1, sentence)


def stuck_evictions(window: Window) -> Signal | None:
    """A full store that can evict nothing takes nothing more."""
    pair = window.stores(600.0)
    if pair is None:
        return None
    found = pair[1].eviction_stuck - pair[0].eviction_stuck
    return Signal(found > 0, f"the store found nothing that it may evict, {found} times in 10 minutes: it is too small")


def held_back_offloads(window: Window) -> Signal | None:
    """Pages that were never stored because too many waited."""
    pair = window.since(LONG_SECONDS)
    if pair is None:
        return None
    held = pair[1].held_back_offloads - pair[0].held_back_offloads
    if (nodes := held + pair[1].offloads - pair[0].offloads) < LEAST_OFFLOADS:
        return None
    sentence = f"{held / nodes:.0%} of what should be stored is not, because the store takes it too slowly"
    return _between(held / nodes, 0.1, 0.05, sentence)


def locked_checkpoints(window: Window) -> Signal | None:
    """Slots of the checkpoint pool that wait for the store are no request's: without one left the engine ends."""
    last = window.last
    if not last.checkpoint_slots:
        return None
    sentence = (
        f"{last.locked_checkpoints} of {last.checkpoint_slots} checkpoint slots wait for the store; "
        "it is too slow, or lower spec.cache.policy.offloadBackpressurePercent"
    )
    return _between(last.locked_checkpoints / last.checkpoint_slots, 0.7, 0.5, sentence)


def stalled_engine(window: Window) -> Signal | None:
    """Requests run and no token is computed."""
    pair = window.since(SPACING_SECONDS)
    if pair is None:
        return None
    first, last = pair
    if first.at == last.at:
        return None  # The engine has said nothing since.
    stands = first.running_requests > 0 < last.running_requests and first.computed_tokens == last.computed_tokens
    sentence = f"{last.running_requests} requests run and no token was computed for two minutes: a rank may hang"
    return Signal(stands, f"{sentence}; restart the engine (spec.restart.id)")


def silent_engine(window: Window) -> Signal | None:
    """An engine that does not answer its own agent."""
    problem = window.readings[-1].problem
    return Signal(problem is not None, f"the engine tells its agent nothing: {problem}")


def failing_loads(window: Window) -> Signal | None:
    """Every load that fails is a request that fails."""
    pair = window.since(600.0)
    if pair is None:
        return None
    failed = pair[1].failed_loads - pair[0].failed_loads
    if (loads := failed + pair[1].loads - pair[0].loads) < LEAST_LOADS:
        return None
    sentence = f"{failed} of {loads} loads failed in 10 minutes, and their requests with them; look at the store's log"
    return _between(failed / loads, 0.02, 0.01, sentence)


RULES: tuple[Rule, ...] = (
    Rule(Type.RANKS_CONSISTENT, Reason.TREE_CORES_DIFFER, tree_cores),
    Rule(Type.RANKS_CONSISTENT, Reason.PAGE_NAMES_DIFFER, keys),
    Rule(Type.RANKS_CONSISTENT, Reason.RANK_MISSING, missing_rank, bad_seconds=60.0),
    Rule(Type.RANKS_CONSISTENT, Reason.STORES_DIFFER, stores, bad_seconds=60.0),
    Rule(Type.RANKS_CONSISTENT, Reason.RANKS_DIVERGE, diverging_ranks, bad_seconds=60.0, good_seconds=300.0),
    Rule(Type.CANARY_PASSED, Reason.STORED_BYTES_DIFFER, stored_bytes, good_seconds=3600.0),
    Rule(Type.CACHE_EFFECTIVE, Reason.STORE_FROZEN, frozen_store, bad_seconds=15.0, good_seconds=60.0),
    Rule(Type.CACHE_EFFECTIVE, Reason.STORE_SLOW, slow_store, bad_seconds=60.0, good_seconds=300.0),
    Rule(Type.CACHE_EFFECTIVE, Reason.EVICTION_STUCK, stuck_evictions),
    Rule(Type.CACHE_EFFECTIVE, Reason.HOT_PAGES_EVICTED, hot_evictions, bad_seconds=300.0, good_seconds=600.0),
    Rule(Type.CACHE_EFFECTIVE, Reason.HIT_RATIO_FELL, falling_hits, bad_seconds=600.0, good_seconds=600.0),
    Rule(Type.CACHE_EFFECTIVE, Reason.OFFLOADS_HELD_BACK, held_back_offloads, bad_seconds=60.0, good_seconds=600.0),
    Rule(Type.DEGRADED, Reason.ENGINE_STALLED, stalled_engine, bad_seconds=60.0),
    Rule(Type.DEGRADED, Reason.ENGINE_SILENT, silent_engine, bad_seconds=120.0),
    Rule(Type.DEGRADED, Reason.CHECKPOINTS_LOCKED, locked_checkpoints, bad_seconds=60.0, good_seconds=60.0),
    Rule(Type.DEGRADED, Reason.LOADS_FAIL, failing_loads, bad_seconds=60.0, good_seconds=600.0),
)
"""In the order in which a condition tells them."""
