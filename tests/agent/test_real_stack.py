"""The agent with the real UMBP server and the real SGLang, as in a pod: two agents, one launch document."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from agent_process import AgentProcess, EngineAgent, is_gone, wait_for

from engine_fixtures import lay_out_kit
from umbra_agent.drain import RunningCount

if TYPE_CHECKING:
    from cpuengine import Environment

# A cold build of the environment and two engine starts; on a busy two-core machine one start takes minutes.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built() -> "Environment":
    from cpuengine import environment

    return environment()


class RealStore(AgentProcess):
    """Store mode with the real umbp_standalone_server. A short folder: a socket's path has at most 107 bytes."""

    def __init__(self, built: "Environment", folder: Path, capacity_bytes: int) -> None:
        self.boot_id = folder / "boot_id"
        self.socket = folder / "umbp.grpc.sock"
        arguments = ["store", "--bind", "127.0.0.1", "--port", "0", "--boot-id", str(self.boot_id)]
        arguments += ["--socket", str(self.socket), "--termination-log", str(folder / "termination-log")]
        environment = {
            "UMBP_DRAM_CAPACITY": str(capacity_bytes),
            "LD_LIBRARY_PATH": built.library_path,
        }
        super().__init__(folder, [*arguments, "--", str(built.store_server), f"unix://{self.socket}"], environment)

    def child_pid(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())


@pytest.fixture
def store_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="umbp-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_real_store_becomes_ready_and_stops_cleanly(built: "Environment", store_folder: Path) -> None:
    store = RealStore(built, store_folder, 256 << 20)
    began = time.monotonic()
    store.start()
    try:
        store.wait_ready(30)
        print(f"store of 256 MiB ready after {time.monotonic() - began:.2f} s")
        assert store.status()["state"] == "ready"
        assert b"listening grpc=" in store.stdout.read_bytes()
        store.terminate()
        assert store.wait(30) == 0
        assert b"exited cleanly" in store.stdout.read_bytes(), "SIGTERM is waited for, not died of"
        assert not store.socket.exists()
    finally:
        store.close()


def test_real_store_killed_or_frozen(built: "Environment", store_folder: Path) -> None:
    store = RealStore(built, store_folder, 256 << 20)
    store.start()
    try:
        store.wait_ready(30)
        epoch = store.status()["epoch"]
        pid = store.child_pid()
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda: b"frozen" in store.get("/ready")[1], "the freeze is seen", 6)
        os.kill(pid, signal.SIGCONT)
        store.wait_ready(6)
        assert store.status()["epoch"] == epoch
        os.kill(pid, signal.SIGKILL)
        assert store.wait(10) == 137
        assert json.loads(store.termination_log.read_text())["lastExit"]["signal"] == 9
        store.stderr.unlink()
        store.start()
        store.wait_ready(30)
        assert store.status()["epoch"] != epoch, "stale sockets of the killed server do not hinder the new one"
    finally:
        store.close()


RUNNING_TOKENS = 30


def generate(port: int, tokens: int) -> int:
    """Have the engine generate and return how many tokens came back."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    body = json.dumps({"input_ids": list(range(5, 69)), "sampling_params": sampling})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
    connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
    count: int = json.load(connection.getresponse())["meta_info"]["completion_tokens"]
    connection.close()
    return count


class Request(NamedTuple):
    """One request of a client: monotonic seconds, and the tokens that came back; None: it was refused or cut off."""

    began: float
    ended: float
    tokens: int | None


def generate_until(flag: Path, port: int) -> list[Request]:
    """Send requests one after another until `flag` exists."""
    requests = []
    while not flag.exists():
        began = time.monotonic()
        try:
            tokens = generate(port, RUNNING_TOKENS)
        except (OSError, http.client.HTTPException, KeyError):
            tokens = None
        requests.append(Request(began, time.monotonic(), tokens))
    return requests


def running_requests(port: int) -> float:
    """The engine's own count of requests that run now."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("sglang:num_running_reqs{"))


def launch_document(built: "Environment", agent: EngineAgent, revision: str) -> dict[str, Any]:
    argv = [str(built.python), "-m", "sglang.launch_server", *built.engine_args, "--model-path", str(built.model_dir)]
    argv += ["--host", "127.0.0.1", "--port", str(agent.engine_port)]
    return agent.launch(revision, argv=argv, env=built.engine_env, drainTimeoutSeconds=60)


