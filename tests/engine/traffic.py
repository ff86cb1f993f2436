"""Prompts, and waiting for what an engine does in the background."""

from __future__ import annotations

from cpuengine.client import EngineClient
from cpuengine.processes import wait_for

PAGE = 64
"""Tokens a page in the test engine."""


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """Return token ids that differ from the first token on for each seed."""
    return [(i * 7 + 3 + seed * 131) % 500 + 5 for i in range(tokens)]


def total(client: EngineClient, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples over all ranks that carry ``labels``."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(
        value
        for sample, value in client.samples(name).items()
        if sample.split("{")[0] == name and all(part in sample for part in wanted)
    )


def wait_until_stored(client: EngineClient, *, kv_objects: int) -> None:
    """Wait until the engine has written ``kv_objects`` KV objects and has nothing left to write."""

    def stored() -> bool:
        written = total(client, "umbra_linker_stored_objects_total", pool="kv")
        return written >= kv_objects and total(client, "umbra_linker_offload_queue_depth") == 0

    wait_for(stored, 20.0, f"fewer than {kv_objects} KV objects were stored", every=0.1)
