"""How much one call may carry to the real store: what the linker's bound on names rests on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.store import Store
from umbra_linker.mover import MOST_NAME_BYTES

pytestmark = pytest.mark.engine


def seen(engine_env: Environment, store: Store, size: int) -> dict:
    client = Path(__file__).with_name("names_client.py")
    printed = subprocess.run(
        [engine_env.python, client, store.address, str(size)], env=os.environ | engine_env.engine_env, check=True,
        capture_output=True, text=True, timeout=60,
    ).stdout  # fmt: skip
    return json.loads(printed.splitlines()[-1])


def test_the_store_finds_an_object_among_as_many_names_as_a_call_carries(engine_env: Environment, store: Store) -> None:
    said = seen(engine_env, store, MOST_NAME_BYTES)
    assert said["answers"] == said["asked"]
    assert said["there"] == [said["asked"] - 1]


def test_the_store_calls_everything_absent_when_it_is_asked_for_too_much(engine_env: Environment, store: Store) -> None:
    """No error tells of it, which is why the linker has a bound. A store that says so needs another look."""
    said = seen(engine_env, store, 2 * MOST_NAME_BYTES)
    assert (said["answers"], said["there"]) == (said["asked"], [])
