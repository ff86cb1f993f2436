"""The policies that can be compared, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from umbra_linker.settings import Checkpoints


class Recency(StrEnum):
    """What refreshes an object in the store."""

    READS = "reads"
    """Its reads, as in UMBP 1.2.4 (measured on its host path)."""
    WRITES = "writes"
    """Only its write and a touch."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the linker does."""

    name: str
    once: bool = True
    """One copy of KV for all ranks."""
    touch: bool = False
    checkpoints: Checkpoints = Checkpoints.ALL
    leaf_first: bool = False
    """Whether a prefix is put and touched from its end on, as Umbra's linker does under every policy.

    Those without it are SGLang's linker and the two changes that were published for it, which begin with page 0. They
    are here to be compared with; what a deployment with the same fields does, ``--deployment`` replays.
    """
    rewrite: bool = False
    infinite: bool = False
    """The store never evicts."""
    clairvoyant: bool = False
    """The store knows which object is asked for next; a greedy reference, and no bound."""

    @property
    def reference(self) -> bool:
        """Whether it only shows what is possible, and cannot be chosen."""
        return self.infinite or self.clairvoyant


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("stock", once=False),
        Policy("kv-once"),
        Policy("kv-once+touch", touch=True),
        Policy("adaptive", touch=True, checkpoints=Checkpoints.ADAPTIVE, leaf_first=True),
        Policy("adaptive+rewrite", touch=True, checkpoints=Checkpoints.ADAPTIVE, leaf_first=True, rewrite=True),
        Policy("clairvoyant", clairvoyant=True),
        Policy("infinite", infinite=True),
    )
}
DEFAULT = "adaptive+rewrite"
"""What the linker does where nobody sets anything."""
REFERENCES = frozenset(policy.name for policy in POLICIES.values() if policy.reference)
"""Names of those that only show what is possible."""
