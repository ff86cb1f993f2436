"""Each write policy meets each fault of the store, where ranks share the tokens of a page and where they do not.

Real tree, linker, store and gloo; the ranks' clocks differ. Without shared tokens there is a draft model, too.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cpuengine.store import Store
from ranklab import RankLab

pytestmark = pytest.mark.engine

ALL, NO_ANSWERS, ENDS = [0, 2, 2, 4, 5, 6], [0, 2, 2, 4, 5, 5], [0, 0, 0, 0, 5, 5]
"""How much is found of 1 to 6 pages: a prompt of 5 in chunks of 2, and a page of its answer."""
ON, BLIND, OFF = (
    {"touch": "Auto", "rewriteMissing": "Enabled"},
    {"touch": "Auto", "rewriteMissing": "Disabled"},
    {"touch": "Off", "rewriteMissing": "Enabled"},
)
POLICIES = {
    "All": ({"checkpoints": "All"} | ON, ALL),
    "All, no touch": ({"checkpoints": "All"} | OFF, ALL),
    "Adaptive": ({"checkpoints": "Adaptive"} | ON, NO_ANSWERS),
    "Adaptive in a tiny store, nothing written again": ({"checkpoints": "Adaptive", "storeBytes": 1} | BLIND, ENDS),
    "PromptEnd": ({"checkpoints": "PromptEnd"} | ON, ENDS),
    "PromptEnd, no touch": ({"checkpoints": "PromptEnd"} | OFF, ENDS),
}
WHOLE, NOTHING, ENDED = [5, True, []], [0, True, []], [5, False, []]
"""Pages found, whether they landed, and which of them are wrong."""
MEANWHILE = {
    "write fails": NOTHING,
    "write raises": NOTHING,
    "read fails": ENDED,
    "read raises": ENDED,
    "lookup raises": NOTHING,
    "lookup late": NOTHING,
    "slow": WHOLE,
    "flushed in a load": True,
    "frozen": [NOTHING, 3, WHOLE],
    "killed": NOTHING,
    "replaced before a load": ENDED,
    "registration refused": NOTHING,
    "frozen in a load": ENDED,
    "closed in a load": True,
}
CASES = [
    pytest.param(policy, ranks, ways, marks=[pytest.mark.nightly] if (policy, ways) != ("Adaptive", 2) else [])
    for policy in POLICIES
    for ranks, ways in ((2, 1), (2, 2), (4, 4), (8, 8))
]
"""A case takes 20 s and longer; the one with the default policy stands for the others between two nights."""


@pytest.mark.parametrize(("policy", "ranks", "ways"), CASES)
def test_a_fault_costs_its_hits_and_nothing_later(
    rank_lab: RankLab, store: Store, tmp_path: Path, policy: str, ranks: int, ways: int
) -> None:
    settings, found = POLICIES[policy]
    results = _met(rank_lab, store, tmp_path, ranks=ranks, policy=settings, ways=ways)
    again = settings["touch"] == "Auto" and settings["rewriteMissing"] == "Enabled"
    meanwhile = MEANWHILE | {"lost": WHOLE if again else NOTHING}
    for rank, result in enumerate(results):
        assert {fault: seen["meanwhile"] for fault, seen in result.items()} == meanwhile, rank
        later = {fault: seen["later"] for fault, seen in result.items() if "later" in seen}
        assert later == {fault: [WHOLE, found, {}, 0] for fault in meanwhile if fault != "closed in a load"}, rank


def _met(rank_lab: RankLab, store: Store, folder: Path, *, ranks: int, **arguments: Any) -> list[Any]:
    """Run the faults in the ranks, and replace the store whenever they ask for it."""
    pid, wish = folder / "pid", folder / "replace"
    pid.write_text(str(store.process.pid))
    with ThreadPoolExecutor(1) as thread:
        run = thread.submit(
            rank_lab.run, "matrix.met", ranks=ranks, seconds=300.0, address=store.address, folder=str(folder),
            **arguments,
        )  # fmt: skip
        while not run.done():
            if wish.exists():
                store.replace()
                pid.write_text(str(store.process.pid))
                wish.unlink()
            time.sleep(0.05)
        return run.result()
