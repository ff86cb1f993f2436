"""A store that stands still for half an hour costs hits, and nothing piles up in the engine meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.client import Answer
from cpuengine.launcher import Engine, ForkLauncher, Launch
from cpuengine.processes import wait_for
from cpuengine.store import Store, running_store
from engine_fixtures import linker_arguments
from traffic import PAGE, prompt, total, wait_until_stored

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(3600)]

FROZEN_SECONDS = 1800
PAUSE_SECONDS = 30
"""Between two rounds of requests."""
NEW_PROMPTS = 7
"""In a round."""
THAWED_SECONDS = 60.0
"""So soon after the thaw the store is asked again."""
SPARE = 8
"""Threads and files that come and go: connections of the test's own, pools that grow."""
KNOWN = [prompt(200, seed=seed) for seed in (1, 2, 3)]
"""What the store has before the freeze."""


def test_half_an_hour_without_a_store(
    fork_launcher: ForkLauncher, engine_env: Environment, kit_path: list[Path]
) -> None:
    """One rank and two, each with a store of their own, side by side."""
    with (
        _serving(fork_launcher, engine_env, kit_path, 1) as one,
        _serving(fork_launcher, engine_env, kit_path, 2) as two,
    ):
        for case in (one, two):
            case.freeze()
        end = time.monotonic() + FROZEN_SECONDS
        seeds = iter(range(10, 500))
        first = None
        while time.monotonic() < end:
            for _ in range(NEW_PROMPTS):
                seed = next(seeds)
                for case in (one, two):
                    case.engine.client.generate(prompt(80, seed=seed))
            for case in (one, two):
                assert [answer.host for answer in case.ask()] == [0] * len(KNOWN)
            first = first or [case.holds() for case in (one, two)]
            time.sleep(PAUSE_SECONDS)
        last = [case.holds() for case in (one, two)]
        for case in (one, two):
            case.thaw()
    for before, after in zip(first or [], last, strict=True):
        assert after["threads"] <= before["threads"] + SPARE
        assert after["files"] <= before["files"] + SPARE


class _Case:
    """An engine and its store."""

    def __init__(self, engine: Engine, store: Store) -> None:
        self.engine = engine
        self.store = store
        for text in KNOWN:
            engine.client.generate(text)
        self.before = self.ask()
        wait_until_stored(engine.client, kv_objects=len(KNOWN) * (200 // PAGE))
        engine.client.flush()

    def freeze(self) -> None:
        """Stop the store, with no load under way."""
        self.store.freeze()

    def thaw(self) -> None:
        """Let the store go on: it is asked again, takes what waits, and gives what it had."""
        client = self.engine.client
        assert total(client, "umbra_linker_skipped_offloads_total") > 0, "the pool was full of what waits"
        self.store.thaw()
        wait_for(lambda: total(client, "umbra_linker_breaker_open") == 0, THAWED_SECONDS, "the breaker stays open")
        wait_for(lambda: total(client, "umbra_linker_offload_queue_depth") == 0, THAWED_SECONDS, "nodes wait for ever")
        client.flush()
        after = self.ask()
        assert [answer.host for answer in after] == [200 // PAGE * PAGE] * len(KNOWN)
        assert [answer.logprobs for answer in after] == [answer.logprobs for answer in self.before]

    def ask(self) -> list[Answer]:
        """Ask for what the store had before the freeze."""
        return [self.engine.client.generate([*text, 9]) for text in KNOWN]

    def holds(self) -> dict[str, int]:
        """Count the threads and open files of all processes of the engine."""
        counts = {"threads": 0, "files": 0}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(process.name)) == self.engine.pid:
                    counts["threads"] += len(list((process / "task").iterdir()))
                    counts["files"] += len(list((process / "fd").iterdir()))
            except (ProcessLookupError, FileNotFoundError):
                continue
        return counts


@contextmanager
def _serving(launcher: ForkLauncher, environment: Environment, path: list[Path], ranks: int) -> Iterator[_Case]:
    with running_store(environment) as store:
        settings = {"lookupDeadlineMilliseconds": 200, "offloadBackpressurePercent": 10}
        arguments = [*linker_arguments(store.address, settings), "--tp-size", str(ranks)]
        engine = launcher.launch(Launch(arguments, path=path), f"half-an-hour-{ranks}")
        try:
            yield _Case(engine, store)
        finally:
            store.thaw()
            engine.stop()
