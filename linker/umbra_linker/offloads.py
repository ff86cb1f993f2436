"""Offloads: nodes of the tree, written to the store in batches, leaf first.

Nodes share calls but not results: a failed object fails its node and no other. Of pages that all ranks hold, each rank
writes its stripe, so a node is stored once every rank stored its part.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from .backlog import Backlog
from .batch import ObjectBatch
from .canary import Canary
from .device import DevicePages, only_pages
from .keys import KV_POOL, MAMBA_POOL, RankPosition
from .metrics import LinkerMetrics
from .mover import Mover
from .planning import owned_pages
from .policy import leaf_first
from .recent import RecentPages
from .settings import Settings
from .transfers import TaskQueue

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Offload:
    """A tree node to store."""

    transfers: list[Any]
    ready: list[Any]
    """Device events after which the pages may be read."""


class Offloads:
    """One rank's offloads. The scheduler's thread calls every public method."""

    def __init__(
        self,
        device: DevicePages,
        mover: Mover,
        canary: Canary,
        metrics: LinkerMetrics,
        backlog: Backlog,
        recent: RecentPages,
        *,
        position: RankPosition,
        striped: bool,
        coalesce_pages: int,
    ) -> None:
        """Start the thread.

        Args:
            device: plans the objects.
            mover: writes them.
            canary: compares some of them with what the store has then.
            metrics: of this rank.
            backlog: how much may wait.
            recent: remembers the KV pages that were stored.
            position: of this rank.
            striped: whether the ranks share the KV pages, and each writes only some.
            coalesce_pages: nodes that wait are written together up to so many pages.
        """
        self._device = device
        self._mover = mover
        self._canary = canary
        self._metrics = metrics
        self._backlog = backlog
        self._recent = recent
        self._position = position
        self._striped = striped
        self._tasks: TaskQueue[_Offload] = TaskQueue(
            self._run, f"umbra-offload-{position.tensor}", weigh=lambda task: _widest(task.transfers),
            most=coalesce_pages,
        )  # fmt: skip

    def configure(self, settings: Settings) -> None:
        """Take other bounds from the next node on."""
        self._backlog.allow(settings.offload_backpressure_percent)

    def admits(self, transfers: list[Any]) -> bool:
        """Return whether a node of these transfers may be submitted.

        The answer depends on the transfers and on what was submitted and taken before: it is the same on all ranks.
        """
        return self._backlog.admits(_pages(transfers))

    def submit(self, transfers: list[Any], ready: list[Any]) -> None:
        """Queue a node that was admitted; ``ready`` are device events after which its pages may be read."""
        self._backlog.add(_pages(transfers))
        self._tasks.submit(_Offload(transfers, ready))

    def results(self) -> int:
        """Return how many results can be taken."""
        return self._tasks.results()

    def take_result(self) -> bool:
        """Return whether this rank stored its part of the oldest node that has ended."""
        self._backlog.finish_oldest()
        return self._tasks.take_result()

    def oldest_seconds(self) -> float:
        """Return how old the oldest unfinished node is; from any thread."""
        return self._tasks.oldest_seconds()

    def held_pages(self) -> dict[str, int]:
        """Return the pages that unfinished nodes hold, by pool; from any thread."""
        return self._backlog.held

    def cancel_waiting(self) -> None:
        """Let every node fail that has not been begun."""
        self._tasks.cancel_waiting()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until nothing is written any more; False when that took too long."""
        return self._tasks.wait_until_idle(seconds)

    def forget(self) -> None:
        """Forget every node and result; none may be running."""
        self._tasks.forget_results()
        self._backlog.clear()

    def stop(self, seconds: float) -> bool:
        """End the thread; False when it still runs after ``seconds``."""
        return self._tasks.stop(seconds)

    def _run(self, tasks: list[_Offload]) -> list[bool]:
        begin = time.perf_counter()
        stored = [True] * len(tasks)
        batches: dict[str, ObjectBatch] = {}
        for number, task in leaf_first(list(enumerate(tasks))):
            try:
                for plan in self._plans(task):
                    self._device.add_whole(batches, number, only_pages(plan, leaf_first(range(len(plan.locations)))))
            except Exception:
                stored[number] = False
                logger.exception("a node cannot be stored")
        # Checkpoints before the pages that lead to them.
        for batch in sorted(batches.values(), key=lambda batch: batch.pool != MAMBA_POOL):
            for number in batch.failed_owners(self._canary.watch(batch, self._mover.write)):
                stored[number] = False
        for number, task in enumerate(tasks):
            if stored[number]:
                self._recent.add(key for t in task.transfers if t.name.value == KV_POOL for key in t.keys)
        self._metrics.offload_ended(time.perf_counter() - begin)
        return stored

    def _plans(self, task: _Offload) -> list[Any]:
        """Plan the objects that this rank writes: of shared pages its stripe, of all else everything."""
        for event in task.ready:
            event.synchronize()
        plans = self._device.write_plans(task.transfers)
        if self._striped:
            plans = [self._stripe(plan) if plan.name.value == KV_POOL else plan for plan in plans]
        return [plan for plan in plans if plan.keys]

    def _stripe(self, plan: Any) -> Any:
        ranks = self._position.tensor_size
        return only_pages(
            plan, owned_pages(plan.keys, per_page=plan.entries_per_page, rank=self._position.tensor, ranks=ranks)
        )


def _pages(transfers: list[Any]) -> dict[str, int]:
    return {t.name.value: len(t.keys or ()) for t in transfers}


def _widest(transfers: list[Any]) -> int:
    return max(_pages(transfers).values(), default=0)
