"""One tree core on all ranks. Pure: the reduction over the ranks is the caller's.

SGLang chooses per process between its Rust and its Python tree core, and one rank may fall back alone (a toolchain
probe that timed out, another torch). The two cores need not evict in the same order, so ranks whose trees differ wait
for each other in a reduction that the others never enter. Rust is used only when every rank chose it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RUST = "rust"
"""SGLang's name of the core that a rank can lose."""
PYTHON = "python"
"""SGLang's name of the core that every rank has."""


class Agreement(StrEnum):
    """How a rank came to its core; a label of ``umbra_tree_core_info``."""

    ALL_RANKS = "all_ranks"
    """Every rank made the same choice."""
    THIS_RANK = "this_rank"
    """Ranks differed, and this one kept the core that it had chosen."""
    OTHER_RANK = "other_rank"
    """Another rank had no Rust core, so this one gave up its own."""


@dataclass(frozen=True, slots=True)
class TreeCore:
    """The core of one rank, and why."""

    core: str
    """What the rank uses."""
    chosen: str
    """What SGLang had chosen on this rank alone."""
    agreement: Agreement
    fallback: str | None
    """SGLang's reason against Rust on this rank; None when it had none."""

    def describe(self, rank: int, ranks: int) -> str:
        """Return the start-up log's line of ``rank`` among ``ranks``."""
        if self.agreement is Agreement.OTHER_RANK:
            why = f"this rank chose {self.chosen}, but another rank has no {RUST} core"
        elif self.agreement is Agreement.THIS_RANK:
            why = f"{self.fallback or 'configured'}; other ranks chose {RUST} and follow"
        else:
            why = f"every rank chose it{f' ({self.fallback})' if self.fallback else ''}"
        return f"tree core: {self.core} on rank {rank} of {ranks}: {why}"


def ballot(chosen: str) -> tuple[int, int]:
    """Return what this rank puts into a MIN reduction: 1 where it would be content if all ranks were."""
    return (1, 0) if chosen == RUST else (0, 1)


def settle(chosen: str, result: tuple[int, int], *, fallback: str | None = None) -> TreeCore:
    """Decide from the reduced ballot.

    Args:
        chosen: what SGLang chose on this rank.
        result: the ballots of all ranks, reduced with MIN: the same on every rank.
        fallback: SGLang's reason against Rust on this rank.
    """
    if any(result):
        return TreeCore(chosen, chosen, Agreement.ALL_RANKS, fallback)
    if chosen == RUST:
        return TreeCore(PYTHON, chosen, Agreement.OTHER_RANK, fallback)
    return TreeCore(chosen, chosen, Agreement.THIS_RANK, fallback)
