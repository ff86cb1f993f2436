"""HTTP servers of many agents in one thread: each answers GET with a JSON object, whatever the path."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

_END_OF_HEAD = b"\r\n\r\n"

Answer = Callable[[], dict[str, Any]]


class AgentServers:
    """A context manager. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._open: dict[str, list[asyncio.Server]] = {}

    def __enter__(self) -> "AgentServers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for address in list(self._open):
            self.close(address)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def open(self, address: str, answers: Mapping[int, Answer]) -> None:
        """Listens on the ports of `answers` at this address; each call of an answer is one reply."""
        asyncio.run_coroutine_threadsafe(self._listen(address, answers), self._loop).result(10)

    def close(self, address: str) -> None:
        """Nobody answers at this address any more."""
        asyncio.run_coroutine_threadsafe(self._hush(address), self._loop).result(10)

    async def _listen(self, address: str, answers: Mapping[int, Answer]) -> None:
        self._open[address] = [
            await asyncio.start_server(lambda r, w, answer=answer: _serve(r, w, answer), address, port)  # type: ignore[misc]
            for port, answer in answers.items()
        ]

    async def _hush(self, address: str) -> None:
        for server in self._open.pop(address, ()):
            server.close()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> None:
    try:
        while True:
            await reader.readuntil(_END_OF_HEAD)
            body = json.dumps(answer()).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()
