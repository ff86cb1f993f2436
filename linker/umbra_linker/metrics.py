"""The linker's metrics: definitions as data, and the object that records them.

They join the engine's own ``/metrics``. SGLang runs prometheus_client in multiprocess mode, so the library may be
imported only after SGLang has set its directory: inside the linker's constructor, never at import of this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .planning import CanaryResult, HintResult, MissReason, SkipReason
from .policy import Boundary
from .settings import Settings
from .store import Operation
from .tree_core import TreeCore


class Kind(StrEnum):
    """Prometheus' kinds of metric that we use."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it appears in the exposition (a counter's name ends in ``_total``)."""

    name: str
    kind: Kind
    help: str
    unit: str
    labels: tuple[str, ...] = ("rank",)
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in its unit."""


LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Seconds, from a healthy call (tenths of a millisecond) to one into a store that does not answer."""

HINT_LATENCIES = (0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.001, 0.01)
"""Seconds of the scheduler's thread."""

_PER_POOL = ("rank", "pool")

METRICS = (
    Metric("umbra_linker_lookups_total", Kind.COUNTER, "Prefix lookups sent to the store.", "lookups"),
    Metric("umbra_linker_lookup_pages_total", Kind.COUNTER, "Pages that lookups asked for.", "pages"),
    Metric("umbra_linker_hit_pages_total", Kind.COUNTER, "Pages of the longest restorable prefix found.", "pages"),
    Metric("umbra_linker_hit_tokens_total", Kind.COUNTER, "Tokens of the longest restorable prefix found.", "tokens"),
    Metric("umbra_linker_hit_objects_total", Kind.COUNTER, "Objects that prefix consists of.", "objects", _PER_POOL),
    Metric(
        "umbra_linker_missed_pages_total", Kind.COUNTER, "Pages beyond that prefix, by what ended it.", "pages",
        ("rank", "reason"),
    ),
    Metric(
        "umbra_linker_lookup_seconds", Kind.HISTOGRAM, "Time the scheduler waited for one lookup.", "seconds",
        buckets=LATENCIES,
    ),
    Metric("umbra_linker_loads_total", Kind.COUNTER, "Requests whose cache was loaded from the store.", "requests"),
    Metric("umbra_linker_failed_loads_total", Kind.COUNTER, "Requests aborted because a load failed.", "requests"),
    Metric(
        "umbra_linker_load_seconds", Kind.HISTOGRAM, "Time from the start of a batch of loads to its last layer.",
        "seconds", buckets=LATENCIES,
    ),
    Metric("umbra_linker_offloads_total", Kind.COUNTER, "Tree nodes that all ranks stored.", "nodes"),
    Metric("umbra_linker_failed_offloads_total", Kind.COUNTER, "Tree nodes that some rank could not store.", "nodes"),
    Metric(
        "umbra_linker_skipped_offloads_total", Kind.COUNTER,
        "Tree nodes not queued to be stored, by reason; they are offered again when there is room.",
        "nodes", ("rank", "reason"),
    ),
    Metric(
        "umbra_linker_dropped_checkpoints_total", Kind.COUNTER,
        "Checkpoints that the write policy did not store, by where they stand; their KV was offered.",
        "checkpoints", ("rank", "boundary"),
    ),
    Metric(
        "umbra_linker_offload_seconds", Kind.HISTOGRAM, "Time this rank took for a batch of nodes, without waiting.",
        "seconds", buckets=LATENCIES,
    ),
    Metric("umbra_linker_offload_queue_depth", Kind.GAUGE, "Nodes being stored; each holds a tree lock.", "nodes"),
    Metric(
        "umbra_linker_offload_oldest_seconds", Kind.GAUGE, "Age of the oldest node that this rank has not stored yet.",
        "seconds",
    ),
    Metric(
        "umbra_linker_offload_held_pages", Kind.GAUGE,
        "Pages (and states) that nodes being stored hold; the device can evict none of them.", "pages", _PER_POOL,
    ),
    Metric(
        "umbra_linker_pool_pages", Kind.GAUGE, "Pages (and states) that the device has room for.", "pages", _PER_POOL
    ),
    Metric("umbra_linker_stored_objects_total", Kind.COUNTER, "Objects this rank wrote.", "objects", _PER_POOL),
    Metric("umbra_linker_stored_bytes_total", Kind.COUNTER, "Bytes this rank wrote.", "bytes", _PER_POOL),
    Metric(
        "umbra_linker_touch_hints_total", Kind.COUNTER,
        "Prefixes that the device served and the store was to count as used, by what became of it.", "prefixes",
        ("rank", "result"),
    ),
    Metric(
        "umbra_linker_touched_pages_total", Kind.COUNTER,
        "Pages (and states) that the store was asked to count as used, by whether it had them.", "pages",
        ("rank", "pool", "result"),
    ),
    Metric("umbra_linker_touch_cpu_seconds_total", Kind.COUNTER, "CPU time of the thread that touches.", "seconds"),
    Metric(
        "umbra_linker_touch_hint_seconds", Kind.HISTOGRAM, "Time the scheduler took for one hint.", "seconds",
        buckets=HINT_LATENCIES,
    ),
    Metric(
        "umbra_linker_rewritten_pages_total", Kind.COUNTER,
        "Pages (and states) queued to be written again because a touch did not find them.", "pages", _PER_POOL,
    ),
    Metric(
        "umbra_linker_canary_objects_total", Kind.COUNTER,
        "Samples of what this rank stored that were read back and compared, by what was found.", "objects",
        ("rank", "pool", "result"),
    ),
    Metric(
        "umbra_linker_canary_cpu_seconds_total", Kind.COUNTER,
        "CPU time that reading back and comparing took.", "seconds",
    ),
    Metric("umbra_linker_read_objects_total", Kind.COUNTER, "Objects this rank restored.", "objects", _PER_POOL),
    Metric("umbra_linker_read_bytes_total", Kind.COUNTER, "Bytes this rank restored.", "bytes", _PER_POOL),
    Metric(
        "umbra_linker_call_seconds", Kind.HISTOGRAM, "Time of one call to the store.", "seconds", ("rank", "op"),
        LATENCIES,
    ),
    Metric(
        "umbra_linker_oldest_call_seconds", Kind.GAUGE,
        "Age of the oldest call that the store has not answered; written by a thread that no call can block.",
        "seconds",
    ),
    Metric(
        "umbra_linker_breaker_open", Kind.GAUGE,
        "1 while lookups are answered with a miss without asking the store, which answered too late before.", "",
    ),
    Metric(
        "umbra_linker_fenced_stores_total", Kind.COUNTER,
        "Stores that this rank killed because a load stayed unanswered; each took its content along.", "",
    ),
    Metric(
        "umbra_linker_reconnects_total", Kind.COUNTER,
        "New connections to the store because another process served it; each began with an empty store.", "",
    ),
    Metric(
        "umbra_linker_store_created_timestamp_seconds", Kind.GAUGE,
        "When the socket was made of the store that this rank is connected to; 0 when that cannot be told. "
        "Ranks that differ ask different stores.", "seconds",
    ),
    Metric(
        "umbra_linker_policy", Kind.GAUGE, "The numeric settings in force, one series each.", "",
        ("rank", "setting"),
    ),
    Metric(
        "umbra_linker_info", Kind.GAUGE, "Always 1; the labels say how this rank names its objects.", "",
        ("rank", "version", "key_layout", "kv_suffix", "tag"),
    ),
    Metric(
        "umbra_tree_core_info", Kind.GAUGE, "Always 1; the labels say the rank's tree core and who decided it.",
        "", ("rank", "core", "chosen", "agreement"),
    ),
)  # fmt: skip


