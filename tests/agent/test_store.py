"""Store mode: epoch, readiness, exit codes and pass-through, with real processes."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_process import AgentProcess, is_gone, kill_quietly, wait_for

from umbra_agent.store import Observed, capacity, not_ready_reason, registration_awaited, server_environment
from umbra_agent.store_log import StoreLog

CHILD = Path(__file__).parent / "store_child.py"
GIB = 1 << 30


class StoreAgent(AgentProcess):
    """Store mode with the script store_child.py as its server."""

    def __init__(self, folder: Path, *child: str, capacity_bytes: int = GIB, more: tuple[str, ...] = ()) -> None:
        self.boot_id = folder / "run" / "boot_id"
        self.socket = folder / "s.sock"
        server = [sys.executable, "-I", "-S", str(CHILD), "--boot-id", str(self.boot_id), "--socket", str(self.socket)]
        self.kit_root = folder / "kits"
        arguments = ["store", "--bind", "127.0.0.1", "--port", "0", "--boot-id", str(self.boot_id)]
        arguments += ["--kit-root", str(self.kit_root), "--run-dir", str(folder / "disk")]
        arguments += ["--socket", str(self.socket), "--termination-log", str(folder / "termination-log"), *more]
        environment = {"UMBP_DRAM_CAPACITY": str(capacity_bytes)}
        super().__init__(folder, [*arguments, "--", *server, *child], environment)

    def child_pid(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text())


@pytest.fixture
def store_agent() -> Iterator[Callable[..., StoreAgent]]:
    """Makes started store agents. Short folders: a unix socket's path has at most 107 bytes."""
    agents: list[StoreAgent] = []

    def make(*child: str, **options: object) -> StoreAgent:
        agent = StoreAgent(Path(tempfile.mkdtemp(prefix="agent-")), *child, **options)  # type: ignore[arg-type]
        agents.append(agent)
        agent.start()
        return agent

    yield make
    for agent in agents:
        agent.close()
        shutil.rmtree(agent.folder)


