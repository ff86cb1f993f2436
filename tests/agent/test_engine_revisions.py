"""Engine mode: new revisions, refused documents, exits and back-off."""

import os
import signal
import time
from pathlib import Path

import pytest
from agent_process import EngineAgent, wait_for

from umbra_agent.backoff import backoff_seconds
from umbra_agent.child import Exit
from umbra_agent.engine_view import EngineSnapshot, LastExit, not_ready_reason, samples, status
from umbra_agent.metrics import render


def test_new_revision_replaces_the_engine_in_under_a_second(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    first = agent.serve("a")
    agent_pid = agent.process.pid
    began = time.monotonic()
    second = agent.serve("b")
    took = time.monotonic() - began
    print(f"new revision served after {took:.3f} s")
    assert took < 1
    assert first != second
    assert agent.process.pid == agent_pid
    assert agent.process.poll() is None
    status = agent.status()
    assert status["restarts"] == 0, "a wanted restart is no failure"
    assert status["lastExit"]["reason"] == "Stopped"
    assert not agent.drain_flag.exists()
    assert b'umbra_agent_engine_restarts_total{reason="Revision"} 1.0' in agent.get("/metrics")[1]


def test_readiness_drops_and_the_drain_flag_is_up_until_the_old_engine_is_gone(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    first = agent.serve("a", "--drain", "1")
    agent.write(agent.launch("b"))
    wait_for(agent.drain_flag.exists, "the drain flag is up", 1)
    status = agent.status_when(lambda status: status["state"] == "draining", "it drains", 1)
    assert (status["revision"], status["wantedRevision"]) == ("a" * 12, "b" * 12)
    assert not agent.ready()
    assert agent.child_pid() == first, "the running engine is not killed while it drains"
    agent.wait_ready()
    assert agent.status()["revision"] == "b" * 12
    assert not agent.drain_flag.exists()


def test_a_drain_under_way_can_be_shortened(engine_agent: EngineAgent) -> None:
    engine_agent.serve("a", "--ignore-term", drainTimeoutSeconds=600)
    engine_agent.write(engine_agent.launch("b", drainTimeoutSeconds=600))
    wait_for(lambda: engine_agent.status()["state"] == "draining", "it drains")
    engine_agent.write(engine_agent.launch("b", drainTimeoutSeconds=0))
    engine_agent.wait_ready(3)
    assert engine_agent.status()["lastExit"]["reason"] == "DrainTimeout"


@pytest.mark.parametrize("broken", ['{"revision": "bbbbbbbbbbbb"', "{}", "", "[1]"])
def test_a_broken_document_leaves_the_engine_untouched(engine_agent: EngineAgent, broken: str) -> None:
    agent = engine_agent
    pid = agent.serve("a")
    agent.write(broken)
    problem = wait_for(lambda: agent.status()["problem"], "the problem is said", 2)
    assert "launch document" in problem
    time.sleep(0.3)
    assert agent.child_pid() == pid
    assert agent.ready()
    assert agent.status()["wantedRevision"] == "a" * 12
    agent.write(agent.launch("a"))
    wait_for(lambda: agent.status()["problem"] is None, "the problem is gone", 2)
    assert agent.child_pid() == pid


def test_a_missing_program_is_refused_before_the_engine_is_stopped(engine_agent: EngineAgent) -> None:
    pid = engine_agent.serve("a")
    engine_agent.write(engine_agent.launch("b", argv=["/nowhere/python3"]))
    problem = wait_for(lambda: engine_agent.status()["problem"], "the problem is said", 2)
    assert problem == "The launch document's argv[0] is not an executable file in this container."
    assert engine_agent.child_pid() == pid


def test_a_revision_waits_for_its_kit_with_the_old_engine_serving(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    pid = agent.serve("a")
    agent.write(agent.launch("b", kit="0.2.0"))
    wait_for(lambda: "waits for kit 0.2.0" in (agent.status()["problem"] or ""), "it says so", 2)
    assert agent.child_pid() == pid
    assert not agent.drain_flag.exists()
    agent.add_kit("0.2.0")
    agent.wait_ready()
    assert wait_for(lambda: agent.status()["kit"] == "0.2.0" and agent.ready(), "the new kit serves")


def test_symlink_swap_of_a_downward_api_volume_is_a_new_revision(engine_agent: EngineAgent, tmp_path: Path) -> None:
    import json

    agent = engine_agent
    volume = agent.document.parent
    for turn, revision in enumerate("ab"):
        folder = volume / f"..2026_{turn}"
        folder.mkdir()
        (folder / "launch.json").write_text(json.dumps(agent.launch(revision)))
        (volume / "..data_tmp").symlink_to(folder.name)
        (volume / "..data_tmp").replace(volume / "..data")
        if turn == 0:
            agent.add_kit()
            agent.document.symlink_to("..data/launch.json")
        wait_for(lambda r=revision: agent.ready() and agent.status()["revision"] == r * 12, "the revision serves")  # type: ignore[misc]


def test_a_burst_of_revisions_ends_at_the_last_one_and_leaves_nothing(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a", "--descendants", "1")
    seen = set()
    for turn in range(40):
        agent.write(agent.launch("bcdef0123456789"[turn % 15], "--descendants", "1"))
        seen |= set(_descendants(agent.process.pid))
        time.sleep(0.03 * (turn % 5))
    agent.serve("a", "--descendants", "1", "--last")
    left = {pid for pid in seen if Path(f"/proc/{pid}").exists()} - set(_descendants(agent.process.pid))
    assert left == set()
    assert agent.status()["restarts"] == 0
    assert not agent.drain_flag.exists()


def test_an_unwritable_drain_flag_costs_no_engine(engine_agent: EngineAgent) -> None:
    engine_agent.serve("a")
    engine_agent.drain_flag.parent.write_text("a file where the folder should be")
    engine_agent.serve("b")
    assert "could not be raised" in engine_agent.stderr.read_text()


def test_same_revision_again_restarts_nothing(engine_agent: EngineAgent) -> None:
    pid = engine_agent.serve("a")
    engine_agent.write(engine_agent.launch("a", "--other"))
    time.sleep(0.5)
    assert engine_agent.child_pid() == pid


def test_exits_of_its_own_are_restarted_with_growing_waits(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.add_kit()
    agent.write(agent.launch("a", "--exit-after", "0", "--code", "7"))
    status = agent.status_when(lambda status: "3 times in a row" in (status["problem"] or ""), "three exits")
    assert status["lastExit"]["code"] == 7
    assert status["lastExit"]["reason"] == "Exited"
    assert status["problem"].endswith("next start in 4 s.")
    assert (status["state"], status["restarts"]) == ("failed", 2)
    starts = _start_times(agent)
    assert 1 <= starts[1] - starts[0] < 2
    assert 2 <= starts[2] - starts[1] < 3
    began = time.monotonic()
    agent.serve("b")
    assert time.monotonic() - began < 2, "a new revision does not wait for the old one's back-off"
    assert agent.status()["restarts"] == 2


def test_a_crash_while_serving_is_told_and_repaired(engine_agent: EngineAgent) -> None:
    pid = engine_agent.serve("a", "--descendants", "2")
    os.kill(pid, signal.SIGSEGV)
    status = engine_agent.status_when(lambda status: status["lastExit"], "the exit is seen", 3)
    assert status["lastExit"]["signal"] == signal.SIGSEGV
    wait_for(lambda: engine_agent.ready() and engine_agent.status()["restarts"] == 1, "it serves again")
    assert engine_agent.child_pid() != pid


def test_an_engine_that_stops_answering_is_not_ready_but_not_killed(engine_agent: EngineAgent) -> None:
    pid = engine_agent.serve("a")
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: not engine_agent.ready(), "readiness drops", 8)
        assert engine_agent.get("/ready")[1].startswith(b"the engine is not ready: no answer on port")
        assert engine_agent.child_pid() == pid
    finally:
        os.kill(pid, signal.SIGCONT)
    engine_agent.wait_ready()


def test_backoff_doubles_up_to_a_minute() -> None:
    assert [backoff_seconds(failures) for failures in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_seconds(10**6) == 60


SERVING = EngineSnapshot(state="serving", revision="a", wanted_revision="a", store_ready_once=True)


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (SERVING, None),
        (EngineSnapshot(), "the engine is waiting"),
        (EngineSnapshot(problem="Waiting for kit 1."), "Waiting for kit 1."),
        (EngineSnapshot(state="draining", revision="a", wanted_revision="b", store_ready_once=True), "draining"),
        (EngineSnapshot(state="serving", revision="a", wanted_revision="b", store_ready_once=True), None),
        (EngineSnapshot(state="serving", revision="a", wanted_revision="a"), "the store was never ready"),
        (
            EngineSnapshot(
                state="serving", revision="a", wanted_revision="a", store_ready_once=True, engine_problem="answers 503"
            ),
            "the engine is not ready: answers 503",
        ),
    ],
)
def test_readiness_rules(snapshot: EngineSnapshot, reason: str | None) -> None:
    found = not_ready_reason(snapshot)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_status_has_the_agreed_fields() -> None:
    snapshot = EngineSnapshot(last_exit=LastExit(Exit(None, 9, 1.5), "Exited"))
    assert status(snapshot, "epoch", 2.0) == {
        "agent": "engine",
        "kit": "unknown",
        "agentKit": "unknown",
        "revision": None,
        "wantedRevision": None,
        "state": "waiting",
        "ready": False,
        "restarts": 0,
        "recoveryStopped": False,
        "gpuMemoryHeld": False,
        "epoch": "epoch",
        "storeReadyOnce": False,
        "startedAt": None,
        "readyAt": None,
        "progress": None,
        "lastExit": {"code": None, "signal": 9, "reason": "Exited", "at": 1.5, "cause": None, "detail": None},
        "problem": None,
        "digestProblem": None,
        "digest": None,
    }
    assert "umbra_agent_engine_start_duration_seconds" not in render(samples(snapshot)), "not measured yet: absent"


def _descendants(pid: int) -> list[int]:
    members = [pid]
    for member in members:
        try:
            text = Path(f"/proc/{member}/task/{member}/children").read_text()
        except OSError:
            continue
        members += [int(child) for child in text.split()]
    return members[1:]


def _start_times(agent: EngineAgent) -> list[float]:
    """Seconds of the day at which the agent's log says that an engine was started."""
    found = []
    for line in agent.stderr.read_text().splitlines():
        if "started as process" in line:
            hours, minutes, seconds = line.partition("T")[2].partition("Z")[0].split(":")
            found.append(int(hours) * 3600 + int(minutes) * 60 + float(seconds))
    return found
