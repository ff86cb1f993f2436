"""Plays the kubelet and the agents of every Umbra pod, where no node is: a control plane alone runs the whole flow.

A Node object lets the real scheduler place pods. Each placed pod gets an address of its own under 127.0.0.0/8, where
real HTTP servers answer like its agents; what they say follows the launch document, with a restart in between.
"""

import http.client
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from agentservers import AgentServers
from localcluster import pki, probe
from localcluster.controlplane import ControlPlane
from umbra_operator.render import names

NODE = "node-0"
TICK_SECONDS = 0.15
HEARTBEAT_SECONDS = 10.0
STRATEGIC = "application/strategic-merge-patch+json"
_INITIAL = "resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


class Refused(Exception):
    """The API server said no; `status` is its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """The API server as its administrator sees it: JSON in, JSON out. One connection; not for several threads."""

    def __init__(self, control_plane: ControlPlane) -> None:
        context: ssl.SSLContext = probe.client_context(pki.Authority(control_plane.directory / "pki"))
        parts = urlsplit(control_plane.url)
        self._connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, context=context, timeout=10)

    def __call__(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = "application/json"
    ) -> dict[str, Any]:
        """One request. Raises Refused."""
        sent = json.dumps(body) if body is not None else None
        try:
            self._connection.request(method, path, sent, {"Content-Type": kind})
            response = self._connection.getresponse()
        except (http.client.HTTPException, OSError):
            self._connection.close()
            self._connection.request(method, path, sent, {"Content-Type": kind})
            response = self._connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read() or b"{}")
        if response.status >= 300:
            raise Refused(response.status, str(answer.get("message")))
        return answer

    def watch(self, path: str) -> Iterator[dict[str, Any]]:
        """Events of a watch until its end. Raises Refused, and OSError after `cut`."""
        # The one before may have ended in the middle of an answer.
        self._connection.close()
        self._connection.request("GET", path)
        if self._connection.sock:
            self._connection.sock.settimeout(None)
        response = self._connection.getresponse()
        if response.status >= 300:
            raise Refused(response.status, response.read().decode())
        while line := response.readline():
            yield json.loads(line)
        self._connection.close()

    def cut(self) -> None:
        """Ends a watch that another thread reads."""
        if self._connection.sock:
            # It may have ended by itself in this moment, as it does when the API server dies.
            with suppress(OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)


@dataclass(frozen=True)
class Timing:
    """How fast pods do things, in seconds."""

    start: float = 0.5
    """From being placed to a ready engine."""
    restart: float = 1.5
    """From a new launch document to a ready engine."""
    end: float = 0.7
    """From the wish to be gone to being gone."""


@dataclass
class Life:
    """One pod on the node."""

    path: str
    address: str
    since: float
    """When its engine is up at the revision that it was told."""
    told: str
    """Revision of the launch document."""
    revision: str | None = None
    """What its engine runs; None while it starts."""
    epoch: str = ""
    shown: bool | None = None
    """The readiness that the API server was told; None before it was told any."""
    ending: float | None = None
    pulls: tuple[str, ...] = ()
    """Containers that only ask for an image."""
    pulled: tuple[str, ...] = ()
    """Those of them whose end the API server was told."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """More of what its engine's agent says."""

    @property
    def rests(self) -> bool:
        """Whether only an event can change something."""
        done = self.revision == self.told and self.pulled == self.pulls
        return self.ending is None and done and self.shown is True

    def engine(self) -> dict[str, Any]:
        """What the engine's agent answers on /status."""
        state = "serving" if self.revision else "starting"
        return {
            "agent": "engine",
            "revision": self.revision,
            "wantedRevision": self.told,
            "state": state,
            "restarts": 0,
            "problem": None,
            **self.numbers,
        }

    def store(self) -> dict[str, Any]:
        """What the store's agent answers on /status."""
        return {"agent": "store", "epoch": self.epoch, "state": "ready", "problem": None}


