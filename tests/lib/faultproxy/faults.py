"""What can go wrong with one request. A fault of your own is a class with one method, `serve`."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from .proxy import Exchange

_REASONS = {
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class Fault(ABC):
    """Serves one request in its own way."""

    @abstractmethod
    async def serve(self, exchange: "Exchange") -> None:
        """Forwards, answers, cuts or hangs by the means of `exchange`; runs in the proxy's event loop."""


class Pass(Fault):
    """No fault."""

    async def serve(self, exchange: "Exchange") -> None:
        if exchange.request.verb == "watch":
            async for line in exchange.stream():
                await exchange.send(line)
        else:
            await exchange.reply(await exchange.forward())


@dataclass(frozen=True)
class Delay(Pass):
    """The request reaches the server `seconds` late."""

    seconds: float

    async def serve(self, exchange: "Exchange") -> None:
        await asyncio.sleep(self.seconds)
        await super().serve(exchange)


class CutBefore(Fault):
    """The connection breaks and the server never sees the request."""

    async def serve(self, exchange: "Exchange") -> None:
        exchange.cut()


class CutAfter(Fault):
    """The server does what it was asked, and the connection breaks before its reply."""

    async def serve(self, exchange: "Exchange") -> None:
        await exchange.forward()
        exchange.cut()


class Silence(Fault):
    """The server never sees the request, and the client hears nothing: its own time-out must save it."""

    async def serve(self, exchange: "Exchange") -> None:
        await exchange.hang()


class ReplyLost(Fault):
    """The server does what it was asked, and the client hears nothing: its own time-out must save it."""

    async def serve(self, exchange: "Exchange") -> None:
        await exchange.forward()
        await exchange.hang()


@dataclass(frozen=True)
class Answer(Fault):
    """An answer of the API server's form, without asking it."""

    status: int
    message: str = "injected"
    retry_after: int | None = None
    """Seconds in the header `Retry-After`."""

    async def serve(self, exchange: "Exchange") -> None:
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        await exchange.answer(self.status, json.dumps(_status(self.status, self.message)).encode(), headers)


class Expire(Fault):
    """A watch that starts and says 410 Gone inside its stream, as the server does when it has compacted."""

    async def serve(self, exchange: "Exchange") -> None:
        event = {"type": "ERROR", "object": _status(410, "too old resource version")}
        await exchange.send(json.dumps(event).encode() + b"\n")


@dataclass(frozen=True)
class Freeze(Fault):
    """A watch whose first `events` arrive; then it is still and open for `seconds`, and what came meanwhile follows.

    `seconds=None` is the half-open connection: nothing more ever comes, and nobody is told.
    """

    events: int = 0
    seconds: float | None = None

    async def serve(self, exchange: "Exchange") -> None:
        left = self.events
        await exchange.begin()
        async for line in exchange.stream():
            if left == 0:
                await (exchange.hang() if self.seconds is None else asyncio.sleep(self.seconds))
            left -= 1
            await exchange.send(line)


@dataclass(frozen=True)
class LoseEvents(Fault):
    """A watch without the events for which `lose` is true; `lose` sees the event as the server sent it, parsed."""

    lose: Callable[[dict[str, Any]], bool]

    async def serve(self, exchange: "Exchange") -> None:
        async for line in exchange.stream():
            if not self.lose(json.loads(line)):
                await exchange.send(line)


@dataclass
class StaleList(Fault):
    """Lists as they were: until `hold` is called it only remembers answers; from then on it repeats them.

    A list that was never asked before is answered by the server.
    """

    _kept: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)
    _held: bool = False

    def hold(self) -> None:
        """From now on nothing new is told."""
        self._held = True

    async def serve(self, exchange: "Exchange") -> None:
        target = exchange.request.target
        if not (self._held and target in self._kept):
            self._kept[target] = await exchange.forward()
        await exchange.reply(self._kept[target])


@dataclass(frozen=True)
class Crash(Fault):
    """Calls `kill`, which must end the client for good, at one point of a request.

    `before`: the server never sees the request. `reply-lost`: the server has done it, the client does not know.
    `after`: the client has the reply.
    """

    point: Literal["before", "reply-lost", "after"]
    kill: Callable[[], None]

    async def serve(self, exchange: "Exchange") -> None:
        if self.point != "before":
            done = await exchange.forward()
            if self.point == "after":
                await exchange.reply(done)
        # A client that has its reply may go away by itself, which ends this handler.
        await asyncio.shield(asyncio.to_thread(self.kill))
        exchange.cut()


def _status(code: int, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(code, ""),
        "code": code,
    }
