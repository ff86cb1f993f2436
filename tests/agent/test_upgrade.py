"""The agents replace themselves by another kit's with exec and keep their child."""

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import LINKER, AgentProcess, EngineAgent, StoreReadiness, free_port, is_gone, process_state, wait_for
from test_store import StoreAgent


def add_kit(root: Path, version: str) -> Path:
    """A kit with this tree's agent under another version."""
    kit = root / version
    staging = root / f".{version}"
    shutil.copytree(LINKER / "umbra_agent", staging / "umbra_agent", ignore=shutil.ignore_patterns("__pycache__"))
    (staging / f"umbra_operator-{version}.dist-info").mkdir()
    staging.rename(kit)
    return kit


def agents_own_kit(agent: AgentProcess, version: str) -> None:
    agent.status_when(lambda status: status.get("agentKit", status["kit"]) == version, f"it is kit {version}", 20)


def start_from_kit(agent: AgentProcess) -> None:
    """Start it from kit 0.1.0, to which `current` points."""
    add_kit(agent.kit_root, "0.1.0")
    (agent.kit_root / "current").symlink_to("0.1.0")
    agent.environment["PYTHONPATH"] = str(agent.kit_root / "current")
    agent.start()


@pytest.fixture
def agent(tmp_path: Path, store_readiness: StoreReadiness) -> Iterator[EngineAgent]:
    """An engine agent that runs from kit 0.1.0, with a port that stays the same across exec."""
    port = free_port()
    agent = EngineAgent(tmp_path, store_readiness.port, "--port", str(port))
    start_from_kit(agent)
    yield agent
    agent.close()


def test_a_new_kit_in_the_document_replaces_the_agent_first_and_the_engine_then(agent: EngineAgent) -> None:
    pid = agent.serve("a", "--drain", "2")
    agent_pid = agent.process.pid
    add_kit(agent.kit_root, "0.2.0")
    agent.write(agent.launch("b", kit="0.2.0"))
    agents_own_kit(agent, "0.2.0")
    assert agent.process.pid == agent_pid
    # The rehearsal that the old agent ended may wait to be collected.
    wait_for(lambda: agent.child_pids() == [pid], "the new agent has the old agent's engine alone", 1)
    assert process_state(pid) in ("S", "R"), "and that engine runs on while it drains"
    wait_for(lambda: agent.ready() and agent.status()["revision"] == "b" * 12, "the engine follows", 15)
    status = agent.status()
    assert status["kit"] == "0.2.0"
    assert status["lastExit"]["reason"] == "Stopped", "the adopted engine was drained and its exit was seen"
    assert status["restarts"] == 0
    assert is_gone(pid)
    log = agent.stderr.read_text()
    assert log.index("replaces itself") < log.index("goes on as process") < log.index("Draining engine revision aaa")


def test_counters_and_times_survive(agent: EngineAgent) -> None:
    pid = agent.serve("a")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: agent.status()["restarts"] == 1 and agent.ready(), "it serves again")
    before = agent.status()
    add_kit(agent.kit_root, "0.2.0")
    # The same revision with another kit never comes from an operator: here it shows the agent's part alone.
    agent.write(agent.launch("a", kit="0.2.0"))
    agents_own_kit(agent, "0.2.0")
    agent.wait_ready()
    after = agent.status()
    assert after == {**before, "agentKit": "0.2.0"}
    assert b'engine_restarts_total{reason="Exited"} 1.0' in agent.get("/metrics")[1]
    [pid] = agent.child_pids()
    os.kill(pid, signal.SIGSEGV)
    status = agent.status_when(lambda status: status["restarts"] == 2, "the exit of an adopted engine is seen", 10)
    assert status["lastExit"]["signal"] == signal.SIGSEGV
    assert "2 times in a row" in agent.stderr.read_text()


def test_no_output_is_lost_or_repeated_across_exec(agent: EngineAgent) -> None:
    agent.serve("a", "--count", "3000")
    for version in ("0.2.0", "0.3.0", "0.4.0"):
        add_kit(agent.kit_root, version)
        agent.write(agent.launch("a", kit=version))
        agents_own_kit(agent, version)
    wait_for(lambda: b"line 2999\n" in agent.stdout.read_bytes(), "the last line", 30)
    numbers = [int(line.split()[1]) for line in agent.stdout.read_text().splitlines() if line.startswith("line ")]
    assert numbers == list(range(3000))


def test_the_killed_new_agent_still_takes_the_engine_with_it(agent: EngineAgent) -> None:
    pid = agent.serve("a", "--ignore-term")
    add_kit(agent.kit_root, "0.2.0")
    agent.write(agent.launch("a", kit="0.2.0"))
    agents_own_kit(agent, "0.2.0")
    agent.process.kill()
    wait_for(lambda: is_gone(pid), "the engine's main process died", 2)


