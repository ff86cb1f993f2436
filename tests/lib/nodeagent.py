"""Plays the kubelet and the agents of every Umbra pod, where no node is: a control plane alone runs the whole flow.

A Node object lets the real scheduler place pods. Each placed pod gets an address of its own under 127.0.0.0/8, where
real HTTP servers answer like its agents; what they say follows the launch document, with a restart in between.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from localcluster import pki, probe
from localcluster.controlplane import ControlPlane
from umbra_operator.render import names

NODE = "node-0"
START_SECONDS, RESTART_SECONDS, END_SECONDS = 0.5, 1.5, 0.7
TICK_SECONDS = 0.15
HEARTBEAT_SECONDS = 10.0
STRATEGIC = "application/strategic-merge-patch+json"


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


@dataclass
class Life:
    """One pod on the node."""

    address: str
    since: float
    revision: str | None = None
    """What its engine runs; None while it starts."""
    wanted: str | None = None
    epoch: str = ""
    ready: bool = False
    ending: float | None = None
    servers: list[ThreadingHTTPServer] = field(default_factory=list)

    def engine(self) -> dict[str, Any]:
        """What the engine's agent answers on /status."""
        state = "serving" if self.revision else "starting"
        return {
            "agent": "engine",
            "revision": self.revision,
            "wantedRevision": self.wanted,
            "state": state,
            "restarts": 0,
            "problem": None,
        }

    def store(self) -> dict[str, Any]:
        """What the store's agent answers on /status."""
        return {"agent": "store", "epoch": self.epoch, "state": "ready", "problem": None}


class NodeAgent:
    """A context manager: while it lives, pods that the scheduler places become ready, restart and end."""

    def __init__(self, control_plane: ControlPlane) -> None:
        self._api = Api(control_plane)
        self._lives: dict[str, Life] = {}
        self._next = 4
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-agent", daemon=True)
        self._beat = 0.0
        self.problems: list[str] = []
        """What went wrong in the thread; a test looks at its end."""

    def __enter__(self) -> "NodeAgent":
        self._api("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        self._heartbeat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        for life in self._lives.values():
            _close(life)
        self._api("DELETE", f"/api/v1/nodes/{NODE}")

    def _run(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            try:
                if time.monotonic() - self._beat > HEARTBEAT_SECONDS:
                    self._heartbeat()
                pods = self._api("GET", f"/api/v1/pods?labelSelector={names.LABEL_DEPLOYMENT}")["items"]
                for uid in self._lives.keys() - {pod["metadata"]["uid"] for pod in pods}:
                    _close(self._lives.pop(uid))
                for pod in pods:
                    if pod["spec"].get("nodeName") == NODE:
                        self._step(pod)
            except Refused as error:
                if error.status not in (404, 409):
                    self.problems.append(str(error))
            except Exception as error:  # the thread must go on, and the test must see it
                self.problems.append(repr(error))

    def _heartbeat(self) -> None:
        self._beat = time.monotonic()
        amounts = {"cpu": "64", "memory": "1Ti", "pods": "200"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "Here", "message": "", "lastHeartbeatTime": now}
        body = {"status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}}
        self._api("PATCH", f"/api/v1/nodes/{NODE}/status", body, STRATEGIC)

    def _step(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        now = time.monotonic()
        life = self._lives.get(meta["uid"]) or self._begin(meta["uid"], now)
        if "deletionTimestamp" in meta:
            life.ending = life.ending or now
            if now - life.ending > END_SECONDS:
                options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
                self._api("DELETE", path, options)
            return
        wanted = meta["annotations"][names.ANNOTATION_REVISION]
        if life.wanted != wanted:
            # A new launch document: the engine ends, and starts again a moment later.
            life.since = now + (RESTART_SECONDS if life.wanted else START_SECONDS)
            life.wanted, life.revision = wanted, None
        if life.revision is None and now >= life.since:
            life.revision = wanted
        ready = life.revision is not None
        if life.ready != ready or pod["status"].get("podIP") != life.address:
            self._api("PATCH", f"{path}/status", {"status": _status(life, ready)}, STRATEGIC)
            life.ready = ready

    def _begin(self, uid: str, now: float) -> Life:
        self._next += 1
        life = Life(address=f"127.0.0.{self._next}", since=now, epoch=f"epoch-{self._next}")
        life.servers = [
            _serve(life.address, names.ENGINE_AGENT_PORT, life.engine),
            _serve(life.address, names.STORE_AGENT_PORT, life.store),
        ]
        self._lives[uid] = life
        return life


def _status(life: Life, ready: bool) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def container(name: str, up: bool) -> dict[str, Any]:
        running = {"running": {"startedAt": now}}
        common = {"name": name, "image": "i", "imageID": "i", "restartCount": 0}
        return {**common, "ready": up, "started": True, "state": running}

    ended = {"terminated": {"exitCode": 0, "startedAt": now, "finishedAt": now, "reason": "Completed"}}
    preflight = {**container(names.PREFLIGHT, True), "started": False, "state": ended}
    states = {"Initialized": True, "ContainersReady": ready, "Ready": ready}
    return {
        "phase": "Running",
        "podIP": life.address,
        "podIPs": [{"ip": life.address}],
        "initContainerStatuses": [container(names.KIT, True), preflight, container(names.STORE, True)],
        "containerStatuses": [container(names.ENGINE, ready)],
        "conditions": [{"type": name, "status": str(value)} for name, value in states.items()],
    }


def _serve(address: str, port: int, answer: Any) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Questions are not news."""

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    return server


def _close(life: Life) -> None:
    for server in life.servers:
        server.shutdown()
        server.server_close()
