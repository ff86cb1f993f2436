"""What a rank does every second beside the scheduler: mind the store, read live settings, publish ages.

The end of the store, and the next one after it, are seen at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from .connection import StoreWatch
from .live import LiveSettings
from .lookups import Lookups
from .metrics import LinkerMetrics
from .probe import alive
from .store import CallClock, Operation
from .transfers import Heartbeat

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 1.0
"""Between two looks, and how long the store may take for a sign of life."""


class Upkeep:
    """The thread of these duties; it goes on while the scheduler waits in a call."""

    def __init__(
        self,
        watch: StoreWatch | None,
        address: str | None,
        calls: CallClock,
        lookups: Lookups,
        metrics: LinkerMetrics,
        live: LiveSettings,
        *,
        load_deadline_seconds: int,
        oldest_offload: Callable[[], float],
        held_pages: Callable[[], Mapping[str, int]],
        rank: int,
    ) -> None:
        """Start the thread.

        Args:
            watch: of the store's process; None for a store that is part of this process.
            address: where it listens.
            calls: which calls are under way.
            lookups: may ask again once the store speaks.
            metrics: of this rank.
            live: settings that are looked for.
            load_deadline_seconds: how long a call of a load may stay unanswered.
            oldest_offload: seconds.
            held_pages: by pool, what unfinished offloads hold.
            rank: names the thread.
        """
        self._watch = watch
        self._address = address
        self._calls = calls
        self._lookups = lookups
        self._metrics = metrics
        self._live = live
        self.load_deadline_seconds = load_deadline_seconds
        """May be changed."""
        self._oldest_offload = oldest_offload
        self._held_pages = held_pages
        self._heartbeat = Heartbeat(
            self._beat, INTERVAL_SECONDS, f"umbra-heartbeat-{rank}", watch.wait if watch is not None else None
        )

    def stop(self) -> None:
        """Do no more."""
        self._heartbeat.stop()

    def _beat(self) -> None:
        if self._watch is not None:
            self._fence(self._watch)
            if self._watch.look():
                self._metrics.reconnected()
            self._metrics.store_created(self._watch.created_seconds)
        self._lookups.mend(self._store_speaks)
        self._live.look()
        self._metrics.ages(oldest_call=self._calls.oldest_seconds(), oldest_offload=self._oldest_offload())
        self._metrics.held(self._held_pages())
        self._metrics.hints_took()

    def _store_speaks(self) -> bool:
        return self._address is None or alive(self._address, INTERVAL_SECONDS)

    def _fence(self, watch: StoreWatch) -> None:
        """End a store that does not answer a load, so that its requests can fail.

        The forward waits for the load, and with it every request. The slots may be given to others only when nothing
        can write to them any more. Each rank decides alone: a dead store answers all ranks.
        """
        age = self._calls.oldest_seconds(Operation.READ)
        if age <= self.load_deadline_seconds:
            return
        logger.error("the store has not answered a load for %.0f s; killing it", age)
        if watch.kill():
            self._metrics.fenced()
