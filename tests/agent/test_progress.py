"""How far a load is, from the bars that the engine prints."""

import pytest
from agent_process import EngineAgent

from umbra_agent.progress import Progress, ProgressLog, parse, seconds

SHARDS = "Loading safetensors checkpoint shards"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "Loading safetensors checkpoint shards:  43% Completed | 41/96 [03:10<04:15,  4.64s/it]",
            (SHARDS, 41, 96, 255),
        ),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/96 [00:00<?, ?it/s]", (SHARDS, 0, 96, None)),
        (
            "Loading safetensors checkpoint shards: 100% Completed | 96/96 [1:07:22<00:00, 42.1s/it]",
            (SHARDS, 96, 96, 0),
        ),
        (
            "Multi-thread loading shards:  12% Completed | 3/25 [00:10<1:02:03,  3.4s/it]",
            ("Multi-thread loading shards", 3, 25, 3723),
        ),
        (
            "[2026-12-02 TP0] Loading safetensors using InstantTensor:  50%|#####     | 5/10 [00:10<00:10, 2s/it]",
            ("Loading safetensors using InstantTensor", 5, 10, 10),
        ),
        (
            "Capturing batches (bs=256 avail_mem=3.1 GB):   4%|4  | 1/23 [00:02<00:44, 2s/it]",
            ("Capturing batches", 1, 23, 44),
        ),
        ("Loading safetensors checkpoint shards: 0% Completed | 0/0 [00:00<?, ?it/s]", None),
        ("Prefill batch. #new-seq: 1, 41/96 [00:10<00:10", None),
        ("", None),
    ],
)
def test_bars(line: str, found: tuple[str, int, int, int | None] | None) -> None:
    parsed = parse(line.encode(), 5.0)
    assert (parsed and (parsed.what, parsed.done, parsed.total, parsed.eta_seconds)) == found


def test_the_estimate_counts_down_and_never_below_zero() -> None:
    progress = Progress("Loading", 1, 2, 60, at=100.0)
    assert progress.to_status(110.0) == {"what": "Loading", "done": 1, "total": 2, "etaSeconds": 50}
    assert progress.to_status(900.0)["etaSeconds"] == 0


def test_nothing_is_noticed_after_ready() -> None:
    log = ProgressLog()
    log.notice(b"Loading safetensors checkpoint shards:  43% Completed | 41/96 [03:10<04:15,  4.64s/it]")
    assert log.latest is not None
    log.clear()
    log.notice(b"Loading safetensors checkpoint shards:  43% Completed | 41/96 [03:10<04:15,  4.64s/it]")
    assert log.latest is None


@pytest.mark.parametrize(("clock", "value"), [("00:13", 13), ("1:00:01", 3601), ("?", None), ("", None)])
def test_clock(clock: str, value: int | None) -> None:
    assert seconds(clock) == value


def test_progress_is_shown_until_the_engine_is_ready(engine_agent: EngineAgent) -> None:
    agent = engine_agent
    agent.add_kit()
    bar = f"{SHARDS}:   0% Completed | 0/96 [00:00<?, ?it/s]\r{SHARDS}:  43% Completed | 41/96 [03:10<04:15, 4.6s/it]\r"
    agent.write(agent.launch("a", "--ready-after", "1.5", "--say", bar))
    status = agent.status_when(lambda status: status["progress"], "the progress is shown")
    assert status["state"] == "starting"
    assert status["progress"] == {
        "what": SHARDS,
        "done": 41,
        "total": 96,
        "etaSeconds": pytest.approx(255, abs=3),
    }
    agent.wait_ready()
    assert agent.status()["progress"] is None
