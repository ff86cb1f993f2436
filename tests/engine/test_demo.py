"""What `make up` shows: each run with a prompt of its own, counted for this run alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.launcher import ForkLauncher, Launch
from cpuengine.store import Store as Running
from engine_fixtures import linker_arguments
from localcluster.errors import ClusterError
from localcluster.progress import Progress
from localstack import demo
from localstack.engine import Engine, prompt
from localstack.store import PAGE_TOKENS, Store

pytestmark = pytest.mark.engine


@pytest.fixture
def asked_too(engine_env: Environment, store: Running, engine: Engine) -> Store:
    """The engine's store, asked by a second client."""
    return Store(engine_env, store.socket_path, engine.url)


@pytest.fixture
def engine(fork_launcher: ForkLauncher, store: Running, kit_path: list[Path]) -> Iterator[Engine]:
    """An engine with the linker and an empty store."""
    running = fork_launcher.launch(Launch(linker_arguments(store.address), path=kit_path), "demo")
    yield Engine(running.client.base)
    running.stop()


def test_a_second_run_is_as_good_as_the_first_and_counts_only_itself(engine: Engine, asked_too: Store) -> None:
    runs = [demo.demonstrate(engine, asked_too, Progress()) for _ in range(2)]
    for shown in runs:
        assert shown.pages == (0, demo.PROMPT_TOKENS // PAGE_TOKENS)
        assert (shown.device_tokens, shown.store_tokens) == (demo.PROMPT_TOKENS, demo.PROMPT_TOKENS)
    assert runs[0].read_bytes == runs[1].read_bytes > 0
    assert sum(shown.stored_bytes for shown in runs) == engine.metric(demo.STORED)


def test_a_prompt_that_something_knows_proves_nothing(
    engine: Engine, asked_too: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = prompt(demo.PROMPT_TOKENS + 3)
    monkeypatch.setattr(demo, "prompt", lambda length: known)
    demo.demonstrate(engine, asked_too, Progress())
    with pytest.raises(ClusterError, match=r"320 tokens of .* were in a cache, and 5 of its pages in the store"):
        demo.demonstrate(engine, asked_too, Progress())
