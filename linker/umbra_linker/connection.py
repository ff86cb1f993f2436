"""Which process serves the store, and a new connection when it is another one. No SGLang.

A client of a store that died answers "absent" and "not stored" for ever, also after the next store listens at the same
address. Every rank finds that out by itself and connects anew by itself: until the last one has, its misses count for
all.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .pauses import Pauses
from .probe import alive, connect

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
"""How long a store may take for a sign of life before it is connected to."""
KILL_SECONDS = 5.0
"""How long a killed store may take to be gone: the kernel frees its memory first, 3 GiB in 0.13 s."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One life of a store."""

    pid: int
    """Of the process that listens; 0 where it cannot be told, as in another pid namespace or over TCP."""
    created_ns: int
    """When its socket was made; the number of a socket file's inode is used again by the next. 0 over TCP."""


def epoch_at(address: str, seconds: float = PROBE_SECONDS) -> Epoch | None:
    """Return which life of the store listens at ``address``, None when none does. A frozen one is told, too."""
    try:
        with closing(connect(address, seconds)) as connection:
            if connection.family != socket.AF_UNIX:
                return Epoch(0, 0)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid, _, _ = struct.unpack("3i", credentials)
            return Epoch(pid, Path(connection.getpeername()).stat().st_ctime_ns)
    except (OSError, ValueError):
        return None


class StoreWatch:
    """Connects anew when another process serves the store, and can end the present one. For one thread."""

    def __init__(
        self,
        address: str,
        epoch: Epoch | None,
        connect_anew: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with the life of the store that the present client was made for.

        ``connect_anew`` makes a client for what listens now and returns the old one; it raises when it cannot. Each
        trial may cost a client that is given up, so one life of the store is tried after growing pauses.
        """
        self._address = address
        self._epoch = epoch
        self._connect_anew = connect_anew
        self._retired: list[tuple[int, object]] = []
        self._clock = clock
        self._tried: Epoch | None = None
        self._pauses = Pauses(clock)

    @property
    def created_seconds(self) -> float:
        """When the socket of the present client's store was made, in Unix seconds; 0 when that cannot be told."""
        return self._epoch.created_ns / 1e9 if self._epoch else 0.0

    def look(self) -> bool:
        """Return whether a new connection was made."""
        self._drop_retired()
        epoch = epoch_at(self._address)
        if epoch is None or epoch == self._epoch or not self._may_try(epoch):
            return False
        # The client's constructor stops every Python thread for as long as the store says nothing: it must speak first.
        if not alive(self._address, PROBE_SECONDS):
            return False
        try:
            old = self._connect_anew()
        except Exception:
            self._pauses.begin()
            logger.exception("the store at %s cannot be connected to yet; trying again", self._address)
            return False
        # Dropping a client waits for its store, also when that is frozen: it is kept until its process is gone.
        self._retired.append((self._epoch.pid if self._epoch else 0, old))
        self._epoch = epoch
        self._drop_retired()
        logger.warning("another process serves the store; connected to it anew")
        return True

    def kill(self) -> bool:
        """Kill the store that the present client talks to, and wait until it is gone.

        False when that cannot be done, and when it was gone already: another rank did it, or nobody had to.

        Its death is the only proof that it reads and writes our memory no more: a frozen store goes on with what it was
        asked when it thaws.
        """
        if self._epoch is None or self._epoch.pid == 0:
            logger.error(
                "the store's process cannot be seen from here, so it cannot be ended: restart the store "
                "(its pod needs shareProcessNamespace)"
            )
            return False
        try:
            process = os.pidfd_open(self._epoch.pid)
        except ProcessLookupError:
            return False
        try:
            # Asked after the process is held: the number may have gone to another one meanwhile.
            if epoch_at(self._address) != self._epoch:
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
            ended, _, _ = select.select([process], [], [], KILL_SECONDS)
            return bool(ended)
        except PermissionError:
            logger.exception("the store with pid %d cannot be killed from here: restart it", self._epoch.pid)
            return False
        finally:
            os.close(process)

    def _may_try(self, epoch: Epoch) -> bool:
        if epoch != self._tried:
            # Another life of the store may take what the last one refused.
            self._tried, self._pauses = epoch, Pauses(self._clock)
        return self._pauses.over

    def _drop_retired(self) -> None:
        self._retired = [(pid, client) for pid, client in self._retired if not _gone(pid)]


def _gone(pid: int) -> bool:
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
