"""What `make up` shows: each run with a prompt of its own, counted for this run alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpuengine.launcher import ForkLauncher, Launch
from cpuengine.store import Store
from engine_fixtures import linker_arguments
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from localstack import demo
from localstack.engine import Engine, prompt

pytestmark = pytest.mark.engine


@pytest.fixture
def engine(fork_launcher: ForkLauncher, store: Store, kit_path: list[Path]) -> Iterator[Engine]:
    """An engine with the linker and an empty store."""
    running = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "demo")
    yield Engine(running.client.base)
    running.stop()


def test_a_second_run_is_as_good_as_the_first_and_counts_only_itself(engine: Engine) -> None:
    runs = [demo.demonstrate(engine, Progress()) for _ in range(2)]
    for shown in runs:
        assert (shown.device_tokens, shown.store_tokens) == (demo.PROMPT_TOKENS, demo.PROMPT_TOKENS)
    assert runs[0].read_bytes == runs[1].read_bytes > 0
    assert sum(shown.stored_bytes for shown in runs) == engine.metric(demo.STORED)


def test_a_prompt_that_something_knows_proves_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    known = prompt(demo.PROMPT_TOKENS + 3)
    monkeypatch.setattr(demo, "prompt", lambda length: known)
    demo.demonstrate(engine, Progress())
    with pytest.raises(ClusterError, match="320 tokens of a prompt that nobody asked before were in a cache"):
        demo.demonstrate(engine, Progress())
