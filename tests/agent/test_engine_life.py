"""Engine mode: start conditions, readiness, drain and the end, with real processes."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from agent_process import EngineAgent, StoreReadiness, is_gone, kill_quietly, wait_for


def test_waits_for_document_kit_and_store_in_this_order(
    engine_agent: EngineAgent, store_readiness: StoreReadiness
) -> None:
    store_readiness.status = 503
    agent = engine_agent
    assert "cannot be read" in wait_for(lambda: agent.status()["problem"], "a problem")
    assert agent.status()["state"] == "waiting"

    agent.write(agent.launch("a"))
    wait_for(lambda: "Waiting for kit 0.1.0" in (agent.status()["problem"] or ""), "it waits for the kit")
    agent.add_kit()
    wait_for(lambda: "/ready on port" in (agent.status()["problem"] or ""), "it waits for the store")
    assert "answers 503" in agent.status()["problem"]
    assert agent.status()["storeReadyOnce"] is False
    assert agent.get("/ready")[0] == 503

    store_readiness.status = 200
    agent.wait_ready()
    status = agent.status()
    assert status["state"] == "serving"
    assert status["storeReadyOnce"] is True
    assert status["problem"] is None
    assert status["startedAt"] <= status["readyAt"] <= time.time()


def test_a_store_that_has_not_answered_yet_is_no_problem(tmp_path: Path) -> None:
    """The operator would tell a failed engine at every start of a pod."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        closing(EngineAgent(tmp_path, silent.getsockname()[1])) as agent,
    ):
        agent.add_kit()
        agent.write(agent.launch("a"))
        agent.start()
        said: set[str | None] = set()
        wait_for(lambda: said.add(agent.status()["problem"]) or None not in said or len(said) > 1, "an answer")
    (problem,) = said - {None}
    assert re.fullmatch(r"Waiting for the store: no answer on port \d+ within 2 s\.", problem or "")


def test_engine_gets_its_own_session_and_the_documents_environment(engine_agent: EngineAgent, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    pid = engine_agent.serve("a", "--report", str(report), env={"FROM_DOCUMENT": "yes"})
    facts = json.loads(report.read_text())
    assert facts["pid"] == facts["sid"] == pid
    assert facts["environment"]["FROM_DOCUMENT"] == "yes"
    assert facts["environment"]["PYTHONPATH"].split(":")[0] == str(engine_agent.kit_root / "0.1.0")


def test_not_ready_until_the_engine_is(engine_agent: EngineAgent) -> None:
    engine_agent.add_kit()
    engine_agent.write(engine_agent.launch("a", "--ready-after", "1"))
    wait_for(lambda: engine_agent.status()["state"] == "starting", "it starts")
    assert engine_agent.get("/ready") == (503, b"the engine is starting\n")
    engine_agent.wait_ready()


def test_a_store_lost_later_never_lowers_readiness(engine_agent: EngineAgent, store_readiness: StoreReadiness) -> None:
    engine_agent.serve("a")
    store_readiness.status = 503
    wait_for(lambda: b"umbra_agent_store_ready 0.0" in engine_agent.get("/metrics")[1], "the loss is seen")
    assert engine_agent.ready()
    assert engine_agent.status()["storeReadyOnce"] is True


def test_a_lost_store_does_not_hold_back_a_restart(engine_agent: EngineAgent, store_readiness: StoreReadiness) -> None:
    pid = engine_agent.serve("a")
    store_readiness.status = 503
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine_agent.status()["restarts"] == 1 and engine_agent.ready(), "it serves again")


def test_sigterm_drains_and_ends_with_zero(engine_agent: EngineAgent, tmp_path: Path) -> None:
    pid = engine_agent.serve("a", "--drain", "1")
    assert not engine_agent.drain_flag.exists()
    began = time.monotonic()
    engine_agent.terminate()
    wait_for(engine_agent.drain_flag.exists, "the drain flag is up", 1)
    wait_for(lambda: engine_agent.status()["state"] == "draining", "it drains", 1)
    assert engine_agent.get("/ready") == (503, b"the engine is draining\n")
    assert engine_agent.wait() == 0
    assert 0.9 < time.monotonic() - began < 3
    assert is_gone(pid)
    message = json.loads(engine_agent.termination_log.read_text())
    assert message["lastExit"]["code"] == 0
    assert message["lastExit"]["reason"] == "Stopped"


def test_sigterm_while_waiting_ends_at_once(engine_agent: EngineAgent) -> None:
    assert engine_agent.port
    engine_agent.terminate()
    assert engine_agent.wait(2) == 0


def test_a_drain_is_bounded_by_the_document(engine_agent: EngineAgent) -> None:
    pid = engine_agent.serve("a", "--ignore-term", drainTimeoutSeconds=1)
    began = time.monotonic()
    engine_agent.terminate()
    assert engine_agent.wait() == 0
    assert 1 <= time.monotonic() - began < 3
    assert is_gone(pid)
    assert json.loads(engine_agent.termination_log.read_text())["lastExit"] == {
        "code": None,
        "signal": signal.SIGKILL,
        "reason": "DrainTimeout",
        "at": pytest.approx(time.time(), abs=5),
        "cause": "Signal",
        "detail": "signal SIGKILL ended it",
    }


