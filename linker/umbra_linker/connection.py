"""Which process serves the store, and a new connection when it is another one. No SGLang.

A client of a store that died answers "absent" and "not stored" for ever, also after the next store listens at the same
address. Every rank finds that out by itself and connects anew by itself: until the last one has, its misses count for
all. The end of a store's process is told by the kernel, and the next one is connected to as soon as it speaks.
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
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from .pauses import Pauses
from .probe import alive, connect

logger = logging.getLogger(__name__)

PROBE_SECONDS = 1.0
"""How long a store may take for a sign of life before it is connected to."""
KILL_SECONDS = 5.0
"""How long a killed store may take to be gone: the kernel frees its memory first, 3 GiB in 0.13 s."""
MOST_PATH_BYTES = 107
"""Of the name of a unix socket."""
FOLLOW_SECONDS = 0.05
"""Between two looks for the store that follows one that has ended; a look takes some microseconds."""


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


def other_name(address: str) -> str:
    """Return another name of the same unix socket, and of that the first one; any other address as it is.

    gRPC remembers by name that it was refused, and lets every client of this process wait before it tries that name
    again: the longer a store was away, up to two minutes. A client's constructor stops every Python thread meanwhile.
    """
    folder, slash, file = address.rpartition("/")
    if not address.startswith("unix:") or not slash:
        return address
    if folder.endswith("/."):
        return f"{folder.removesuffix('/.')}/{file}"
    other = f"{folder}/./{file}"
    fits = len(other.removeprefix("unix://").removeprefix("unix:").encode()) <= MOST_PATH_BYTES
    return other if fits else address


class StoreProcess:
    """The process of one life of the store, held by a descriptor: its number may go to another one. For one thread."""

    def __init__(self, address: str, epoch: Epoch | None) -> None:
        """Hold the process that listens at ``address``, if it can be seen from here and ``epoch`` is still right."""
        self._descriptor: int | None = None
        self._ended = False
        if epoch is None or epoch.pid == 0:
            return
        try:
            self._descriptor = os.pidfd_open(epoch.pid)
        except ProcessLookupError:
            self._ended = True
        except OSError:
            return  # Whoever wants to kill it is told.
        # Asked after the process is held: the number may have gone to another one before.
        if self._descriptor is not None and epoch_at(address) != epoch:
            self.release()

    @property
    def held(self) -> bool:
        """Whether there is such a process, which may have ended meanwhile."""
        return self._descriptor is not None

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait so long at most for its end, and say whether it has come; False where that cannot be seen."""
        if self._descriptor is not None and not self._ended:
            # Not select(): an engine has more than 1,024 descriptors.
            end = select.poll()
            end.register(self._descriptor, select.POLLIN)
            self._ended = bool(end.poll(seconds * 1000))
        return self._ended

    def kill(self) -> None:
        """Kill it; nothing happens to one that has ended."""
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def release(self) -> None:
        """Hold it no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
        self._epoch = self._seen = epoch
        self._process = StoreProcess(address, epoch)
        self._connect_anew = connect_anew
        self._retired: list[tuple[StoreProcess, object]] = []
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
        epoch = self._seen = epoch_at(self._address)
        if epoch == self._epoch and not self._process.held:
            self._process = StoreProcess(self._address, epoch)
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
        self._retired.append((self._process, old))
        self._epoch, self._process = epoch, StoreProcess(self._address, epoch)
        self._drop_retired()
        logger.warning("another process serves the store; connected to it anew")
        return True

    def wait(self, seconds: float) -> None:
        """Wait so long, but no longer than until the present store ends or, once it has, another one follows.

        A store that ``look`` has seen already wakes nobody again.
        """
        if not self._process.ended():
            if self._process.held:
                self._process.ended(seconds)
            else:
                time.sleep(seconds)
            return
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, FOLLOW_SECONDS))
            if epoch_at(self._address) not in (None, self._seen):
                return

    def kill(self) -> bool:
        """Kill the store that the present client talks to, and wait until it is gone.

        False when that cannot be done, and when it was gone already: another rank did it, or nobody had to.

        Its death is the only proof that it reads and writes our memory no more: a frozen store goes on with what it was
        asked when it thaws.
        """
        if self._process.ended():
            return False
        if not self._process.held:
            logger.error(
                "the store's process cannot be seen from here, so it cannot be ended: restart the store "
                "(its pod needs shareProcessNamespace)"
            )
            return False
        try:
            self._process.kill()
        except PermissionError:
            logger.exception("the store at %s cannot be killed from here: restart it", self._address)
            return False
        return self._process.ended(KILL_SECONDS)

    def _may_try(self, epoch: Epoch) -> bool:
        if epoch != self._tried:
            # Another life of the store may take what the last one refused.
            self._tried, self._pauses = epoch, Pauses(self._clock)
        return self._pauses.over

    def _drop_retired(self) -> None:
        for process, _ in self._retired:
            if process.ended():
                process.release()
        self._retired = [(process, client) for process, client in self._retired if not process.ended()]
