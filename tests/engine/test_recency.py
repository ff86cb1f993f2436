"""Which uses keep an object in the real store when others fill it: what touching rests on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from cpuengine import Environment
from cpuengine.store import running_store

pytestmark = pytest.mark.engine


def test_reads_make_an_object_young_and_nothing_else_does(engine_env: Environment) -> None:
    """The linker touches with reads of 64 bytes. A store that comes with a call for it would want that one."""
    with running_store(engine_env, capacity_bytes=64 << 20) as store:
        client = Path(__file__).with_name("recency_client.py")
        printed = subprocess.run(
            [engine_env.python, client, store.address], env=os.environ | engine_env.engine_env, check=True,
            capture_output=True, text=True, timeout=60,
        ).stdout  # fmt: skip
    seen = json.loads(printed.splitlines()[-1])
    left = {"read": 4, "read of 64 bytes": 4, "existence check": 0, "put again": 0, "nothing": 0}
    assert seen == {"left": left, "has a call for it": False}
