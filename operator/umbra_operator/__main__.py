"""Starts the operator: logging, metrics, kopf, workers, the poller of agents and the resync."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights

from umbra_operator import __version__, errors, handlers, health, logs, metrics, watches
from umbra_operator.cluster import KubeCluster
from umbra_operator.election import ATTEMPT_SECONDS, Election
from umbra_operator.fleet import Fleet
from umbra_operator.observe import Memory
from umbra_operator.poll import Poller
from umbra_operator.queue import WorkQueue
from umbra_operator.reconcile import Reconciler
from umbra_operator.recorder import Recorder
from umbra_operator.records import Key
from umbra_operator.render.children import Facts
from umbra_operator.resync import Lists
from umbra_operator.settings import Settings

logger = logging.getLogger("umbra_operator")

FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS = 0.5, 16.0
"""Until a resync that did not get all its lists is tried again; the delay doubles."""
SCHEMA_SECONDS = 15.0
"""Between two looks whether CRDs that were outdated are still."""

CANCEL_AGAIN_SECONDS = 1.0
"""Until a part that was told to end and runs on is told again."""


class Operator:
    """What the leader does, until it ends."""

    def __init__(self, settings: Settings, cluster: KubeCluster, signs: health.Health, fleet: Fleet) -> None:
        self._settings = settings
        self._health = signs
        self._cluster = cluster
        self._memory = Memory(Facts(operator_namespace=settings.operator_namespace))
        self._lists = Lists(cluster, self._memory, settings.namespaces)
        self._queue: WorkQueue[Key] = WorkQueue()
        self._poller = Poller(self._memory.pods, self._queue.add)
        self._recorder = Recorder(cluster)
        self._reconciler = Reconciler(cluster, self._memory, self._poller, self._recorder.tell)
        self._synced, self._soon = asyncio.Event(), asyncio.Event()
        self._insights = Insights()
        fleet.known = self._memory.deployments.values

    def parts(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, Any]]:
        """What runs at the same time, each part for ever."""
        kopf_runs = asyncio.Event()
        return [
            self._events(kopf_runs),
            self._keep_signals(kopf_runs, stop),
            watches.keep(self._insights, self._cluster, self._soon.set),
            self._resync(),
            self._await_crds(),
            self._poller.run(),
            self._recorder.run(),
            *(self._work() for _ in range(self._settings.workers)),
        ]

    async def _keep_signals(self, kopf_runs: asyncio.Event, stop: asyncio.Event) -> None:
        """Takes the signals back from kopf, which would wait 5 s for our tasks before it ends."""
        await kopf_runs.wait()
        _end_on_signals(stop)
        await stop.wait()

    async def _events(self, ready: asyncio.Event) -> None:
        """Feeds the memory; sets ``ready`` once kopf runs."""
        namespaces = self._settings.namespaces
        await kopf.operator(
            registry=handlers.registry(self._memory, self._queue.add),
            settings=handlers.kopf_settings(),
            insights=self._insights,
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            ready_flag=ready,
        )

    async def _work(self) -> None:
        """Takes keys for ever, once memory and answers are there: before that an absent pod proves nothing."""
        await self._synced.wait()
        while True:
            key = await self._queue.get()
            if not self._lists.sees(key):
                # The round that brings the missing list adds the key again.
                self._queue.done(key)
                continue
            metrics.QUEUE_DEPTH.labels(metrics.CONTROLLER).set(len(self._queue))
            with (
                logs.reconciling(metrics.CONTROLLER, *key),
                metrics.RECONCILE_SECONDS.labels(metrics.CONTROLLER).time(),
            ):
                result = await self._reconcile(key)
            metrics.RECONCILES.labels(metrics.CONTROLLER, result).inc()
            self._queue.done(key)

    async def _reconcile(self, key: Key) -> str:
        try:
            again = await self._reconciler.reconcile(key)
        except errors.Conflict as error:
            # Somebody was faster, or an event has not arrived yet: look again after it has.
            logger.debug("%s", error)
            self._queue.retry(key)
            return "requeue"
        except errors.Missing as error:
            logger.debug("%s", error)
            self._queue.retry(key)
            return "requeue"
        except errors.ClusterUnavailable as error:
            logger.warning("%s; trying again in %.1f s", error, self._queue.retry(key, error.seconds))
            return "error"
        except errors.UmbraError as error:
            logger.warning("%s; trying again in %.1f s", error, self._queue.retry(key))
            return "error"
        except Exception:
            # One object that cannot be handled must not stop the others.
            logger.exception("unexpected; trying again in %.1f s", self._queue.retry(key))
            return "error"
        self._queue.forget(key)
        if again is not None:
            self._queue.add_after(key, again)
        return "success"

    async def _await_crds(self) -> None:
        """Ends the warning about outdated CRDs soon after they were applied."""
        while True:
            await asyncio.sleep(SCHEMA_SECONDS)
            with suppress(errors.UmbraError):
                if self._memory.facts.lacking and not await self._lists.lacking():
                    self._soon.set()

    async def _resync(self) -> None:
        """Repairs the memory by full lists, at start and then for ever."""
        delay = FIRST_DELAY_SECONDS
        while True:
            self._soon.clear()
            try:
                found = await self._lists.resync()
            except errors.UmbraError as error:
                logger.warning("resync: %s; trying again in %.1f s", error, delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, LAST_DELAY_SECONDS)
                continue
            if self._synced.is_set():
                metrics.REPAIRED.inc(len(found.changed))
            else:
                await self._poller.first()
            self._synced.set()
            self._health.resynced()
            # All of them: what is not watched, such as Services, was read again too.
            for key in found.changed | set(self._memory.deployments):
                self._queue.add(key)
            if found.refused:
                said = "; ".join(sorted(set(found.refused)))
                logger.warning("resync: %s; the rest goes on, trying again in %.1f s", said, delay)
            pause = delay if found.refused else self._settings.resync_seconds
            delay = min(delay * 2, LAST_DELAY_SECONDS) if found.refused else FIRST_DELAY_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._soon.wait()


def _end_on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)


async def _until(stop: asyncio.Event, *parts: Coroutine[Any, Any, Any]) -> bool:
    """Runs all parts until one ends or ``stop`` is set, then ends the others; False when it was ``stop``.

    Raises what the part raised that ended.
    """
    stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(part) for part in parts]
    done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    running = {stopping, *tasks} - done
    while running:
        # Again and again: a part, or a library in it, may lose one cancellation, and would run on without the lease.
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_SECONDS)
    await asyncio.gather(stopping, *tasks, return_exceptions=True)
    for task in done:
        task.result()
    return stopping not in done


async def run(settings: Settings, signs: health.Health, fleet: Fleet) -> None:
    """Runs the operator until SIGTERM or SIGINT: waits for the lease, leads, and gives it back."""
    stop = asyncio.Event()
    _end_on_signals(stop)
    serves = ", ".join(settings.namespaces) or "all namespaces"
    logger.info("umbra-operator %s serves %s", __version__, serves)
    if settings.operator_namespace is None:
        logger.info("UMBRA_OPERATOR_NAMESPACE is not set: no lease, so run no second operator")
        await _lead(settings, signs, fleet, stop, await KubeCluster.connect())
        return
    door = await KubeCluster.connect(lambda: ATTEMPT_SECONDS)
    election = Election(door, settings.operator_namespace, settings.lease_name)
    try:
        if await _until(stop, election.acquire(signs.looked)):
            cluster = await KubeCluster.connect(election.patience)
            await _lead(settings, signs, fleet, stop, cluster, _hold(election))
    finally:
        await election.release()
        await door.close()


async def _lead(
    settings: Settings,
    signs: health.Health,
    fleet: Fleet,
    stop: asyncio.Event,
    cluster: KubeCluster,
    *more: Coroutine[Any, Any, Any],
) -> None:
    signs.leads()
    try:
        await _until(stop, *more, *Operator(settings, cluster, signs, fleet).parts(stop))
    finally:
        await cluster.close()


async def _hold(election: Election) -> None:
    try:
        await election.hold()
    except errors.LeaseLost as error:
        logger.error("%s; ending at once", error)
        # A tidy end takes time that belongs to the next leader.
        os._exit(1)


def main() -> int:
    """Entry point; returns the exit code."""
    try:
        settings = Settings.from_env()
    except ValueError as error:
        print(f"umbra-operator: {error}", file=sys.stderr)
        return 2
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logs.JsonLines())
    logging.basicConfig(level=settings.log_level, handlers=[handler], force=True)
    handlers.quiet_kopf()
    signs, fleet = health.Health(settings.resync_seconds), Fleet()
    if settings.metrics_port:
        health.serve(signs, fleet, settings.bind, settings.metrics_port)
    try:
        asyncio.run(run(settings, signs, fleet))
    except errors.ClusterUnavailable as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
