"""The engine's /metrics reduced to what decisions use: raw counters, and by rank what must be alike. Pure.

Nobody but this module parses the engine's exposition. Counters are raw, for whoever polls takes differences between two
answers; they begin anew with the engine. What all ranks count alike is taken from the rank that makes the difference:
the fewest hits count for all, and so do the most misses.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

CHECKPOINTS = "mamba"
"""The linker's name of the pool of KDA states."""
SLOW_SECONDS = "0.1"
"""Bound of the histogram of calls above which a lookup's call is slow: a healthy store takes 1 to 32 ms."""

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Ranks:
    """What each rank says of itself. Facts map a value to the ranks that have it, as in "0-6" or "1,3"."""

    reporting: str
    """The ranks whose linkers are there."""
    tree_core: Mapping[str, str]
    keys: Mapping[str, str]
    """The linker's version, its key layout, and the tag in front of every name."""
    store: Mapping[str, str]
    """When the socket was made of the store that a rank asks, in Unix seconds."""
    breaker_open: str
    """The ranks that do not ask their store."""
    hit_pages: Mapping[str, int]
    """By rank, pages that its lookups found."""
    evicted_tokens: Mapping[str, int]
    """By rank, tokens that its tree evicted from the device; empty before the first eviction."""
    different_objects: Mapping[str, Mapping[str, int]]
    """By pool and rank, samples that the store gave back with other bytes than were written; only where there are."""


@dataclass(frozen=True)
class Digest:
    """One reading. Counters are since the engine's start, sizes in bytes."""

    at: float
    """Unix seconds."""
    values: Mapping[str, int]
    """Counters and gauges by their name in /status."""
    missed_pages: Mapping[str, int]
    """Pages that lookups did not find, by reason."""
    oldest_call_seconds: float
    """Age of the oldest call that the store has not answered, on the rank that has waited longest."""
    ranks: Ranks

    def to_status(self) -> dict[str, Any]:
        """The digest object of /status; at TP8 about 1 KiB."""
        ranks = self.ranks
        return {
            "at": round(self.at, 1),
            **self.values,
            "missedPages": dict(self.missed_pages),
            "oldestCallSeconds": round(self.oldest_call_seconds, 1),
            "ranks": {
                "reporting": ranks.reporting,
                "treeCore": dict(ranks.tree_core),
                "keys": dict(ranks.keys),
                "store": dict(ranks.store),
                "breakerOpen": ranks.breaker_open,
                "hitPages": dict(ranks.hit_pages),
                "evictedTokens": dict(ranks.evicted_tokens),
                "differentObjects": {pool: dict(found) for pool, found in ranks.different_objects.items()},
            },
        }


@dataclass(frozen=True)
class _Value:
    """How one value of the digest is made from the series of a metric."""

    metric: str
    over_ranks: Callable[[Iterable[float]], float] = max
    wanted: Callable[[Labels], bool] = lambda labels: True
    """Which series count; those of one rank are added up."""


def _is(name: str, *values: str) -> Callable[[Labels], bool]:
    return lambda labels: labels.get(name) in values


def _slow(labels: Labels) -> bool:
    return labels.get("op") == "exists" and labels.get("le") == SLOW_SECONDS


_PREFILL = "sglang:prefill_effective_tokens_total"

_VALUES: Mapping[str, _Value] = {
    "runningRequests": _Value("sglang:num_running_reqs"),
    "queuedRequests": _Value("sglang:num_queue_reqs"),
    "promptTokens": _Value(_PREFILL),
    # Hits of the store are host hits in SGLang's words, since its wrapper fills in the host's part.
    "hitTokens": _Value(_PREFILL, wanted=_is("mode", "device_hit", "host_hit", "storage_hit")),
    "computedTokens": _Value("sglang:realtime_tokens_total", wanted=_is("mode", "prefill_compute", "decode")),
    "lookups": _Value("umbra_linker_lookups_total"),
    "lookupPages": _Value("umbra_linker_lookup_pages_total"),
    "hitPages": _Value("umbra_linker_hit_pages_total", min),
    "calls": _Value("umbra_linker_call_seconds_count", sum, _is("op", "exists")),
    "fastCalls": _Value("umbra_linker_call_seconds_bucket", sum, _slow),
    "loads": _Value("umbra_linker_loads_total"),
    "failedLoads": _Value("umbra_linker_failed_loads_total"),
    "offloads": _Value("umbra_linker_offloads_total"),
    "failedOffloads": _Value("umbra_linker_failed_offloads_total"),
    "heldBackOffloads": _Value("umbra_linker_skipped_offloads_total", wanted=_is("reason", "backpressure")),
    "queuedOffloads": _Value("umbra_linker_offload_queue_depth"),
    "storedBytes": _Value("umbra_linker_stored_bytes_total", sum),
    "readBytes": _Value("umbra_linker_read_bytes_total", sum),
    "lockedCheckpoints": _Value("umbra_linker_offload_held_pages", wanted=_is("pool", CHECKPOINTS)),
    "checkpointSlots": _Value("umbra_linker_pool_pages", wanted=_is("pool", CHECKPOINTS)),
    "comparedObjects": _Value("umbra_linker_canary_objects_total", sum, _is("result", "equal", "different")),
}

