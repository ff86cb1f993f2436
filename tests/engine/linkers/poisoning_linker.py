"""A linker in whose store one byte of each checkpoint changes as soon as it was put."""

from typing import Any

from poisoner import Poisoner
from umbra_linker.linker import UmbraLinker


class PoisoningLinker(UmbraLinker):
    """Umbra's linker over a store whose memory is broken."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self._address is not None
        self.store.client = Poisoner(self.store.client, self._address, "mamba")
