"""``make bench-policy``: what the write policies write and restore, and what touching costs.

The first is replayed through ``umbra size``'s model, which asks the linker's own policy; recorded agent sessions can be
given, otherwise conversations are made up that are as long. The second is measured on the real tree, linker and store.
"""

import argparse
import json
import tempfile
from pathlib import Path

from cpuengine import environment
from cpuengine.store import running_store
from engine_fixtures import lay_out_kit
from figures import REPOSITORY, Figure, page_with_table, report
from modelcheck import PROMPT_END
from ranklab import RankLab
from sizingbench import agents
from umbra_sim.policies import POLICIES, Policy
from umbra_sim.readers import read
from umbra_sim.simulate import Setup
from umbra_sim.sweep import sweep
from umbra_sim.trace import Trace

GIB = 1 << 30
SIZES = (72, 145, 290)
"""GiB of the store."""
SEEDS = 4
ALL = Policy("all", touch=True, leaf_first=True)
ADAPTIVE = POLICIES["adaptive"]
WINDOW_SETUP = Setup(low_percent=85)
"""The low watermark that a K3Deployment has by default."""
STORE_BYTES = 1 << 30
SESSIONS, PAGES, TURNS, SECONDS = 2, 1792, 150, 30.0
"""Two conversations of 115,000 tokens ask five times a second each: more than the thread may touch."""
PAGE = REPOSITORY / "docs" / "explanation" / "write-policy.md"
BEGIN, END = "<!-- make bench-policy-page writes this table -->", "<!-- until here -->"


def written(trace: Trace, sizes: tuple[int, ...] = SIZES, seeds: int = SEEDS) -> list[Figure]:
    """Bytes written for each prompt token, and prompt tokens restored in percent; beside ``All``."""
    policies = (ALL, ADAPTIVE, PROMPT_END)
    swept = sweep(trace, policies, [gib * GIB for gib in sizes], WINDOW_SETUP, seeds)
    rows = {(row.policy, row.dram_bytes // GIB): row for row in swept.rows}
    figures = []
    for gib in sizes:
        peer = rows[ALL.name, gib]
        for policy in (ADAPTIVE, PROMPT_END):
            row, name = rows[policy.name, gib], policy.name.replace("-", "_")
            figures += [
                Figure(f"bytes_per_prompt_token_{name}_{gib}gib", round(row.bytes_per_prompt_token), "B",
                       "All", round(peer.bytes_per_prompt_token)),
                Figure(f"restored_percent_{name}_{gib}gib", round(row.hit_ratio * 100, 1), "%",
                       "All", round(peer.hit_ratio * 100, 1)),
            ]  # fmt: skip
    return figures


def touched() -> list[Figure]:
    """What a hint takes of the scheduler, and the thread of a core."""
    engine = environment()
    with (
        tempfile.TemporaryDirectory() as folder,
        running_store(engine, capacity_bytes=STORE_BYTES) as store,
        RankLab(engine, Path(folder), lay_out_kit(Path(folder))) as lab,
    ):
        (found,) = lab.run(
            "hints.touched", seconds=300.0, address=store.address, sessions=SESSIONS, pages=PAGES, turns=TURNS,
            seconds_of_turns=SECONDS,
        )  # fmt: skip
    hints, matches = sorted(found["hints"]), sorted(found["matches"])
    peer = "the rest of the match"
    return [
        Figure("hint_scheduler_us_p50", _at(hints, 0.5), "us", peer, _at(matches, 0.5)),
        Figure("hint_scheduler_us_p99", _at(hints, 0.99), "us", peer, _at(matches, 0.99)),
        Figure("touch_core_fraction", round(found["core"], 4), ""),
        Figure("hints_over_the_core_fraction", round(found["results"].get("budget", 0) / len(hints), 2), ""),
    ]


def _at(ascending: list[float], part: float) -> float:
    return round(ascending[max(0, round(len(ascending) * part) - 1)], 1)


def main() -> None:
    """Measures and reports, or writes the page about what was measured last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=Path, help="recorded agent sessions, a .tar.xz")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the last figures into the page")
    arguments = parser.parse_args()
    if arguments.page:
        document = json.loads((REPOSITORY / "build" / "bench" / "policy.json").read_text())
        PAGE.write_text(page_with_table(PAGE.read_text(), BEGIN, END, document))
        return
    trace = read(arguments.agents) if arguments.agents else agents()
    report("policy", [*written(trace), *touched()])


if __name__ == "__main__":
    main()