def test_real_engine_starts_drains_and_is_replaced(built: "Environment", store_folder: Path, tmp_path: Path) -> None:
    store = RealStore(built, store_folder, 256 << 20)
    store.start()
    agent = EngineAgent(tmp_path, store.port, "--boot-id", str(store.boot_id), "--lame-duck-seconds", "6")
    agent.start()
    try:
        agent.add_kit()
        agent.write(launch_document(built, agent, "a"))
        agent.wait_ready(300)
        status = agent.status()
        print(f"engine ready after {status['readyAt'] - status['startedAt']:.1f} s")
        assert status["epoch"] == store.status()["epoch"]
        first, family = agent.child_pid(), _family(agent.child_pid())
        assert len(family) > 1, "SGLang has processes of its own"
        with ThreadPoolExecutor(2) as pool:
            clients = [pool.submit(generate_until, agent.drain_flag, agent.engine_port) for _ in range(2)]
            wait_for(lambda: running_requests(agent.engine_port) > 0, "a request runs", 60)
            began = time.monotonic()
            agent.write(launch_document(built, agent, "b"))
            wait_for(lambda: not agent.ready(), "the parser accepts the revision and the drain begins", 120)
            assert not agent.drain_flag.exists(), "new requests are still taken"
            wait_for(agent.drain_flag.exists, "the engine is told to end", 10)
            drained = time.monotonic()
            requests = [request for client in clients for request in client.result(120)]
        print(f"told to end after {drained - began:.1f} s; {len(requests)} requests")
        early = [request for request in requests if request.began < drained - 1]
        assert any(request.began < drained < request.ended for request in requests), "one ran when the drain began"
        assert [request.tokens for request in early] == [RUNNING_TOKENS] * len(early), "each of them was finished"
        agent.status_when(lambda status: status["revision"] == "b" * 12, "the old engine is gone", 60)
        print(f"old engine gone after {time.monotonic() - began:.1f} s", agent.status()["lastExit"])
        assert [pid for pid in family if not is_gone(pid)] == []
        assert agent.status()["lastExit"]["reason"] == "Stopped"
        agent.wait_ready(300)
        assert agent.child_pid() != first
        second = _family(agent.child_pid())
        agent.terminate()
        assert agent.wait(90) == 0
        assert [pid for pid in second if not is_gone(pid)] == []
        assert store.ready(), "the store outlives the engine"
    finally:
        agent.close()
        store.close()


class SlowRequest:
    """A request whose body is sent in two pieces."""

    def __init__(self, port: int) -> None:
        self._body = json.dumps({"input_ids": list(range(5, 69)), "sampling_params": {"max_new_tokens": 2}}).encode()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._connection.putrequest("POST", "/generate")
        self._connection.putheader("Content-Type", "application/json")
        self._connection.putheader("Content-Length", str(len(self._body)))
        self._connection.endheaders(self._body[:20])

    def finish(self) -> int:
        """Send the rest; return the answer's status."""
        self._connection.send(self._body[20:])
        status = self._connection.getresponse().status
        self._connection.close()
        return status


def refusal(port: int) -> http.client.HTTPResponse:
    """The answer to a new request; it has no body left to read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/generate", json.dumps({"text": "a"}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


@contextlib.contextmanager
def frozen_children(pid: int) -> Iterator[None]:
    """Meanwhile the engine's main process takes requests and its schedulers answer none."""
    children = _family(pid)[1:]
    for child in children:
        os.kill(child, signal.SIGSTOP)
    try:
        yield
    finally:
        for child in children:
            os.kill(child, signal.SIGCONT)


def health(port: int) -> int:
    """The status of SGLang's own check, which asks for a token."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    return status


QUEUED = 8
"""Twice what the engine runs at a time."""


def test_a_drain_loses_no_request_that_was_taken(built: "Environment", tmp_path: Path) -> None:
    """Neither those that wait in the engine's queue, nor one whose body is still sent, nor after a failed check."""
    agent = EngineAgent(tmp_path, 1, "--without-store", "--lame-duck-seconds", "8")
    agent.start()
    try:
        (agent.kit_root / "0.1.0").mkdir(parents=True)
        lay_out_kit(agent.kit_root / "0.1.0")
        document = launch_document(built, agent, "a")
        document["env"] = {**document["env"], "SGLANG_HEALTH_CHECK_TIMEOUT": "2"}
        document["drainTimeoutSeconds"] = 300
        agent.write(document)
        agent.wait_ready(300)
        main, count = agent.child_pid(), RunningCount(agent.run_dir / "running")
        # The first tokens of an engine without a GPU wait for its kernels.
        generate(agent.engine_port, 2)
        agent.write({**document, "revision": "b" * 12})
        agent.status_when(lambda status: status["state"] == "draining", "the drain begins", 120)
        with ThreadPoolExecutor(QUEUED) as pool:
            with frozen_children(main):
                slow = SlowRequest(agent.engine_port)
                taken = [pool.submit(generate, agent.engine_port, 8) for _ in range(QUEUED)]
                wait_for(lambda: count.latest == QUEUED + 1, "all were taken", 10)
                assert health(agent.engine_port) == 503, "from now on SIGTERM would end the engine whatever runs"
                wait_for(agent.drain_flag.exists, "new requests are refused", 20)
                refused = refusal(agent.engine_port)
            assert [request.result(150) for request in taken] == [8] * QUEUED
        assert agent.child_pid() == main, "it waits for the body that is still sent"
        assert slow.finish() == 200
        assert (refused.status, refused.getheader("Retry-After")) == (503, "1")
        wait_for(lambda: b"SIGTERM received" in agent.stdout.read_bytes(), "the engine is told to end", 10)
    finally:
        agent.close()


def test_killed_agent_takes_the_whole_real_engine(built: "Environment", store_folder: Path, tmp_path: Path) -> None:
    agent = EngineAgent(tmp_path, 1, "--without-store")
    agent.start()
    family: list[int] = []
    try:
        agent.add_kit()
        agent.write(launch_document(built, agent, "a"))
        agent.wait_ready(300)
        family = _family(agent.child_pid())
        agent.process.kill()
        agent.process.wait()
        wait_for(lambda: is_gone(family[0]), "the engine's main process died", 2)
        wait_for(lambda: all(map(is_gone, family)), "SGLang's own processes followed", 20)
    finally:
        agent.close()
        for pid in family:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def _family(pid: int) -> list[int]:
    """A process and all its descendants."""
    members = [pid]
    for member in members:
        for task in Path(f"/proc/{member}/task").iterdir():
            members += [int(child) for child in (task / "children").read_text().split()]
    return members