def test_a_kit_whose_agent_does_not_start_leaves_the_old_agent(agent: EngineAgent) -> None:
    agent.serve("a")
    kit = add_kit(agent.kit_root, "0.2.0")
    (kit / "umbra_agent" / "supervisor.py").write_text("raise ImportError('broken kit')\n")
    agent.write(agent.launch("b", kit="0.2.0"))
    wait_for(lambda: agent.ready() and agent.status()["revision"] == "b" * 12, "the engine follows all the same", 20)
    assert agent.status()["agentKit"] == "0.1.0"
    assert "broken kit" in agent.stderr.read_text()


def test_a_kit_that_knows_no_handover_is_not_exec_ed(agent: EngineAgent) -> None:
    agent.serve("a")
    kit = add_kit(agent.kit_root, "0.0.9")
    main = kit / "umbra_agent" / "__main__.py"
    main.write_text(main.read_text().replace('"--rehearse"', '"--another"'))
    agent.write(agent.launch("b", kit="0.0.9"))
    wait_for(lambda: agent.ready() and agent.status()["revision"] == "b" * 12, "the engine follows all the same", 20)
    assert agent.status()["agentKit"] == "0.1.0"


def test_an_agent_without_engine_is_replaced_too(agent: EngineAgent) -> None:
    agent.write(agent.launch("a", "--exit-after", "0"))
    agent.status_when(lambda status: "3 times in a row" in (status["problem"] or ""), "it fails", 15)
    add_kit(agent.kit_root, "0.2.0")
    agent.write(agent.launch("b", kit="0.2.0"))
    wait_for(lambda: agent.ready() and agent.status()["revision"] == "b" * 12, "the new one serves", 20)
    assert agent.status()["agentKit"] == "0.2.0"
    assert agent.status()["restarts"] == 2


def test_sigterm_during_the_change_is_not_lost(agent: EngineAgent) -> None:
    pid = agent.serve("a")
    kit = add_kit(agent.kit_root, "0.2.0")
    # The new agent is slow to load, and only when it takes over.
    (kit / "umbra_agent" / "__init__.py").write_text("import sys, time\nif '--handover' in sys.argv: time.sleep(2)\n")
    agent.write(agent.launch("a", kit="0.2.0"))
    wait_for(lambda: "replaces itself" in agent.stderr.read_text(), "it replaces itself", 20)
    time.sleep(0.5)
    agent.terminate()
    assert agent.wait(20) == 0
    assert is_gone(pid)
    assert json.loads(agent.termination_log.read_text())["lastExit"]["reason"] == "Stopped"


@pytest.fixture
def store() -> Iterator[StoreAgent]:
    folder = Path(tempfile.mkdtemp(prefix="agent-"))
    more = ("--port", str(free_port()))
    store = StoreAgent(folder, "--register-after", "0.2", capacity_bytes=4 << 30, more=more)
    start_from_kit(store)
    yield store
    store.close()
    shutil.rmtree(folder)


def point(store: StoreAgent, version: str) -> None:
    """Point `current` at another kit, as the kit container does."""
    (store.kit_root / "next").symlink_to(version)
    (store.kit_root / "next").replace(store.kit_root / "current")


def test_the_store_agent_follows_the_current_kit_and_keeps_server_and_epoch(store: StoreAgent) -> None:
    store.wait_ready()
    wait_for(lambda: store.status()["evictions"]["keys"] == 10, "the server's next line is read, too", 5)
    before, pid, agent_pid = store.status(), store.child_pid(), store.process.pid
    for version in ("0.2.0", "0.3.0"):
        add_kit(store.kit_root, version)
        point(store, version)
        agents_own_kit(store, version)
        store.wait_ready()
        after = store.status()
        assert after == {**before, "kit": version}
        assert (store.child_pid(), store.process.pid) == (pid, agent_pid)
        assert store.boot_id.read_text().strip() == before["epoch"]
        assert b"umbra_agent_store_evicted_keys_total 10.0" in store.get("/metrics")[1], "what was read is remembered"
    os.kill(pid, signal.SIGABRT)
    assert store.wait() == 134, "the exit of the adopted server is the agent's"
    assert "last" not in json.loads(store.termination_log.read_text())["lastLines"]


def test_a_broken_current_kit_leaves_the_store_alone(store: StoreAgent) -> None:
    store.wait_ready()
    pid = store.child_pid()
    kit = add_kit(store.kit_root, "0.2.0")
    (kit / "umbra_agent" / "store.py").write_text("raise ImportError('broken kit')\n")
    point(store, "0.2.0")
    wait_for(lambda: "broken kit" in store.stderr.read_text(), "the rehearsal fails", 20)
    assert store.status()["kit"] == "0.1.0"
    wait_for(lambda: store.child_pid() == pid, "only the server is left", 5)
