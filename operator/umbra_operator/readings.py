"""What agents measured, as numbers: the part of ``/status`` that changes with every answer, for the judge alone."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_RANKS = re.compile(r"(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ranks:
    """What each rank of an engine says of itself. Facts map a value to the ranks that have it, as in "0-6" or "1,3"."""

    reporting: str
    tree_core: Mapping[str, str]
    keys: Mapping[str, str]
    store: Mapping[str, str]
    breaker_open: str
    hit_pages: Mapping[str, int]
    """By rank, since the engine's start, like evicted_tokens."""
    evicted_tokens: Mapping[str, int]
    different_objects: Mapping[str, Mapping[str, int]]
    """By pool and rank, samples of what was stored that came back with other bytes; empty from an older kit."""


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The digest of an engine. Counters are since its start."""

    at: float
    """When it was read, in the node's Unix seconds."""
    started_at: float
    """When the engine was started, likewise: another value means that counters begin anew."""
    running_requests: int
    prompt_tokens: int
    hit_tokens: int
    computed_tokens: int
    lookup_pages: int
    evicted_pages: int
    """Pages that lookups did not find although they had been stored lately."""
    calls: int
    fast_calls: int
    loads: int
    failed_loads: int
    offloads: int
    held_back_offloads: int
    stored_bytes: int
    locked_checkpoints: int
    checkpoint_slots: int
    oldest_call_seconds: float
    compared_objects: int
    """Samples of what was stored that were read back; none from an older kit."""
    ranks: Ranks


@dataclass(frozen=True, slots=True)
class StoreReading:
    """What a store's agent counted since the store's start."""

    capacity_bytes: int
    eviction_rounds: int
    eviction_stuck: int


def engine_reading(body: Mapping[str, Any]) -> EngineReading | None:
    """Parses the digest in the engine agent's ``/status``; None without one, as from an older kit.

    Raises KeyError, TypeError or ValueError when it is something else.
    """
    digest, started_at = body.get("digest"), body.get("startedAt")
    if digest is None or started_at is None:
        return None
    ranks = digest["ranks"]
    return EngineReading(
        at=float(digest["at"]),
        started_at=float(started_at),
        running_requests=_count(digest["runningRequests"]),
        prompt_tokens=_count(digest["promptTokens"]),
        hit_tokens=_count(digest["hitTokens"]),
        computed_tokens=_count(digest["computedTokens"]),
        lookup_pages=_count(digest["lookupPages"]),
        evicted_pages=_count(digest["missedPages"].get("evicted_recently", 0)),
        calls=_count(digest["calls"]),
        fast_calls=_count(digest["fastCalls"]),
        loads=_count(digest["loads"]),
        failed_loads=_count(digest["failedLoads"]),
        offloads=_count(digest["offloads"]),
        held_back_offloads=_count(digest["heldBackOffloads"]),
        stored_bytes=_count(digest["storedBytes"]),
        locked_checkpoints=_count(digest["lockedCheckpoints"]),
        checkpoint_slots=_count(digest["checkpointSlots"]),
        oldest_call_seconds=float(digest["oldestCallSeconds"]),
        compared_objects=_count(digest.get("comparedObjects", 0)),
        ranks=Ranks(
            reporting=_ranks(ranks["reporting"]),
            tree_core=_holders(ranks["treeCore"]),
            keys=_holders(ranks["keys"]),
            store=_holders(ranks["store"]),
            breaker_open=_ranks(ranks["breakerOpen"]),
            hit_pages=_counts(ranks["hitPages"]),
            evicted_tokens=_counts(ranks["evictedTokens"]),
            different_objects={str(pool): _counts(found) for pool, found in ranks.get("differentObjects", {}).items()},
        ),
    )


def store_reading(body: Mapping[str, Any]) -> StoreReading | None:
    """Parses the evictions in the store agent's ``/status``; None without them, as from an older kit."""
    evictions = body.get("evictions")
    if evictions is None:
        return None
    return StoreReading(_count(body["capacityBytes"]), _count(evictions["rounds"]), _count(evictions["stuck"]))


def _holders(found: Mapping[str, Any]) -> dict[str, str]:
    return {str(value): _ranks(ranks) for value, ranks in found.items()}


def _counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(rank): _count(count) for rank, count in found.items()}


def _count(value: Any) -> int:
    """What a counter of 64 bits can hold: rules divide by such numbers."""
    count = int(value)
    if not 0 <= count < 1 << 63:
        raise ValueError(f"{count} is no count")
    return count


def _ranks(value: Any) -> str:
    if not isinstance(value, str) or not _RANKS.fullmatch(value):
        raise ValueError("not a list of ranks")
    return value
