"""The gate in front of the engine's HTTP server: an ASGI middleware that runs inside the engine's main process.

Public routes are a list of those that serve users and of those that only tell something; every other one, also one that
a later SGLang adds, needs the admin key. Where there is an API key, the routes that serve users need one of the two.
While the drain flag exists new requests are refused, running ones go on and are counted for whoever ends the engine.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from enum import Enum
from pathlib import Path
from typing import Any

from umbra_agent.drain import RunningRequests

ADMIN_KEY_FILE = "UMBRA_ADMIN_KEY_FILE"
"""Variable with the path of the file that holds the admin key; no file, no key: every route is open then."""
API_KEY_FILE = "UMBRA_API_KEY_FILE"
"""Variable with the path of the file that holds the users' key; no file, no key: everybody is served."""
UNREAD_SECONDS = 10.0
"""How long the body of a refused request is read on: a client that still sends would see a reset, not the answer."""
RETRY_SECONDS = b"1"
"""What a request that is refused in a drain is told to wait: another replica, if there is one, takes it at once."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Access(Enum):
    """What a request asks for."""

    OBSERVE = "observe"
    """Tells something that no user's data is in; answered without a key, also during a drain."""
    SERVE = "serve"
    """Works for a user; needs the API key where there is one, and is refused during a drain."""
    ADMIN = "admin"
    """Everything else; needs the key, and goes on during a drain: /abort_request ends what a drain waits for."""


PUBLIC: Mapping[str, str] = {
    "/get_model_info": "GET",
    "/health": "GET",
    "/health_generate": "GET",
    "/metrics": "GET",
    "/model_info": "GET",
    "/ping": "GET",
    "/ready": "GET",
    "/v1/loads": "GET",
    "/v1/models": "GET",
    "/generate": "POST",
    "/v1/chat/completions": "POST",
    "/v1/completions": "POST",
    "/v1/detokenize": "POST",
    "/v1/messages": "POST",
    "/v1/messages/count_tokens": "POST",
    "/v1/responses": "POST",
    "/v1/tokenize": "POST",
}
"""Paths that need no admin key, each with its one method: GET tells something, POST works for a user."""
# A model by its name, and a stored answer by its random id.
_OBSERVE_BELOW = "/v1/models/"
_SERVE_BELOW = "/v1/responses/"


def access(method: str, path: str) -> Access:
    """Return what a request asks for. Paths are compared whole: one that SGLang would only redirect needs the key."""
    if path in PUBLIC and method in (PUBLIC[path], "OPTIONS"):
        # OPTIONS is a browser's preflight, which does no work.
        return Access.SERVE if method == "POST" else Access.OBSERVE
    if method == "GET" and path.startswith(_OBSERVE_BELOW):
        return Access.OBSERVE
    if method in ("GET", "POST") and path.startswith(_SERVE_BELOW):
        return Access.SERVE
    return Access.ADMIN


def read_key(file: Path) -> bytes:
    """Return a key. Raises OSError, or ValueError when the file holds none: "Bearer " would then be enough.

    Whoever adds the gate calls it once: SGLang makes the middleware only when it serves, and logs what that raises.
    """
    key = file.read_bytes().strip()
    if not key:
        raise ValueError(f"{file} holds no key: write one into the Secret that is mounted there")
    return key


class Gate:
    """The middleware. The files are looked at with each request, so another key or flag needs no restart."""

    def __init__(
        self,
        app: Application,
        *,
        admin_key_file: Path | None,
        api_key_file: Path | None,
        drain_flag: Path | None,
        running: RunningRequests,
        own_key: bytes = b"",
    ) -> None:
        """Stand in front of ``app``; ``own_key`` opens all to the engine itself; empty: it asks itself nothing."""
        self._app = app
        self._admin_key_file = admin_key_file
        self._api_key_file = api_key_file
        self._drain_flag = drain_flag
        self._running = running
        self._own_key = own_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or pass it on."""
        asked = _asked(scope)
        if asked is Access.OBSERVE:
            return await self._app(scope, receive, send)
        if asked is Access.ADMIN and not self._opens(scope, self._admin_key_file):
            return await _refuse(scope, send, 401, "this route needs the admin key as a bearer token")
        if asked is Access.SERVE and not self._may_serve(scope):
            await _read_on(receive)
            return await _refuse(scope, send, 401, "this route needs the API key as a bearer token")
        # Counted before the flag is looked at: whoever raised it and then sees no request has missed none.
        with self._running:
            if not (self._draining and _is_work(scope, asked)):
                return await self._app(scope, receive, send)
        if scope["type"] == "http":
            await _read_on(receive)
        return await _refuse(scope, send, 503, "the engine drains: send it again")

    @property
    def _draining(self) -> bool:
        return self._drain_flag is not None and self._drain_flag.exists()

    def _may_serve(self, scope: Scope) -> bool:
        # A browser's preflight carries no key, and does no work.
        if self._api_key_file is None or scope["method"] == "OPTIONS":
            return True
        # Without its own file the admin key would open what the API key closes.
        admin = self._admin_key_file is not None and self._opens(scope, self._admin_key_file)
        return admin or self._opens(scope, self._api_key_file)

    def _opens(self, scope: Scope, file: Path | None) -> bool:
        """Return whether the request carries the key of this file, or is the engine's own; all are without a file."""
        if file is None:
            return True
        given = _bearer(scope)
        if self._own_key and hmac.compare_digest(given, self._own_key):
            return True
        try:
            return hmac.compare_digest(given, read_key(file))
        except (OSError, ValueError):
            return False


def _bearer(scope: Scope) -> bytes:
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = (given[0] if len(given) == 1 else b"").partition(b" ")
    return bytes(token.strip()) if scheme.lower() == b"bearer" else b""


async def _read_on(receive: Receive) -> None:
    """Read the request's body and drop it."""

    async def whole() -> None:
        more = True
        while more:
            message = await receive()
            more = message["type"] == "http.request" and message.get("more_body", False)

    try:
        await asyncio.wait_for(whole(), UNREAD_SECONDS)
    except TimeoutError:
        return


def _asked(scope: Scope) -> Access:
    """Return what a request asks for; the server's own start and end ask for nothing that could be refused."""
    match scope["type"]:
        case "http":
            return access(scope["method"], scope["path"])
        case "websocket":
            return Access.ADMIN
    return Access.OBSERVE


def _is_work(scope: Scope, asked: Access) -> bool:
    """Return whether a drain refuses it. A web socket works for a user whatever key it needs."""
    return asked is Access.SERVE or scope["type"] == "websocket"


async def _refuse(scope: Scope, send: Send, status: int, sentence: str) -> None:
    """Send an error in the shape that clients of OpenAI's API read."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    body = json.dumps({"error": {"message": sentence, "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 503:
        # The connection may lead to this engine for ever; a new one goes to another replica.
        headers += [(b"connection", b"close"), (b"retry-after", RETRY_SECONDS)]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
