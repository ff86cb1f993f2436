"""``make bench-linker``: Umbra's linker beside SGLang's own one for UMBP, with the real tree, store and client.

Each has a store of its own, and ranks without a model: pools of CPU tensors that the bench fills. SGLang's own linker
runs in processes that never load Umbra. The two take turns, so that whatever else the machine does meets both.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cpuengine import environment
from cpuengine.store import running_store, started_again
from engine_fixtures import lay_out_kit
from figures import REPOSITORY, Figure, page_with_table, report
from ranklab import RankLab

PEER = "SGLang's own"
ROUNDS = 21
"""Pairs; each tells a median or many samples."""
PROMPTS, PAGES = 11, 64
"""Of a round."""
STEPS = 500
"""Of a round."""
RANKS = 2
STORE_BYTES = 512 << 20
"""Both stores are full soon, as in service, and evict."""
SERVED_PAGES, ANSWER_PAGES = 32, 2
OUTAGES = 5
"""How often each goes through them."""
FROZEN_SECONDS, GIVE_UP_SECONDS = 10.0, 30.0
"""How long the store is frozen, and how long a hit is waited for after the next store listens."""
MIB = 1 << 20
PAGE = REPOSITORY / "docs" / "explanation" / "linker.md"
BEGIN, END = "<!-- make bench-linker-page writes this table -->", "<!-- until here -->"


class Bench:
    """Both linkers, each in a process that forks its ranks."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._engine = engine = environment()
        self._hold = folder / "hold"
        self._labs, self._stores = {}, {}
        for stock, path in ((False, lay_out_kit(folder)), (True, [])):
            logs = folder / f"stock-{stock}"
            logs.mkdir()
            self._labs[stock] = stack.enter_context(RankLab(engine, logs, path))
            self._stores[stock] = stack.enter_context(running_store(engine, capacity_bytes=STORE_BYTES))

    def run(self, rounds: int) -> list[Figure]:
        """Every figure."""
        return [*self._written(), *self._moved(rounds), self._held(), *self._outages()]

    def _ranks(self, scene: str, stock: bool, ranks: int, **arguments: Any) -> list[Any]:
        return self._labs[stock].run(
            f"pace.{scene}", ranks=ranks, seconds=300.0, address=self._stores[stock].address, stock=stock, **arguments
        )

    def _written(self) -> list[Figure]:
        """Bytes that eight ranks put for a prompt and its answer."""
        pools: dict[bool, list[dict[str, int]]] = {
            stock: self._ranks("written", stock, 8, pages=SERVED_PAGES, answer=ANSWER_PAGES) for stock in (False, True)
        }
        tokens, prompt = (SERVED_PAGES + ANSWER_PAGES) * 64, SERVED_PAGES * 64
        kv = {stock: sum(one["kv"] for one in ranks) / tokens for stock, ranks in pools.items()}
        every = {stock: sum(sum(one.values()) for one in ranks) / prompt for stock, ranks in pools.items()}
        return [
            _beside("kv_bytes_per_token_tp8", "B", kv),
            _beside("bytes_written_per_prompt_token", "B", every),
        ]

    def _moved(self, rounds: int) -> list[Figure]:
        samples: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for number in range(rounds + 1):
            for stock in (False, True) if number % 2 else (True, False):
                found = self._ranks("moved", stock, RANKS, number=number + 1, prompts=PROMPTS, pages=PAGES, steps=STEPS)
                if number:  # The first round fills the stores.
                    samples[stock] += [found[0]]
        # SGLang's linker puts on each rank all that the rank holds of a prompt.
        mib = samples[True][0]["bytes"] / PROMPTS / MIB

        def speed(name: str) -> dict[bool, float]:
            return {
                stock: statistics.median(mib / statistics.median(one[name]) for one in ones)
                for stock, ones in samples.items()
            }

        def every(name: str) -> dict[bool, list[float]]:
            return {stock: sorted(value for one in ones for value in one[name]) for stock, ones in samples.items()}

        lookups, steps = every("lookups"), every("steps")
        return [
            _beside("lookup_p50_ms", "ms", {stock: statistics.median(values) for stock, values in lookups.items()}),
            _beside("lookup_p99_ms", "ms", {stock: _p99(values) for stock, values in lookups.items()}),
            _beside("load_mib_s", "MiB/s", speed("loads")),
            _beside("offload_mib_s", "MiB/s", speed("offloads")),
            _beside("step_scheduler_us_p99", "us", {stock: _p99(values) for stock, values in steps.items()}),
        ]

    def _held(self) -> Figure:
        (found,) = self._labs[False].run(
            "pace.held", seconds=300.0, address=self._stores[False].address, tokens=1_000_000, pages=250
        )
        return Figure("plugin_mib_per_million_tokens", _short(found["mib"]), "MiB")

    def _outages(self) -> list[Figure]:
        """Seconds that a frozen, a killed and a replaced store are felt, on one rank."""
        felt: dict[bool, list[dict[str, float | None]]] = {False: [], True: []}
        for number in range(OUTAGES):
            for stock in (False, True) if number % 2 else (True, False):
                with running_store(self._engine) as store, started_again(store, self._hold):
                    felt[stock] += self._labs[stock].run(
                        "outages.felt", seconds=300.0, address=store.address, hold=str(self._hold),
                        pid=store.process.pid, stock=stock,
                        frozen_seconds=FROZEN_SECONDS, give_up_seconds=GIVE_UP_SECONDS,
                    )  # fmt: skip

        def every(name: str) -> dict[bool, list[float | None]]:
            return {stock: [one[name] for one in ones] for stock, ones in felt.items()}

        return [
            bounded("frozen_store_lookup_ms_max", "ms", every("lookup"), max, 1e3, f"hangs > {FROZEN_SECONDS:g} s"),
            bounded("thaw_to_hits_s", "s", every("thaw"), statistics.median),
            bounded(
                "store_restart_to_hits_s", "s", every("restart"), statistics.median,
                otherwise=f"none in {GIVE_UP_SECONDS:g} s",
            ),
            bounded("kill_to_503_s", "s", every("kill"), statistics.median),
        ]  # fmt: skip


