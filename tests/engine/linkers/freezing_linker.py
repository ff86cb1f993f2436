"""A linker whose store freezes between lookup and load."""

from typing import Any

from freezing import freeze
from umbra_linker.connection import epoch_at
from umbra_linker.linker import UmbraLinker


class FreezingLinker(UmbraLinker):
    """Umbra's linker, but the store is stopped before each load reads from it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        address, read = self._address, self.store.read
        assert address is not None

        def freezing(*arguments: Any) -> list[bool]:
            epoch = epoch_at(address)
            if epoch is not None:
                freeze(epoch.pid)
            return read(*arguments)

        self.store.read = freezing  # type: ignore[method-assign]