_MISSED = "umbra_linker_missed_pages_total"
_OLDEST_CALL = "umbra_linker_oldest_call_seconds"
_REPORTING = "umbra_linker_lookups_total"
_TREE_CORE = "umbra_tree_core_info"
_LINKER = "umbra_linker_info"
_STORE = "umbra_linker_store_created_timestamp_seconds"
_BREAKER = "umbra_linker_breaker_open"
_HIT_PAGES = "umbra_linker_hit_pages_total"
_EVICTED = "sglang:evicted_tokens_total"
_CANARY = "umbra_linker_canary_objects_total"

_WANTED = {each.metric for each in _VALUES.values()} | {
    _MISSED, _OLDEST_CALL, _REPORTING, _TREE_CORE, _LINKER, _STORE, _BREAKER, _HIT_PAGES, _EVICTED, _CANARY
}  # fmt: skip


def digest(exposition: str, at: float) -> Digest:
    """What the Prometheus text `exposition`, read at the Unix time `at`, says. A metric that is not there counts 0."""
    found: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    for name, labels, value in _samples(exposition):
        found[name].append((labels, value))
    by_rank = _by_rank(found[_MISSED], lambda labels: labels.get("reason", ""))
    oldest = _by_rank(found[_OLDEST_CALL], lambda _: "").get("", {})
    return Digest(
        at=at,
        values={name: _value(value, found[value.metric]) for name, value in _VALUES.items()},
        missed_pages={reason: int(max(ranks.values())) for reason, ranks in by_rank.items() if any(ranks.values())},
        oldest_call_seconds=max(oldest.values(), default=0.0),
        ranks=Ranks(
            reporting=_numbers(_rank(labels) for labels, _ in found[_REPORTING]),
            tree_core=_holders((labels.get("core", ""), _rank(labels)) for labels, _ in found[_TREE_CORE]),
            keys=_holders((_naming(labels), _rank(labels)) for labels, _ in found[_LINKER]),
            store=_holders((f"{value:.3f}", _rank(labels)) for labels, value in found[_STORE]),
            breaker_open=_numbers(_rank(labels) for labels, value in found[_BREAKER] if value),
            hit_pages=_of_each_rank(found[_HIT_PAGES]),
            evicted_tokens=_of_each_rank(found[_EVICTED]),
            different_objects=_different(found[_CANARY]),
        ),
    )


def _samples(exposition: str) -> Iterator[tuple[str, Labels, float]]:
    for line in exposition.splitlines():
        # The name first: of thousands of lines a few hundred matter.
        if line.partition("{")[0].partition(" ")[0] not in _WANTED:
            continue
        parts = _LINE.match(line)
        if parts is None:
            continue
        try:
            value = float(parts[3])
        except ValueError:
            continue
        if math.isfinite(value):
            yield parts[1], dict(_LABEL.findall(parts[2] or "")), value


def _rank(labels: Labels) -> int:
    """The linker's series have `rank`, SGLang's `tp_rank`."""
    text = labels.get("rank", labels.get("tp_rank", "0"))
    return int(text) if text.isascii() and text.isdecimal() else 0


def _by_rank(series: Iterable[tuple[Labels, float]], group: Callable[[Labels], str]) -> dict[str, dict[int, float]]:
    """For each group, by rank, the sum of its series."""
    found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for labels, value in series:
        found[group(labels)][_rank(labels)] += value
    return found


def _value(how: _Value, series: Iterable[tuple[Labels, float]]) -> int:
    ranks = _by_rank((each for each in series if how.wanted(each[0])), lambda _: "").get("", {})
    return int(how.over_ranks(ranks.values())) if ranks else 0


def _of_each_rank(series: Iterable[tuple[Labels, float]]) -> dict[str, int]:
    ranks = _by_rank(series, lambda _: "").get("", {})
    return {str(rank): int(ranks[rank]) for rank in sorted(ranks)}


def _different(series: Iterable[tuple[Labels, float]]) -> dict[str, dict[str, int]]:
    wrong = [(labels, value) for labels, value in series if labels.get("result") == "different" and value]
    pools = sorted({labels.get("pool", "") for labels, _ in wrong})
    return {pool: _of_each_rank(each for each in wrong if each[0].get("pool") == pool) for pool in pools}


def _naming(labels: Labels) -> str:
    return f"{labels.get('version')} {labels.get('key_layout')} {labels.get('tag')}"[:96]


def _holders(pairs: Iterable[tuple[str, int]]) -> dict[str, str]:
    """For each value the ranks that have it."""
    found: dict[str, set[int]] = defaultdict(set)
    for value, rank in pairs:
        found[value].add(rank)
    return {value: _numbers(ranks) for value, ranks in found.items()}


def _numbers(ranks: Iterable[int]) -> str:
    """The ranks as runs: "0-6,9"; empty for none."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
