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
        self._open: dict[str, list[_Listener]] = {}

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
        self._open[address] = [_Listener(answer) for answer in answers.values()]
        for listener, port in zip(self._open[address], answers, strict=True):
            await listener.listen(address, port)

    async def _hush(self, address: str) -> None:
        for listener in self._open.pop(address, ()):
            await listener.close()


class _Listener:
    """One port, and the connections that came in by it."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def listen(self, address: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, address, port)

    async def close(self) -> None:
        """Ends open connections too: a client that keeps one must not be answered any more."""
        if self._server:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while True:
                await reader.readuntil(_END_OF_HEAD)
                body = json.dumps(self._answer()).encode()
                head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # asyncio's own callback cannot do with a cancelled task
        finally:
            self._connections.discard(task)
            writer.close()
