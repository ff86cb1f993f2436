"""The linker's metrics: definitions as data, and the object that records them.

They join the engine's own ``/metrics``. SGLang runs prometheus_client in multiprocess mode, so the library may be
imported only after SGLang has set its directory: inside the linker's constructor, never at import of this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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


# From a healthy lookup (tenths of a millisecond) to a scheduler that waits for a store which does not answer.
LOOKUP_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds of ``umbra_linker_lookup_seconds``, in seconds."""

_PER_POOL = ("rank", "pool")

METRICS = (
    Metric("umbra_linker_lookups_total", Kind.COUNTER, "Prefix lookups sent to the store.", "lookups"),
    Metric("umbra_linker_lookup_pages_total", Kind.COUNTER, "Pages that lookups asked for.", "pages"),
    Metric("umbra_linker_hit_pages_total", Kind.COUNTER, "Pages of the longest restorable prefix found.", "pages"),
    Metric("umbra_linker_lookup_seconds", Kind.HISTOGRAM, "Time the scheduler waited for one lookup.", "seconds"),
    Metric("umbra_linker_loads_total", Kind.COUNTER, "Requests whose cache was loaded from the store.", "requests"),
    Metric("umbra_linker_failed_loads_total", Kind.COUNTER, "Requests aborted because a load failed.", "requests"),
    Metric("umbra_linker_offloads_total", Kind.COUNTER, "Tree nodes that all ranks stored.", "nodes"),
    Metric("umbra_linker_failed_offloads_total", Kind.COUNTER, "Tree nodes that some rank could not store.", "nodes"),
    Metric("umbra_linker_offload_queue_depth", Kind.GAUGE, "Nodes being stored; each holds a tree lock.", "nodes"),
    Metric("umbra_linker_stored_objects_total", Kind.COUNTER, "Objects this rank wrote.", "objects", _PER_POOL),
    Metric("umbra_linker_stored_bytes_total", Kind.COUNTER, "Bytes this rank wrote.", "bytes", _PER_POOL),
    Metric("umbra_linker_read_objects_total", Kind.COUNTER, "Objects this rank restored.", "objects", _PER_POOL),
    Metric("umbra_linker_read_bytes_total", Kind.COUNTER, "Bytes this rank restored.", "bytes", _PER_POOL),
    Metric(
        "umbra_linker_info", Kind.GAUGE, "Always 1; the labels say how this rank names its objects.", "",
        ("rank", "version", "key_layout", "kv_suffix", "tag"),
    ),
    Metric(
        "umbra_tree_core_info", Kind.GAUGE, "Always 1; the labels say the rank's tree core and who decided it.",
        "", ("rank", "core", "chosen", "agreement"),
    ),
)  # fmt: skip


class LinkerMetrics:
    """Records one rank's metrics. Every method is cheap and never raises on valid arguments."""

    def __init__(self, rank: int, *, registry: Any = None) -> None:
        """Create the metrics with their ``rank`` label; call it once per process and registry."""
        import prometheus_client

        self._rank = str(rank)
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
                    metric.name, metric.help, metric.labels, buckets=LOOKUP_BUCKETS, **options
                )
            self._metrics[metric.name] = made
            if metric.labels == ("rank",):
                made.labels(self._rank)  # so that the series exists, at zero, from the start

    def lookup(self, *, seconds: float, pages: int, hit_pages: int) -> None:
        """Record a lookup of ``pages`` pages that found ``hit_pages``."""
        self._count("umbra_linker_lookups_total", 1)
        self._count("umbra_linker_lookup_pages_total", pages)
        self._count("umbra_linker_hit_pages_total", hit_pages)
        self._metrics["umbra_linker_lookup_seconds"].labels(self._rank).observe(seconds)

    def loads(self, requests: int, *, failed: int) -> None:
        """Record a batch of requests that loaded, of which ``failed`` were aborted."""
        self._count("umbra_linker_loads_total", requests - failed)
        self._count("umbra_linker_failed_loads_total", failed)

    def offloads(self, nodes: int, *, failed: int) -> None:
        """Record nodes whose offload ended on all ranks, of which ``failed`` did not land everywhere."""
        self._count("umbra_linker_offloads_total", nodes - failed)
        self._count("umbra_linker_failed_offloads_total", failed)

    def queue_depth(self, nodes: int) -> None:
        """Record how many nodes wait for their offload."""
        self._metrics["umbra_linker_offload_queue_depth"].labels(self._rank).set(nodes)

    def stored(self, pool: str, *, objects: int, size: int) -> None:
        """Record ``objects`` objects of ``size`` bytes together, written by this rank."""
        self._count("umbra_linker_stored_objects_total", objects, pool)
        self._count("umbra_linker_stored_bytes_total", size, pool)

    def read(self, pool: str, *, objects: int, size: int) -> None:
        """Record ``objects`` objects of ``size`` bytes together, restored by this rank."""
        self._count("umbra_linker_read_objects_total", objects, pool)
        self._count("umbra_linker_read_bytes_total", size, pool)

    def info(self, labels: Mapping[str, str]) -> None:
        """Publish what this rank is; ``labels`` without the rank."""
        self._metrics["umbra_linker_info"].labels(rank=self._rank, **labels).set(1)

    def tree_core(self, settled: TreeCore) -> None:
        """Publish the tree core that the ranks settled on."""
        labels = {"core": settled.core, "chosen": settled.chosen, "agreement": str(settled.agreement)}
        self._metrics["umbra_tree_core_info"].labels(rank=self._rank, **labels).set(1)

    def _count(self, name: str, amount: float, *labels: str) -> None:
        self._metrics[name].labels(self._rank, *labels).inc(amount)
