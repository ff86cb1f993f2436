"""Loads: the cache of requests, read into their slots layer by layer while the forward runs.

The requests of one forward batch share calls but not results: a failed object fails its request and no other.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from .batch import ObjectBatch
from .device import DevicePages
from .metrics import LinkerMetrics
from .mover import Mover
from .transfers import TaskQueue

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Load:
    """The loads of one forward batch."""

    counter_index: int
    plans: list[list[Any]]
    """One list a request, in the order in which SGLang queued them."""
    landed: list[bool]
    """One entry a request; complete once the counter's layers are."""
    ready: Any


class Loads:
    """One rank's loads. The scheduler's thread calls every public method."""

    def __init__(self, device: DevicePages, counter: Any, mover: Mover, metrics: LinkerMetrics, rank: int) -> None:
        """Start the thread; ``counter`` is SGLang's ``LayerWiseLoadCounter``, which the forward waits on."""
        self._device = device
        self._counter = counter
        self._mover = mover
        self._metrics = metrics
        self._begun: dict[int, _Load] = {}
        self._tasks: TaskQueue[_Load] = TaskQueue(self._run, f"umbra-load-{rank}", keep_results=False)

    def begin(self, requests: list[list[Any]], ready: Any) -> int:
        """Begin a batch; return its counter index.

        Args:
            requests: the transfers of each request.
            ready: device event after which the slots may be written.
        """
        plans = [self._device.load_plans(transfers) for transfers in requests]
        index = int(self._counter.update_producer())
        self._begun[index] = _Load(index, plans, [True] * len(plans), ready)
        self._tasks.submit(self._begun[index])
        return index

    def finish(self, counter_index: int) -> list[bool]:
        """Wait until a batch no longer writes to the device; say for each of its requests whether it landed.

        The order is that of ``begin``. Without such a batch the list is empty.
        """
        complete = bool(self._counter.finish(counter_index))
        load = self._begun.pop(counter_index, None)
        if load is None:
            return []
        return load.landed if complete else [False] * len(load.landed)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until nothing is read any more; False when that took too long."""
        return self._tasks.wait_until_idle(seconds)

    def forget(self) -> None:
        """Forget every batch; none may be running."""
        self._begun.clear()
        self._counter.reset()

    def stop(self, seconds: float) -> bool:
        """End the thread; False when it still runs after ``seconds``."""
        return self._tasks.stop(seconds)

    def _run(self, batches: list[_Load]) -> list[bool]:
        for load in batches:
            begin = time.perf_counter()
            try:
                load.ready.synchronize()
                for group in self._device.layer_groups():
                    self._read_layers(load, group)
                    for layer in group:
                        self._counter.complete(load.counter_index, layer)
            except BaseException as error:
                self._counter.fail(load.counter_index, error)
                logger.exception("a batch of %d loads failed", len(load.landed))
            self._count(load)
            self._metrics.load_ended(time.perf_counter() - begin)
        return [True] * len(batches)

    def _read_layers(self, load: _Load, group: list[int]) -> None:
        batches: dict[str, ObjectBatch] = {}
        for request, plans in enumerate(load.plans):
            for plan in plans if load.landed[request] else ():
                self._device.add_layers(batches, request, plan, group)
        for batch in batches.values():
            for request in batch.failed_owners(self._mover.read(batch)):
                load.landed[request] = False
                logger.error("load failed: pool %s, layers %d to %d", batch.pool, group[0], group[-1])

    def _count(self, load: _Load) -> None:
        for landed, plans in zip(load.landed, load.plans, strict=True):
            for plan in plans if landed else ():
                self._metrics.read(plan.name.value, objects=len(plan.keys), size=sum(self._device.sizes(plan)))
