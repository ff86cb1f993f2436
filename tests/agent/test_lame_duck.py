"""Between "not ready" and the engine's end there is a while in which it takes requests as before."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import EngineAgent, StoreReadiness, is_gone, wait_for

from umbra_agent.probe import http_ready

LAME_DUCK_SECONDS = 1.5


@pytest.fixture
def agent(tmp_path: Path, store_readiness: StoreReadiness) -> Iterator[EngineAgent]:
    """An engine agent with a while that can be watched."""
    agent = EngineAgent(tmp_path, store_readiness.port, "--lame-duck-seconds", str(LAME_DUCK_SECONDS))
    agent.start()
    yield agent
    agent.close()


def drains(agent: EngineAgent) -> float:
    """Wait until the agent is not ready; return that time."""
    agent.status_when(lambda status: status["state"] == "draining", "it drains", 2)
    assert not agent.ready()
    return time.monotonic()


def test_requests_are_taken_until_kubernetes_knows(agent: EngineAgent) -> None:
    first = agent.serve("a", "--drain", "0.1")
    agent.write(agent.launch("b"))
    began = drains(agent)
    while time.monotonic() - began < LAME_DUCK_SECONDS - 0.5:
        assert http_ready(agent.engine_port, 1.0) is None, "the engine itself still says that it is ready"
        assert not agent.drain_flag.exists()
        time.sleep(0.1)
    wait_for(lambda: is_gone(first), "the old engine ended", 2)
    assert time.monotonic() - began > LAME_DUCK_SECONDS - 0.3
    agent.wait_ready()
    assert agent.status()["revision"] == "b" * 12


def test_a_revision_that_is_wanted_again_in_time_goes_on(agent: EngineAgent) -> None:
    pid = agent.serve("a")
    agent.write(agent.launch("b"))
    drains(agent)
    agent.write(agent.launch("a"))
    agent.wait_ready(1)
    time.sleep(LAME_DUCK_SECONDS + 0.2)
    assert agent.child_pid() == pid
    assert agent.ready()
    assert agent.status()["lastExit"] is None


def test_the_end_of_the_pod_has_it_too(agent: EngineAgent) -> None:
    agent.serve("a")
    began = time.monotonic()
    agent.terminate()
    assert agent.wait() == 0
    assert LAME_DUCK_SECONDS <= time.monotonic() - began < LAME_DUCK_SECONDS + 2


def test_it_is_part_of_the_bound_of_the_drain(agent: EngineAgent) -> None:
    agent.serve("a", drainTimeoutSeconds=0)
    began = time.monotonic()
    agent.terminate()
    assert agent.wait() == 0
    assert time.monotonic() - began < LAME_DUCK_SECONDS


def test_an_engine_that_never_served_ends_at_once(agent: EngineAgent) -> None:
    agent.add_kit()
    agent.write(agent.launch("a", "--ready-after", "60"))
    agent.status_when(lambda status: status["state"] == "starting", "it starts")
    began = time.monotonic()
    agent.terminate()
    assert agent.wait() == 0
    assert time.monotonic() - began < LAME_DUCK_SECONDS
