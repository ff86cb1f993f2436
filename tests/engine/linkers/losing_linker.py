"""A linker whose store loses every object between lookup and load, as an eviction at the wrong moment would."""

from typing import Any

from umbra_linker.linker import UmbraLinker


class _LosingClient:
    """Passes every call on to the real client, but no read succeeds."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_get_ranges_into_ptr(self, keys: Any, *ranges: Any) -> list[bool]:
        return [False for _ in keys]


class LosingLinker(UmbraLinker):
    """Umbra's linker over a client that finds nothing when it reads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.store.client = _LosingClient(self.store.client)
