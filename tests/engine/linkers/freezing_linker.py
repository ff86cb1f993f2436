"""A linker whose store freezes between lookup and load."""

import os
import signal
from typing import Any

from umbra_linker.connection import epoch_at
from umbra_linker.linker import UmbraLinker


class FreezingLinker(UmbraLinker):
    """Umbra's linker over a store that is stopped before each load of it, by the first rank that begins."""

    def _run_loads(self, batches: list[Any]) -> list[bool]:
        epoch = epoch_at(self._address) if self._address else None
        if epoch is not None:
            os.kill(epoch.pid, signal.SIGSTOP)
        return super()._run_loads(batches)
