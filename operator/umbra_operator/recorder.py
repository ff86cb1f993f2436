"""Sends events to the API server beside the reconciles, which wait for none and fail by none."""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from umbra_operator import errors
from umbra_operator.api.base import API_VERSION
from umbra_operator.cluster import EVENTS, Cluster
from umbra_operator.events import Event
from umbra_operator.records import DeploymentRecord

logger = logging.getLogger(__name__)

CONTROLLER = "umbra.dev/operator"
BURST = 25
"""Events at once about one object, as in client-go; beyond that there is one in `REFILL_SECONDS`."""
REFILL_SECONDS = 300.0
WAITING = 1000
"""Events that wait to be sent; the oldest go when there are more."""
NOTE_BYTES = 1024
"""What the API server takes."""


class Recorder:
    """Events of one process; not for use from other threads."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        self._waiting: deque[dict[str, Any]] = deque(maxlen=WAITING)
        self._wake = asyncio.Event()
        self._left: dict[str, tuple[float, float]] = {}
        """By uid of the object how many events are left, and since when."""
        self._paused: dict[tuple[str, str], float] = {}
        """By uid and reason, until when it is not told again."""

    def tell(self, deployment: DeploymentRecord, event: Event) -> None:
        """Sends the event some time soon, if this object has not had too many."""
        now = self._clock()
        self._paused = {each: until for each, until in self._paused.items() if until > now}
        again = (deployment.uid, event.reason)
        if again in self._paused:
            return
        if event.pause_seconds:
            self._paused[again] = now + event.pause_seconds
        if self._may(deployment.uid):
            self._waiting.append(_body(deployment, event))
            self._wake.set()

    async def run(self) -> None:
        """Sends for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.send()

    async def send(self) -> None:
        """Sends what waits. An event that the API server does not take is lost: conditions say the same."""
        while self._waiting:
            try:
                await self._cluster.create(EVENTS, self._waiting.popleft())
            except errors.UmbraError as error:
                logger.debug("event: %s", error)

    def _may(self, uid: str) -> bool:
        now = self._clock()
        left, since = self._left.get(uid, (float(BURST), now))
        left = min(float(BURST), left + (now - since) / REFILL_SECONDS)
        if left < 1:
            return False
        self._left = {each: state for each, state in self._left.items() if now - state[1] < BURST * REFILL_SECONDS}
        self._left[uid] = (left - 1, now)
        return True


def _body(deployment: DeploymentRecord, event: Event) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": deployment.namespace, "name": f"{deployment.name}.{uuid4().hex[:16]}"},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": CONTROLLER,
        "reportingInstance": socket.gethostname()[:128],
        "action": "Reconcile",
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "note": event.note.encode()[:NOTE_BYTES].decode(errors="ignore"),
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": "K3Deployment",
            "namespace": deployment.namespace,
            "name": deployment.name,
            "uid": deployment.uid,
            "resourceVersion": deployment.resource_version,
        },
    }