def test_ready_when_the_socket_answers_and_the_tier_is_small(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent()
    agent.wait_ready()
    status = agent.status()
    assert status["agent"] == "store"
    assert status["state"] == "ready"
    assert status["capacityBytes"] == GIB
    assert (status["registered"], status["stage"]) == (False, "answers")
    assert status["epoch"] == agent.boot_id.read_text().strip()
    assert status["lastExit"] is None
    assert status["problem"] is None


def test_a_large_tier_waits_for_the_registration_line(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--register-after", "0.7", capacity_bytes=4 * GIB)
    wait_for(lambda: b"not registered" in agent.get("/ready")[1], "it waits for the line", 3)
    assert (agent.status()["state"], agent.status()["stage"]) == ("starting", "answers")
    agent.wait_ready()
    assert (agent.status()["registered"], agent.status()["stage"]) == (True, "registered")
    wait_for(lambda: b"registration_duration" in agent.get("/metrics")[1], "the duration is measured", 2)
    text = agent.get("/metrics")[1].decode()
    assert "umbra_agent_store_registered 1.0" in text
    assert "umbra_agent_store_eviction_rounds_total 1.0" in text
    assert "umbra_agent_store_evicted_keys_total 10.0" in text
    assert "umbra_agent_store_evicted_bytes_total 2048.0" in text
    assert "umbra_agent_store_eviction_stuck_total 1.0" in text


def test_boot_id_is_new_at_each_start_and_there_before_the_server(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--exit-after", "0.1")
    agent.wait()
    first = agent.boot_id.read_text().strip()
    agent.start()
    agent.wait()
    second = agent.boot_id.read_text().strip()
    assert first != second
    assert len(second) == 32
    assert f"epoch at start: {first}\n" in agent.stdout.read_text(errors="replace")
    assert f"epoch at start: {second}\n" in agent.stdout.read_text(errors="replace")


@pytest.mark.parametrize(("code", "shown"), [(0, 0), (3, 3), (-signal.SIGKILL, 137), (-signal.SIGABRT, 134)])
def test_exit_code_propagates(store_agent: Callable[..., StoreAgent], code: int, shown: int) -> None:
    agent = store_agent("--exit-after", "0.1", "--code", str(code))
    assert agent.wait() == shown
    message = json.loads(agent.termination_log.read_text())
    assert message["reason"] == "Exited"
    assert message["lastExit"]["code"] == (code if code >= 0 else None)
    assert message["lastExit"]["signal"] == (-code if code < 0 else None)
    assert message["lastLines"][-1] == "last words"
    assert len(agent.termination_log.read_bytes()) <= 1536


def test_sigterm_reaches_the_server_and_its_code_is_ours(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--stop-code", "5")
    agent.wait_ready()
    agent.terminate()
    assert agent.wait() == 5
    assert json.loads(agent.termination_log.read_text())["reason"] == "Stopped"


def test_a_server_that_ignores_sigterm_is_killed_in_the_end(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--ignore-term", more=("--stop-seconds", "0.5"))
    agent.wait_ready()
    agent.terminate()
    assert agent.wait() == 137


def test_a_missing_server_is_said(store_agent: Callable[..., StoreAgent], tmp_path: Path) -> None:
    arguments = ["store", "--port", "0", "--bind", "127.0.0.1", "--boot-id", str(tmp_path / "b"), "--termination-log"]
    agent = AgentProcess(tmp_path, [*arguments, str(tmp_path / "termination-log"), "--", "/nowhere/server"])
    agent.start()
    assert agent.wait() == 127
    assert "cannot be started" in json.loads(agent.termination_log.read_text())["reason"]
    usage = AgentProcess(tmp_path, arguments[:3])
    usage.start()
    assert usage.wait() == 2


def test_output_passes_through_unchanged(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent()
    agent.wait_ready()
    wait_for(lambda: b"on stderr \xff not UTF-8\n" in agent.stdout.read_bytes(), "stderr is passed on", 2)


def test_a_frozen_server_is_not_ready_and_not_killed(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent()
    agent.wait_ready()
    pid = agent.child_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: b"frozen" in agent.get("/ready")[1], "the freeze is seen", 6)
        assert agent.status()["state"] == "starting"
    finally:
        os.kill(pid, signal.SIGCONT)
    agent.wait_ready()
    assert agent.child_pid() == pid


def test_killed_agent_takes_the_server_with_it(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--ignore-term")
    agent.wait_ready()
    pid = agent.child_pid()
    agent.process.kill()
    agent.process.wait()
    try:
        wait_for(lambda: is_gone(pid), "the server died", 2)
    finally:
        kill_quietly(pid)


def test_a_failed_registration_is_said(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--fail-registration", capacity_bytes=4 * GIB)
    wait_for(lambda: b"memlock" in agent.get("/ready")[1], "the failure is said", 3)
    assert "could not be registered" in agent.status()["problem"]


def test_a_tier_that_a_gpu_cannot_reach_is_not_ready(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--register-after", "0", "--gatherable", "7/8", capacity_bytes=4 * GIB)
    wait_for(lambda: b"only 7 of 8 GPUs can reach it" in agent.get("/ready")[1], "it is said", 3)
    status = agent.status()
    assert (status["state"], status["stage"], status["registered"]) == ("starting", "answers", False)
    assert "umbra_agent_store_registered 0.0" in agent.get("/metrics")[1].decode()


@pytest.mark.parametrize(
    ("rest", "registered", "devices"),
    [
        (b"", True, (None, None)),
        (b" (8/8 devices gatherable)", True, (8, 8)),
        (b" (7/8 devices gatherable)", False, (7, 8)),
        (b" (0/8 devices gatherable)", False, (0, 8)),
        (b" (0/0 devices gatherable)", False, (0, 0)),
    ],
)
def test_the_registration_line_counts_its_devices(
    rest: bytes, registered: bool, devices: tuple[int | None, int | None]
) -> None:
    log = StoreLog()
    log.notice(b"[DRAMTier] host memory registered for GPU access: 2097152 MiB in 200.1 s" + rest)
    assert (log.registered, (log.gatherable, log.devices)) == (registered, devices)


def test_a_server_that_still_allocates_is_not_waited_for(store_agent: Callable[..., StoreAgent]) -> None:
    agent = store_agent("--allocate", "60")
    assert agent.get("/ready")[0] == 503
    assert agent.status()["stage"] == "process"
    agent.terminate()
    assert agent.wait(3) == 0


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (Observed(True, None, False), None),
        (Observed(True, None, True), "not registered"),
        (Observed(True, None, True, registered=True), None),
        (Observed(True, None, True, registration_failed=True), "could not be registered"),
        (Observed(True, None, True, gatherable=0, devices=8), "only 0 of 8 GPUs"),
        (Observed(True, None, True, gatherable=0, devices=0), "sees no GPU"),
        (Observed(True, None, False, gatherable=0, devices=0), None),
        (Observed(True, "silent", True, registered=True), "silent"),
        (Observed(True, "silent", False), "silent"),
        (Observed(False, None, False, registered=True), "not running"),
    ],
)
def test_readiness_rules(observed: Observed, reason: str | None) -> None:
    found = not_ready_reason(observed)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


@pytest.mark.parametrize(
    ("environment", "size", "awaited"),
    [
        ({}, 2 * GIB, False),
        ({}, 2 * GIB + 1, True),
        ({"UMBP_DRAM_HOST_REGISTER": "0"}, 1 << 40, False),
        ({"UMBP_DRAM_HOST_REGISTER": "1"}, 1 << 40, True),
    ],
)
def test_when_registration_is_awaited(environment: dict[str, str], size: int, awaited: bool) -> None:
    assert registration_awaited(environment, size) is awaited


def test_log_level_is_only_a_default() -> None:
    assert server_environment({})["MORI_UMBP_LOG_LEVEL"] == "info"
    assert server_environment({"MORI_UMBP_LOG_LEVEL": "debug"})["MORI_UMBP_LOG_LEVEL"] == "debug"


@pytest.mark.parametrize(
    ("text", "size", "wrong"),
    [
        (None, 4 * GIB, False),
        ("1024", 1024, False),
        ("1Gi", 4 * GIB, True),
        ("0", 4 * GIB, True),
        ("-5", 4 * GIB, True),
    ],
)
def test_capacity(text: str | None, size: int, wrong: bool) -> None:
    found, problem = capacity({} if text is None else {"UMBP_DRAM_CAPACITY": text})
    assert found == size
    assert (problem is not None) is wrong
