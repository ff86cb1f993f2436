"""The wait for GPU memory, on folders that look like sysfs: no machine of the tests has a GPU."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_process import EngineAgent, StoreReadiness, wait_for

from umbra_agent.gpu_memory import TOLERANCE_BYTES, held_bytes, used_bytes

GIB = 1 << 30


class Gpus:
    """/sys/class/drm and /dev/dri with cards whose used memory the test sets."""

    def __init__(self, folder: Path) -> None:
        self.drm, self.dri = folder / "drm", folder / "dri"
        self.drm.mkdir(parents=True)
        self.dri.mkdir()

    def use(self, card: int, used: int, ours: bool = True) -> None:
        device = self.drm / f"card{card}" / "device"
        (device / "drm" / f"renderD{128 + card}").mkdir(parents=True, exist_ok=True)
        if ours:
            (self.dri / f"renderD{128 + card}").touch()
        staging = device / "staging"
        staging.write_text(f"{used}\n")
        staging.replace(device / "mem_info_vram_used")


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path / "gpus")


StartAgent = Callable[[float], EngineAgent]


@pytest.fixture
def start(tmp_path: Path, store_readiness: StoreReadiness, gpus: Gpus) -> Iterator[StartAgent]:
    """Start an agent that waits for at most the given seconds."""
    agents: list[EngineAgent] = []

    def started(seconds: float) -> EngineAgent:
        paths = ["--drm", str(gpus.drm), "--dri", str(gpus.dri), "--gpu-memory-seconds", str(seconds)]
        agents.append(EngineAgent(tmp_path, store_readiness.port, *paths))
        agents[-1].start()
        return agents[-1]

    yield started
    for agent in agents:
        agent.close()


def test_only_cards_of_this_container_count(gpus: Gpus) -> None:
    gpus.use(0, 5)
    gpus.use(1, 6, ours=False)
    (gpus.drm / "card0-DP-1").mkdir()
    (gpus.drm / "card2" / "device" / "drm" / "renderD130").mkdir(parents=True)
    (gpus.dri / "renderD130").touch()
    assert used_bytes(gpus.drm, gpus.dri) == {"card0": 5}, "card2 does not say"
    assert used_bytes(gpus.drm / "nowhere", gpus.dri) == {}


def test_what_counts_as_held() -> None:
    before = {"card0": GIB, "card1": GIB, "card2": GIB}
    now = {"card0": GIB + TOLERANCE_BYTES, "card1": 100 * GIB, "card9": 100 * GIB}
    assert held_bytes(before, now) == {"card1": 99 * GIB}


def test_the_next_engine_waits_until_the_memory_is_free(start: StartAgent, gpus: Gpus) -> None:
    gpus.use(0, GIB)
    gpus.use(1, GIB)
    agent = start(30)
    agent.serve("a")
    gpus.use(1, 200 * GIB)
    agent.write(agent.launch("b"))
    status = agent.status_when(lambda status: "hold memory" in (status["problem"] or ""), "it waits", 5)
    assert status["state"] == "waiting"
    assert "card1 the most (199.0 GiB)" in status["problem"]
    assert status["gpuMemoryHeld"] is True
    gpus.use(1, 2 * GIB)
    agent.wait_ready()
    assert (agent.status()["revision"], agent.status()["problem"]) == ("b" * 12, None)
    assert agent.status()["gpuMemoryHeld"] is False


def test_the_wait_ends(start: StartAgent, gpus: Gpus) -> None:
    gpus.use(0, GIB)
    agent = start(1)
    agent.serve("a")
    gpus.use(0, 200 * GIB)
    began = time.monotonic()
    agent.serve("b")
    assert 1 <= time.monotonic() - began < 5
    assert "the engine starts nevertheless" in agent.stderr.read_text()


def test_an_agent_that_was_killed_waits_too(start: StartAgent, gpus: Gpus) -> None:
    gpus.use(0, GIB)
    agent = start(30)
    agent.serve("a")
    gpus.use(0, 200 * GIB)
    agent.process.kill()
    agent.process.wait()
    agent.stderr.unlink()
    agent.start()
    agent.status_when(lambda status: "hold memory" in (status["problem"] or ""), "it waits", 5)
    gpus.use(0, GIB)
    agent.wait_ready()


def test_nothing_is_waited_for_where_the_driver_says_nothing(start: StartAgent) -> None:
    agent = start(30)
    agent.serve("a")
    began = time.monotonic()
    agent.serve("b")
    assert time.monotonic() - began < 5
    wait_for(lambda: agent.status()["problem"] is None, "nothing is wrong", 1)
