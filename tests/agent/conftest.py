"""Fixtures of the agent's tests: real agents in processes of their own, with real children."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# In importlib mode a test folder is not importable; its own support modules live beside the tests.
sys.path.insert(0, str(Path(__file__).parent))

from agent_process import EngineAgent, StoreReadiness


@pytest.fixture
def store_readiness() -> Iterator[StoreReadiness]:
    """An HTTP server that answers /ready like a store agent; ready unless a test says otherwise."""
    server = StoreReadiness()
    yield server
    server.close()


@pytest.fixture
def engine_agent(tmp_path: Path, store_readiness: StoreReadiness) -> Iterator[EngineAgent]:
    """A started engine agent that still waits for its launch document."""
    agent = EngineAgent(tmp_path, store_readiness.port)
    agent.start()
    yield agent
    agent.close()