class NodeAgent:
    """A context manager: while it lives, pods that the scheduler places become ready, restart and end."""

    def __init__(self, control_plane: ControlPlane, timing: Timing | None = None, pods: int = 500) -> None:
        self._api = Api(control_plane)
        self._watch_api = Api(control_plane)
        self._timing, self._capacity = timing or Timing(), pods
        self._servers = AgentServers()
        self._lives: dict[str, Life] = {}
        self._busy: set[str] = set()
        self._events: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
        self._next = 4
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"node-agent-{target.__name__}", daemon=True)
            for target in (self._watch, self._run)
        ]
        self._beat = 0.0
        self.engine_starts: Counter[tuple[str, str]] = Counter()
        """Starts of an engine so far, by namespace and `<deployment>-<ordinal>`, whatever the pod's name was."""
        self.problems: list[str] = []
        """What went wrong in the threads; a test looks at its end."""

    def __enter__(self) -> "NodeAgent":
        self._api("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        self._heartbeat()
        self._servers.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watch_api.cut()
        for thread in self._threads:
            thread.join(10)
        self._servers.__exit__()
        self._api("DELETE", f"/api/v1/nodes/{NODE}")

    def _watch(self) -> None:
        """Turns pods on the node into events, for ever."""
        path = f"/api/v1/pods?labelSelector={names.LABEL_DEPLOYMENT}&fieldSelector=spec.nodeName={NODE}"
        while not self._stop.is_set():
            try:
                for event in self._watch_api.watch(f"{path}&watch=true&sendInitialEvents=true&{_INITIAL}"):
                    self._events.put((event["type"], event["object"]))
            except Exception as error:  # the thread must go on, and the test must see it
                if not self._stop.is_set():
                    self.problems.append(f"watch: {error!r}")
                    self._stop.wait(1)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if time.monotonic() - self._beat > HEARTBEAT_SECONDS:
                    self._heartbeat()
                self._take_events()
                for uid in list(self._busy):
                    self._step(uid)
            except Exception as error:  # the thread must go on, and the test must see it
                self.problems.append(repr(error))

    def _heartbeat(self) -> None:
        self._beat = time.monotonic()
        amounts = {"cpu": "10k", "memory": "1Pi", "pods": str(self._capacity)}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "Here", "message": "", "lastHeartbeatTime": now}
        body = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
        self._api("PATCH", f"/api/v1/nodes/{NODE}/status", body, STRATEGIC)

    def _take_events(self) -> None:
        """Waits for a tick, or as long as nothing happens and nothing is due."""
        end = time.monotonic() + TICK_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                kind, body = self._events.get(timeout=left)
            except Empty:
                return
            if kind in ("ADDED", "MODIFIED"):
                self._see(body)
            elif kind == "DELETED" and (life := self._lives.pop(body["metadata"]["uid"], None)):
                self._busy.discard(body["metadata"]["uid"])
                self._servers.close(life.address)

    def _see(self, pod: dict[str, Any]) -> None:
        meta, now = pod["metadata"], time.monotonic()
        told = meta["annotations"][names.ANNOTATION_REVISION]
        life = self._lives.get(meta["uid"])
        if life is None:
            life = self._begin(pod, told, now)
        elif life.told != told:
            # A new launch document: the engine ends, and starts again a moment later.
            life.told, life.revision, life.since = told, None, now + self._timing.restart
            self._count(pod)
        life.pulls = tuple(each["name"] for each in pod["spec"].get("ephemeralContainers", ()))
        if "deletionTimestamp" in meta:
            life.ending = life.ending or now + self._timing.end
        if not life.rests:
            self._busy.add(meta["uid"])

    def _step(self, uid: str) -> None:
        life, now = self._lives[uid], time.monotonic()
        try:
            if life.ending is not None:
                if now >= life.ending:
                    self._busy.discard(uid)
                    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
                    self._api("DELETE", life.path, options)
                return
            if now >= life.since:
                life.revision = life.told
            ready = life.revision is not None
            if life.shown != ready:
                self._api("PATCH", f"{life.path}/status", {"status": _status(life, ready)}, STRATEGIC)
                life.shown = ready
            if life.pulled != life.pulls:
                ended = [_ended(name, _now()) for name in life.pulls]
                self._api("PATCH", f"{life.path}/status", {"status": {"ephemeralContainerStatuses": ended}}, STRATEGIC)
                life.pulled = life.pulls
        except Refused as error:
            if error.status not in (404, 409):
                raise
        if life.rests:
            self._busy.discard(uid)

    def say(self, uid: str, numbers: Mapping[str, Any]) -> None:
        """Let the agent of this pod's engine say more."""
        self._lives[uid].numbers.update(numbers)

    def _begin(self, pod: dict[str, Any], told: str, now: float) -> Life:
        meta = pod["metadata"]
        self._next += 1
        high, low = divmod(self._next, 250)
        life = Life(
            path=f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}",
            address=f"127.1.{high}.{low + 1}",
            since=now + self._timing.start,
            told=told,
            epoch=f"epoch-{self._next}",
        )
        self._servers.open(life.address, {names.ENGINE_AGENT_PORT: life.engine, names.STORE_AGENT_PORT: life.store})
        self._lives[meta["uid"]] = life
        self._count(pod)
        return life

    def _count(self, pod: dict[str, Any]) -> None:
        meta, labels = pod["metadata"], pod["metadata"]["labels"]
        replica = f"{labels[names.LABEL_DEPLOYMENT]}-{labels[names.LABEL_ORDINAL]}"
        self.engine_starts[meta["namespace"], replica] += 1


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _container(name: str, up: bool, now: str) -> dict[str, Any]:
    running = {"running": {"startedAt": now}}
    common = {"name": name, "image": "i", "imageID": "i", "restartCount": 0}
    return {**common, "ready": up, "started": True, "state": running}


def _ended(name: str, now: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now, "reason": "Completed"}}
    return {**_container(name, True, now), "started": False, "state": state}


def _status(life: Life, ready: bool) -> dict[str, Any]:
    now = _now()
    states = {"Initialized": True, "ContainersReady": ready, "Ready": ready}
    kit, store = _container(names.KIT, True, now), _container(names.STORE, True, now)
    return {
        "phase": "Running",
        "podIP": life.address,
        "podIPs": [{"ip": life.address}],
        "initContainerStatuses": [kit, _ended(names.PREFLIGHT, now), store],
        "containerStatuses": [_container(names.ENGINE, ready, now)],
        "conditions": [{"type": name, "status": str(value)} for name, value in states.items()],
    }
