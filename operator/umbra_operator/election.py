"""Which of several operators leads: the one whose name stands in a Lease, for as long as it renews it.

Only the leader sends requests about objects. Its requests end before its lease does, so whoever takes the lease over
finds nobody writing. A process that was stopped meanwhile finds its lease over before it can send anything new.
"""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from umbra_operator import errors, metrics
from umbra_operator.cluster import LEASES, REQUEST_SECONDS, Cluster

logger = logging.getLogger(__name__)

ATTEMPT_SECONDS = 3.0
"""Bound on one request about the lease, so that several fit between two renewals and its end."""


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds."""

    lease: int = 15
    """A lease that was not renewed for so long is free. client-go's default."""
    renew: float = 5.0
    """Between two renewals."""
    reserve: float = 5.0
    """Before the lease ends without a renewal, the process does."""
    look: float = 1.0
    """Between two looks at another's lease, and between two attempts."""


class Election:
    """One process's part in the election; ``cluster`` has connections of its own, which no other request holds up."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, timing: Timing = Timing()) -> None:
        self._cluster = cluster
        metrics.LEADER.labels(name).set(0)
        self._namespace, self._name = namespace, name
        self._timing = timing
        # Random, because the next process of the same pod must not take itself for this one.
        self.identity = f"{socket.gethostname()}_{uuid4().hex[:8]}"
        self._ends = 0.0
        self._version = ""
        self._seen: tuple[Any, ...] = ()
        self._seen_at = 0.0
        self._looked_at = 0.0

    def patience(self) -> float:
        """Seconds that a request may take now: less than what is left of the lease; not positive when it is over."""
        return min(REQUEST_SECONDS, self._ends - _clock())

    async def acquire(self, looked: Callable[[bool], None] = lambda _: None) -> None:
        """Waits until this process leads; calls ``looked`` after each look, with whether there was an answer."""
        said = ""
        while True:
            try:
                if await self._take():
                    logger.info("leading, as %s by Lease %s/%s", self.identity, self._namespace, self._name)
                    metrics.LEADER.labels(self._name).set(1)
                    return
                looked(True)
            except errors.Conflict:
                looked(True)  # another one was faster, or renewed it in this moment
            except errors.UmbraError as error:
                looked(False)
                if str(error) != said:
                    logger.warning("waiting for Lease %s/%s: %s", self._namespace, self._name, error)
                    said = str(error)
            await asyncio.sleep(self._timing.look * random.uniform(0.8, 1.0))  # noqa: S311 - jitter, not a secret

    async def hold(self) -> None:
        """Renews for ever. Raises LeaseLost when the lease is another's, or could not be renewed in time."""
        while True:
            await asyncio.sleep(self._timing.renew)
            try:
                async with asyncio.timeout(self._ends - self._timing.reserve - _clock()):
                    await self._renew()
            except TimeoutError:
                raise errors.LeaseLost(f"Lease {self._namespace}/{self._name} could not be renewed in time") from None

    async def release(self) -> None:
        """Gives the lease back, so that the next leader need not wait for its end."""
        metrics.LEADER.labels(self._name).set(0)
        if self.patience() <= 0:
            return
        self._ends = 0.0
        try:
            await self._write({"holderIdentity": None, "renewTime": None, "acquireTime": None})
        except errors.UmbraError as error:
            logger.warning("Lease %s/%s was not given back: %s", self._namespace, self._name, error)

    async def _take(self) -> bool:
        """Takes the lease if it is free. Raises Conflict when another one does at the same time."""
        began = _clock()
        try:
            lease = await self._cluster.get(LEASES, self._namespace, self._name)
        except errors.Missing:
            await self._create()
        else:
            self._know(lease)
            spec = lease.get("spec") or {}
            # The holder's clock may differ from ours by minutes, so that only what is seen to stand still counts.
            seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
            if seen != self._seen:
                self._seen, self._seen_at = seen, self._looked_at
            held_for = spec.get("leaseDurationSeconds") or self._timing.lease
            if spec.get("holderIdentity") and self._looked_at - self._seen_at < held_for:
                return False
            began = _clock()
            await self._write(self._claim((spec.get("leaseTransitions") or 0) + 1))
        self._ends = began + self._timing.lease
        return True

    async def _renew(self) -> None:
        while True:
            began = _clock()
            try:
                await self._write({"renewTime": _now()})
            except errors.Conflict:
                await self._look_whether_mine()
            except errors.Missing as error:
                raise errors.LeaseLost(f"somebody deleted it: {error}") from error
            except errors.UmbraError as error:
                logger.warning("renewing Lease %s/%s: %s", self._namespace, self._name, error)
                await asyncio.sleep(self._timing.look)
            else:
                self._ends = began + self._timing.lease
                return

    async def _look_whether_mine(self) -> None:
        """After a conflict: the answer to an earlier renewal was lost, or the lease is another's."""
        try:
            lease = await self._cluster.get(LEASES, self._namespace, self._name)
        except errors.UmbraError:
            await asyncio.sleep(self._timing.look)
            return
        self._know(lease)
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if holder != self.identity:
            raise errors.LeaseLost(f"Lease {self._namespace}/{self._name} is held by {holder or 'nobody'}")

    def _claim(self, transitions: int) -> dict[str, Any]:
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": self._timing.lease,
            "acquireTime": _now(),
            "renewTime": _now(),
            "leaseTransitions": transitions,
        }

    async def _create(self) -> None:
        meta = {"namespace": self._namespace, "name": self._name}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        self._know(await self._cluster.create(LEASES, {**kind, "metadata": meta, "spec": self._claim(0)}))

    async def _write(self, spec: Mapping[str, Any]) -> None:
        body = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        self._know(await self._cluster.patch(LEASES, self._namespace, self._name, body))

    def _know(self, lease: Mapping[str, Any]) -> None:
        self._version = lease["metadata"]["resourceVersion"]
        self._looked_at = _clock()


def _clock() -> float:
    """Seconds; goes on while the machine is suspended, as the lease does."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
