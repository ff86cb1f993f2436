"""A linker whose store freezes between lookup and load."""

from typing import Any

from freezing import freeze
from umbra_linker.connection import epoch_at
from umbra_linker.linker import UmbraLinker


class _FreezingClient:
    """Passes every call on to the real client, but stops the store before each read."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_get_ranges_into_ptr(self, *arguments: Any) -> Any:
        epoch = epoch_at(self._address)
        if epoch is not None:
            freeze(epoch.pid)
        return self._client.batch_get_ranges_into_ptr(*arguments)


class FreezingLinker(UmbraLinker):
    """Umbra's linker over a client that freezes what it is about to read from."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        assert self._address is not None
        self.store.client = _FreezingClient(self.store.client, self._address)
