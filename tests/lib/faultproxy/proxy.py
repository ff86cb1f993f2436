"""The proxy itself: HTTP by aiohttp on both sides, one event loop in a thread of its own."""

import asyncio
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress

import aiohttp
from aiohttp import web
from yarl import URL

from .faults import Fault, Pass
from .request import Request, parse
from .rules import Match, Rule, RuleBook

_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "host", "te"})

Reply = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


class FaultProxy:
    """A context manager: while it lives, `url` leads to `upstream`, and its rules say what fails on the way.

    `trust` is the client's side of TLS to the upstream, `identity` the server's side towards the client; None is plain
    HTTP. Credentials in headers are handed on, client certificates are not. Every method may be called from any thread.
    """

    def __init__(
        self, upstream: str, *, trust: ssl.SSLContext | None = None, identity: ssl.SSLContext | None = None
    ) -> None:
        self._upstream, self._trust, self._identity = upstream.rstrip("/"), trust, identity
        self._rules = RuleBook()
        self._requests: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self.url = ""
        """Where it listens, on the loopback address; known once it has started."""

    def __enter__(self) -> "FaultProxy":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def add(self, fault: Fault, match: Match | None = None, *, skip: int = 0, times: int | None = None) -> Rule:
        """Adds a rule: matching requests meet the fault, except the first `skip` and those after `times`."""
        return self._rules.add(Rule(fault, match or Match(), skip=skip, times=times))

    def remove(self, *rules: Rule) -> None:
        """Removes rules; requests that have met a fault already keep it."""
        self._rules.remove(*rules)

    @contextmanager
    def failing(
        self, fault: Fault, match: Match | None = None, *, skip: int = 0, times: int | None = None
    ) -> Iterator[Rule]:
        """A rule for the time of a `with` block."""
        rule = self.add(fault, match, skip=skip, times=times)
        try:
            yield rule
        finally:
            self.remove(rule)

    def requests(self, match: Match | None = None) -> list[Request]:
        """Requests so far that match, oldest first."""
        return [request for request in list(self._requests) if match is None or match(request)]

    def writes(self, match: Match | None = None) -> Counter[tuple[str, str, str]]:
        """Writes that the server carried out, by (resource, namespace, name)."""
        done = (each for each in self.requests(match) if each.write and each.status is not None and each.status < 300)
        return Counter(request.object for request in done)

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._trust if self._trust else True, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False, trust_env=False
        )
        # A client that goes away ends its handler, else its watches would stay open at the server.
        server = web.Server(self._handle, handler_cancellation=True, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._identity)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"{'https' if self._identity else 'http'}://{host}:{port}"

    async def _end(self) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _handle(self, incoming: web.BaseRequest) -> web.StreamResponse:
        body = await incoming.content.read()
        request = parse(incoming.method, incoming.raw_path, body)
        self._requests.append(request)
        fault = self._rules.choose(request)
        request.fault = type(fault).__name__ if fault else None
        exchange = Exchange(request, incoming, self._session, self._upstream)
        try:
            await (fault or Pass()).serve(exchange)
        except (aiohttp.ClientError, ConnectionError):
            exchange.cut()
        return await exchange.end()


class Exchange:
    """One request on its way: the means of a fault."""

    def __init__(
        self, request: Request, incoming: web.BaseRequest, session: aiohttp.ClientSession, upstream: str
    ) -> None:
        self.request = request
        self._incoming, self._session, self._upstream = incoming, session, upstream
        self._response: web.StreamResponse | None = None

    async def forward(self) -> Reply:
        """Asks the server. The client may go away meanwhile: the server has got the request all the same."""
        return await asyncio.shield(asyncio.ensure_future(self._forward()))

    async def reply(self, reply: Reply) -> None:
        """Hands the server's reply to the client."""
        status, headers, body = reply
        await self.answer(status, body, headers)

    async def answer(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Answers the client."""
        response = web.Response(status=status, body=body, headers={"Content-Type": "application/json", **headers})
        self._response = response
        await response.prepare(self._incoming)
        await response.write_eof()

    async def stream(self) -> AsyncIterator[bytes]:
        """The lines of the server's stream; an answer that is no stream is handed to the client instead."""
        async with self._open() as answer:
            self.request.status = answer.status
            if answer.status != 200:
                await self.reply((answer.status, _kept(answer.headers), await answer.read()))
                return
            await self.begin()
            async for line in _lines(answer.content):
                yield line

    async def begin(self) -> None:
        """Tells the client that its stream has begun."""
        if self._response is None:
            self._response = web.StreamResponse(headers={"Content-Type": "application/json"})
            self._response.enable_chunked_encoding()
            await self._response.prepare(self._incoming)

    async def send(self, line: bytes) -> None:
        """Sends one line of a stream to the client."""
        await self.begin()
        assert self._response is not None
        await self._response.write(line)

    def cut(self) -> None:
        """Breaks the client's connection without a word."""
        if self._incoming.transport is not None:
            self._incoming.transport.abort()

    async def hang(self) -> None:
        """Stays silent until the client goes away or the proxy ends."""
        await asyncio.Event().wait()

    async def end(self) -> web.StreamResponse:
        """What aiohttp is given when the fault is through."""
        response = self._response or web.Response(status=502)
        with suppress(ConnectionError):
            if response.prepared:
                await response.write_eof()
        return response

    async def _forward(self) -> Reply:
        async with self._open() as answer:
            body = await answer.read()
            self.request.status = answer.status
            return answer.status, _kept(answer.headers), body

    def _open(self) -> "aiohttp.client._RequestContextManager":
        # Uncompressed, so that faults can read what passes.
        headers = {**_kept(self._incoming.headers), "Accept-Encoding": "identity"}
        # As it was sent: label selectors must not be quoted anew.
        url = URL(self._upstream + self._incoming.raw_path, encoded=True)
        return self._session.request(
            self.request.method, url, data=self.request.body or None, headers=headers, allow_redirects=False
        )


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length."""
    rest = b""
    async for piece in content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