_MOST_HINTS = 4096
"""Whose time is noted between two heartbeats: far more than are given in a second."""


class LinkerMetrics:
    """Records one rank's metrics, from any thread. Every method is cheap and never raises on valid arguments."""

    def __init__(self, rank: int, *, registry: Any = None) -> None:
        """Create the metrics with their ``rank`` label; call it once per process and registry."""
        import prometheus_client

        self._rank = str(rank)
        self._series: dict[tuple[str, ...], Any] = {}
        self._hints: deque[float] = deque(maxlen=_MOST_HINTS)
        options: dict[str, Any] = {} if registry is None else {"registry": registry}
        self._metrics: dict[str, Any] = {}
        for metric in METRICS:
            if metric.kind is Kind.COUNTER:
                made: Any = prometheus_client.Counter(metric.name, metric.help, metric.labels, **options)
            elif metric.kind is Kind.GAUGE:
                # livemostrecent: one series per label set, of the process that lives, without a pid label.
                made = prometheus_client.Gauge(
                    metric.name, metric.help, metric.labels, multiprocess_mode="livemostrecent", **options
                )
            else:
                made = prometheus_client.Histogram(
                    metric.name, metric.help, metric.labels, buckets=metric.buckets, **options
                )
            self._metrics[metric.name] = made
            if metric.labels == ("rank",):
                self._of(metric.name)  # so that the series exists, at zero, from the start
        for reason in MissReason:
            self._of("umbra_linker_missed_pages_total", reason)
        for skip in SkipReason:
            self._of("umbra_linker_skipped_offloads_total", skip)
        for kind in (Boundary.CHUNK_END, Boundary.DECODE_END):
            self._of("umbra_linker_dropped_checkpoints_total", kind)
        for result in HintResult:
            self._of("umbra_linker_touch_hints_total", result)
        for operation in Operation:
            self._of("umbra_linker_call_seconds", operation)

    def lookup(
        self, *, seconds: float, pages: int, hit_pages: int, hit_tokens: int, hit_objects: Mapping[str, int]
    ) -> None:
        """Record a lookup of ``pages`` pages that found ``hit_pages``; ``hit_objects`` by pool."""
        self._count("umbra_linker_lookups_total", 1)
        self._count("umbra_linker_lookup_pages_total", pages)
        self._of("umbra_linker_lookup_seconds").observe(seconds)
        if hit_pages:
            self._count("umbra_linker_hit_pages_total", hit_pages)
            self._count("umbra_linker_hit_tokens_total", hit_tokens)
            for pool, objects in hit_objects.items():
                self._count("umbra_linker_hit_objects_total", objects, pool)

    def missed(self, pages: int, reason: MissReason) -> None:
        """Record the pages beyond the prefix that a lookup found."""
        self._count("umbra_linker_missed_pages_total", pages, reason)

    def breaker(self, is_open: bool) -> None:
        """Record whether the store is asked for lookups."""
        self._of("umbra_linker_breaker_open").set(int(is_open))

    def fenced(self) -> None:
        """Record that the store was killed."""
        self._count("umbra_linker_fenced_stores_total", 1)

    def reconnected(self) -> None:
        """Record a new connection to another store."""
        self._count("umbra_linker_reconnects_total", 1)

    def loads(self, requests: int, *, failed: int) -> None:
        """Record a batch of requests that loaded, of which ``failed`` were aborted."""
        self._count("umbra_linker_loads_total", requests - failed)
        self._count("umbra_linker_failed_loads_total", failed)

    def load_ended(self, seconds: float) -> None:
        """Record how long a batch of loads took on this rank."""
        self._of("umbra_linker_load_seconds").observe(seconds)

    def offloads(self, nodes: int, *, failed: int) -> None:
        """Record nodes whose offload ended on all ranks, of which ``failed`` did not land everywhere."""
        self._count("umbra_linker_offloads_total", nodes - failed)
        self._count("umbra_linker_failed_offloads_total", failed)

    def skipped(self, reason: SkipReason) -> None:
        """Record a node that was not queued to be stored."""
        self._count("umbra_linker_skipped_offloads_total", 1, reason)

    def dropped_checkpoint(self, kind: Boundary) -> None:
        """Record a checkpoint that is not stored."""
        self._count("umbra_linker_dropped_checkpoints_total", 1, kind)

    def hint_took(self, seconds: float) -> None:
        """Note how long the scheduler took for a hint; ``hints_took`` records it, which costs too much for a hint."""
        self._hints.append(seconds)

    def hints_took(self) -> None:
        """Record what the scheduler noted of its hints. For another thread."""
        histogram = self._of("umbra_linker_touch_hint_seconds")
        while self._hints:
            histogram.observe(self._hints.popleft())

    def hinted(self, result: HintResult, *, cpu_seconds: float = 0.0) -> None:
        """Record what became of a hint, and the CPU time it took."""
        self._count("umbra_linker_touch_hints_total", 1, result)
        self._count("umbra_linker_touch_cpu_seconds_total", cpu_seconds)

    def touched(self, pool: str, *, present: int, missing: int) -> None:
        """Record pages of a pool that were touched, or were not there to be."""
        self._count("umbra_linker_touched_pages_total", present, pool, "present")
        self._count("umbra_linker_touched_pages_total", missing, pool, "missing")

    def rewritten(self, pool: str, pages: int) -> None:
        """Record pages that are written again."""
        self._count("umbra_linker_rewritten_pages_total", pages, pool)

    def canary(self, pool: str, result: CanaryResult) -> None:
        """Record what became of a sample of a pool."""
        self._count("umbra_linker_canary_objects_total", 1, pool, result)

    def canary_used(self, cpu_seconds: float) -> None:
        """Record the CPU time of a look at a sample."""
        self._count("umbra_linker_canary_cpu_seconds_total", cpu_seconds)

    def offload_ended(self, seconds: float) -> None:
        """Record how long a batch of nodes took on this rank."""
        self._of("umbra_linker_offload_seconds").observe(seconds)

    def queue_depth(self, nodes: int) -> None:
        """Record how many nodes wait for their offload."""
        self._of("umbra_linker_offload_queue_depth").set(nodes)

    def ages(self, *, oldest_call: float, oldest_offload: float) -> None:
        """Record, in seconds, how old the oldest unanswered call and the oldest unfinished offload are."""
        self._of("umbra_linker_oldest_call_seconds").set(oldest_call)
        self._of("umbra_linker_offload_oldest_seconds").set(oldest_offload)

    def held(self, pages: Mapping[str, int]) -> None:
        """Record, by pool, the pages that unfinished offloads hold."""
        for pool, count in pages.items():
            self._of("umbra_linker_offload_held_pages", pool).set(count)

    def pools(self, pages: Mapping[str, int]) -> None:
        """Publish how many pages each pool of the device has."""
        for pool, count in pages.items():
            self._of("umbra_linker_pool_pages", pool).set(count)
            for result in CanaryResult:
                self._of("umbra_linker_canary_objects_total", pool, result)

    def store_created(self, seconds: float) -> None:
        """Record when, in Unix seconds, the store was made that is asked; 0 for an unknown time."""
        self._of("umbra_linker_store_created_timestamp_seconds").set(seconds)

    def call(self, operation: Operation, seconds: float) -> None:
        """Record one answered call to the store."""
        self._of("umbra_linker_call_seconds", operation).observe(seconds)

    def stored(self, pool: str, *, objects: int, size: int) -> None:
        """Record ``objects`` objects of ``size`` bytes together, written by this rank."""
        self._count("umbra_linker_stored_objects_total", objects, pool)
        self._count("umbra_linker_stored_bytes_total", size, pool)

    def read(self, pool: str, *, objects: int, size: int) -> None:
        """Record ``objects`` objects of ``size`` bytes together, restored by this rank."""
        self._count("umbra_linker_read_objects_total", objects, pool)
        self._count("umbra_linker_read_bytes_total", size, pool)

    def settings(self, settings: Settings) -> None:
        """Publish the settings in force."""
        for name, value in settings.to_mapping().items():
            if isinstance(value, int):
                self._of("umbra_linker_policy", name).set(value)

    def info(self, labels: Mapping[str, str]) -> None:
        """Publish what this rank is; ``labels`` without the rank."""
        self._metrics["umbra_linker_info"].labels(rank=self._rank, **labels).set(1)

    def tree_core(self, settled: TreeCore) -> None:
        """Publish the tree core that the ranks settled on."""
        self._of("umbra_tree_core_info", settled.core, settled.chosen, settled.agreement).set(1)

    def _of(self, name: str, *labels: str) -> Any:
        """Return the series of this rank; finding it anew would cost more than counting."""
        key = (name, *labels)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._metrics[name].labels(self._rank, *map(str, labels))
        return series

    def _count(self, name: str, amount: float, *labels: str) -> None:
        series = self._of(name, *labels)
        # Adding 0 costs as much as adding 1, but the series must be there from the first time on.
        if amount:
            series.inc(amount)