def test_descendants_that_ignore_sigterm_are_ended_and_collected(engine_agent: EngineAgent, tmp_path: Path) -> None:
    """Also those that left the engine's session: a zombie would keep the pod's pid, a live one its GPU memory."""
    report = tmp_path / "report.json"
    engine_agent.serve("a", "--descendants", "4", "--report", str(report))
    parents = json.loads(report.read_text())["descendants"]
    children = [int(pid) for parent in parents for pid in _children(parent)]
    assert len(parents) + len(children) == 8
    engine_agent.write(engine_agent.launch("b"))
    wait_for(lambda: engine_agent.status()["revision"] == "b" * 12, "the new revision runs")
    assert [pid for pid in parents + children if Path(f"/proc/{pid}").exists()] == []


def test_killed_agent_takes_the_engine_with_it(engine_agent: EngineAgent) -> None:
    pid = engine_agent.serve("a", "--ignore-term")
    engine_agent.process.kill()
    try:
        wait_for(lambda: is_gone(pid), "the engine's main process died", 2)
    finally:
        kill_quietly(pid)


def test_epoch_is_read_from_the_stores_file(engine_agent: EngineAgent) -> None:
    assert engine_agent.status()["epoch"] is None
    engine_agent.boot_id.write_text("one\n")
    assert engine_agent.status()["epoch"] == "one"
    engine_agent.boot_id.write_text("two\n")
    assert engine_agent.status()["epoch"] == "two"


def test_no_argument_and_no_environment_value_is_shown(tmp_path: Path, store_readiness: StoreReadiness) -> None:
    agent = EngineAgent(tmp_path, store_readiness.port, environment={"CONTAINER_SECRET": "hunter-container"})
    agent.start()
    try:
        agent.serve("a", "--token", "hunter-argument", env={"TOKEN": "hunter-document"})
        bodies = [agent.get(path)[1] for path in ("/status", "/ready", "/metrics", "/", "/argv")]
        agent.write(agent.launch("b", "hunter-refused\0"))
        wait_for(lambda: agent.status()["problem"], "the document is refused")
        bodies.append(agent.get("/status")[1])
        assert b"hunter" not in b"".join(bodies)
        assert "hunter" not in agent.stderr.read_text()
    finally:
        agent.close()


def test_unknown_routes_and_writes_are_refused(engine_agent: EngineAgent) -> None:
    assert engine_agent.get("/nothing")[0] == 404
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", engine_agent.port, timeout=5)
    connection.request("POST", "/status", body=b"{}")
    assert connection.getresponse().status == 501
    connection.close()


def test_the_agent_loads_no_slow_module() -> None:
    """Whoever waits for a restarted engine waits for the agent's imports first."""
    slow = ("asyncio", "importlib.metadata", "logging", "pydantic", "tomllib", "urllib.request", "zipfile")
    script = (
        "import umbra_agent.__main__, umbra_agent.engine, umbra_agent.store\n"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    linker = str(Path(__file__).resolve().parents[2] / "linker")
    argv = [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {linker!r})\n{script}"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_metrics_are_valid_and_carry_help(engine_agent: EngineAgent) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    engine_agent.serve("a")
    code, body = engine_agent.get("/metrics")
    assert code == 200
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert all(re.fullmatch(r"umbra_agent_[a-z_]+", name) for name in families)
    assert all(family.documentation for family in families.values())
    states = {sample.labels["state"]: sample.value for sample in families["umbra_agent_engine_state"].samples}
    assert states.pop("serving") == 1
    assert set(states.values()) == {0}
    assert families["umbra_agent_info"].samples[0].labels["revision"] == "a" * 12
    assert families["umbra_agent_engine_start_duration_seconds"].samples[0].value > 0


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_an_engine_that_used_up_its_restarts_stays_down_until_another_revision(
    engine_agent: EngineAgent, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    live = {"recovery": {"maxRestarts": 1, "windowSeconds": 600}}
    engine_agent.add_kit()
    engine_agent.write(engine_agent.launch("a", "--exit-if", str(broken), live=live))
    status = engine_agent.status_when(lambda status: status["recoveryStopped"], "the restarts are spent")
    assert (status["state"], status["restarts"]) == ("failed", 1)
    assert "restarted 1 times in 600 s, as often as spec.recovery allows" in status["problem"]
    broken.unlink()
    time.sleep(2.5)  # longer than the wait before a second restart would be
    assert (engine_agent.status()["state"], engine_agent.status()["restarts"]) == ("failed", 1)
    more = {"recovery": {"maxRestarts": 5, "windowSeconds": 600}}
    engine_agent.write(engine_agent.launch("a", "--exit-if", str(broken), live=more))
    engine_agent.status_when(lambda status: status["ready"], "a larger bound lets the same revision go on")
    engine_agent.serve("b", "--exit-if", str(broken), live=live)
    assert engine_agent.status()["recoveryStopped"] is False
