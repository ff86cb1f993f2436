"""Everything that kopf calls: events become changes of the memory, and keys on the queue. No decisions here.

kopf is the event source and runtime only. Its handlers with progress, finalizers and annotations of their own are not
used, because the operator derives all state from what it observes.
"""

import logging
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import kopf

from umbra_operator.api.base import GROUP, VERSION
from umbra_operator.cluster import load_connection
from umbra_operator.observe import Memory
from umbra_operator.records import Key
from umbra_operator.render import names

CHUNK = 500
SERVER_SECONDS, CLIENT_SECONDS = 240, 300
"""A watch ends by the server's clock, or by ours when the server does not answer any more."""
RETRY_SECONDS = 10
TASKS, TASK_IDLE_SECONDS = 64, 0.02
"""kopf's tasks, one for each object that has events, and how long one stays when there are no more.

An object without a task waits for one, so the two bound the objects per second, here at 3,200. No limit at all would
mean a task for every object of the first list. Not 0 seconds: a task of Python 3.11 would then never take an event.
"""


class _Endless:
    """Back-offs that never end, and can be iterated many times: with kopf's own, one long 403 ends the process."""

    def __iter__(self) -> Any:
        return chain((0.2, 0.5, 1, 2, 5), repeat(RETRY_SECONDS))


class _NothingRemembered:
    """No last state of an object: kopf copies an object for it with each event, and nothing asks for it."""

    def build(self, **_: Any) -> dict[str, Any]:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None


def registry(memory: Memory, wake: Callable[[Key], None]) -> kopf.OperatorRegistry:
    """Handlers that feed ``memory`` and ``wake`` the keys that an event concerns."""
    handlers = kopf.OperatorRegistry()

    @kopf.on.login(registry=handlers, id="connection")
    async def login(**_: Any) -> kopf.ConnectionInfo:
        found = await load_connection()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            ca_data=found.ca_data,
            scheme="Bearer" if found.token else None,
            token=found.token,
            certificate_path=found.certificate_path,
            private_key_path=found.key_path,
        )

    @kopf.on.event(GROUP, VERSION, "k3deployments", registry=handlers, id="deployment")
    async def deployment(*, type: str | None, body: kopf.Body, namespace: str | None, name: str, **_: Any) -> None:
        gone = type == "DELETED"
        uid = body["metadata"]["uid"]
        _wake(memory.drop_deployment((namespace or "", name), uid) if gone else memory.put_deployment(body))

    @kopf.on.event(GROUP, VERSION, "k3profiles", registry=handlers, id="profile")
    async def profile(*, type: str | None, body: kopf.Body, name: str, **_: Any) -> None:
        _wake(memory.drop_profile(name, body["metadata"]["uid"]) if type == "DELETED" else memory.put_profile(body))

    @kopf.on.event("", "v1", "pods", registry=handlers, id="pod", labels={names.LABEL_DEPLOYMENT: kopf.PRESENT})
    async def pod(*, type: str | None, body: kopf.Body, **_: Any) -> None:
        _wake(memory.drop_pod(body) if type == "DELETED" else memory.put_pod(body))

    def _wake(keys: set[Key]) -> None:
        for key in keys:
            wake(key)

    return handlers


def kopf_settings() -> kopf.OperatorSettings:
    """kopf bounded in memory and time, and never giving up."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.chunk_size = CHUNK
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = CLIENT_SECONDS
    settings.watching.connect_timeout = RETRY_SECONDS
    settings.watching.label_selectors["pods"] = names.LABEL_DEPLOYMENT
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = RETRY_SECONDS
    settings.networking.error_backoffs = _Endless()
    settings.persistence.diffbase_storage = _NothingRemembered()
    settings.queueing.error_delays = _Endless()
    settings.queueing.worker_limit = TASKS
    settings.queueing.idle_timeout = TASK_IDLE_SECONDS
    settings.queueing.exit_timeout = 0.2
    return settings


def quiet_kopf() -> None:
    """kopf says one line for each event and each watch; the operator says its own."""
    for name in ("kopf.objects", "kopf.activities", "kopf._core", "kopf._cogs"):
        logging.getLogger(name).setLevel(logging.WARNING)