def bounded(
    name: str,
    unit: str,
    values: dict[bool, list[float | None]],
    one_of: Callable[[list[float]], float],
    factor: float = 1.0,
    otherwise: str = "",
) -> Figure:
    """One figure for all rounds; ``otherwise`` tells what SGLang's own did where it never came to an end.

    Raises:
        RuntimeError: when ours did not.
    """
    ours, theirs = ([value * factor for value in values[stock] if value is not None] for stock in (False, True))
    if len(ours) < len(values[False]):
        raise RuntimeError(f"{name}: nothing within the bound")
    if not theirs:
        return Figure(name, _short(one_of(ours)), unit, f"{PEER}: {otherwise}")
    return Figure(name, _short(one_of(ours)), unit, PEER, _short(one_of(theirs)))


def _beside(name: str, unit: str, values: dict[bool, float]) -> Figure:
    return Figure(name, _short(values[False]), unit, PEER, _short(values[True]))


def _short(value: float) -> float:
    """Three digits, more where the number has more before its point."""
    return float(f"{value:.3g}") if value < 1000 else float(round(value))


def _p99(ascending: list[float]) -> float:
    return ascending[max(0, round(len(ascending) * 0.99) - 1)]


def main() -> None:
    """Measures and reports, or writes the page about what was measured last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="pairs of runs")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the last figures into the page")
    arguments = parser.parse_args()
    if arguments.page:
        document = json.loads((REPOSITORY / "build" / "bench" / "linker.json").read_text())
        PAGE.write_text(page_with_table(PAGE.read_text(), BEGIN, END, document))
        return
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        report("linker", Bench(Path(folder), stack).run(arguments.rounds))


if __name__ == "__main__":
    main()
