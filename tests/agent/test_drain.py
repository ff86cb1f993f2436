"""An engine is told to end once no request runs: it might lose those that it does not count itself."""

import os
import signal
import time

from agent_process import EngineAgent, wait_for

from umbra_agent.drain import RunningRequests


def counting(agent: EngineAgent) -> RunningRequests:
    """The count of the engine that runs now."""
    return RunningRequests(agent.run_dir / "running")


def test_the_engine_is_told_to_end_once_nothing_runs(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    first = agent.serve("a")
    with counting(agent):
        agent.write(agent.launch("b"))
        wait_for(agent.drain_flag.exists, "new requests are refused", 2)
        time.sleep(1)
        assert agent.child_pid() == first
        assert agent.status()["state"] == "draining"
    agent.wait_ready(3)
    assert agent.status()["revision"] == "b" * 12
    assert "New requests are refused; 1 are still to be answered." in agent.stderr.read_text()


def test_the_end_of_the_pod_waits_too(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a")
    with counting(agent):
        agent.terminate()
        wait_for(agent.drain_flag.exists, "new requests are refused", 2)
        time.sleep(1)
        assert agent.process.poll() is None
    assert agent.wait(3) == 0


def test_a_client_that_never_ends_its_request_leaves_time_for_a_clean_end(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.serve("a", drainTimeoutSeconds=4)
    began = time.monotonic()
    with counting(agent):
        agent.write(agent.launch("b", drainTimeoutSeconds=4))
        agent.status_when(lambda status: status["revision"] == "b" * 12, "it is replaced", 4)
    assert time.monotonic() - began >= 2
    assert agent.status()["lastExit"]["reason"] == "Stopped"


def test_an_engine_that_was_killed_leaves_no_count(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    pid = agent.serve("a")
    counting(agent).__enter__()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: agent.status()["restarts"] == 1 and agent.ready(), "it serves again")
    began = time.monotonic()
    agent.serve("b")
    assert time.monotonic() - began < 5


def test_a_revision_that_is_wanted_again_takes_requests_again(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    pid = agent.serve("a")
    with counting(agent):
        agent.write(agent.launch("b"))
        wait_for(agent.drain_flag.exists, "new requests are refused", 2)
        agent.write(agent.launch("a"))
        agent.wait_ready(2)
        assert not agent.drain_flag.exists()
    assert agent.child_pid() == pid
    assert agent.status()["lastExit"] is None
