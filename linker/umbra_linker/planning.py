"""What a rank writes, and what a lookup missed. Pure.

Of pages that all ranks hold, each is written by exactly one rank, chosen from its key alone: ranks need no message to
agree, and the work splits evenly. Reading is not split: every rank needs every page.
"""

from __future__ import annotations

import zlib
from collections.abc import Container, Sequence
from enum import StrEnum


def stripe_owner(key: str, ranks: int) -> int:
    """Return the rank in ``range(ranks)`` that writes the page named ``key``."""
    return zlib.crc32(key.encode()) % ranks


def owned_pages(keys: Sequence[str], *, per_page: int, rank: int, ranks: int) -> list[int]:
    """Return the indices of the pages that ``rank`` writes.

    Args:
        keys: object keys in page order, ``per_page`` of them for each page; a page's first key decides.
        per_page: objects a page.
        rank: this rank.
        ranks: size of the group that shares the pages.

    Raises:
        ValueError: when ``keys`` is not a whole number of pages.
    """
    if per_page < 1 or len(keys) % per_page:
        raise ValueError(f"{len(keys)} object keys are not a whole number of pages of {per_page} objects")
    return [page for page in range(len(keys) // per_page) if stripe_owner(keys[page * per_page], ranks) == rank]


class MissReason(StrEnum):
    """Why a lookup ended where it did; the label ``reason`` of the missed pages."""

    NEVER_STORED = "never_stored"
    """The first missing page was not stored by this engine as far as it remembers."""
    EVICTED_RECENTLY = "evicted_recently"
    """The first missing page was stored by this engine, and the store has it no more."""
    NO_CHECKPOINT = "no_checkpoint"
    """The KV pages are there, but no checkpoint at their end: a prefix ends where all its pools do."""
    NO_DRAFT = "no_draft"
    """KV pages and checkpoint are there, but not every page of the draft model: it was turned on, or lost some."""
    DEADLINE = "deadline"
    """The store did not answer in time."""
    BREAKER = "breaker"
    """The store was not asked, because it had not answered in time before."""
    ERROR = "error"
    """The store gave no usable answer."""


class SkipReason(StrEnum):
    """Why a node was not queued to be stored; the label ``reason`` of the skipped offloads."""

    BACKPRESSURE = "backpressure"
    """Nodes that wait for the store hold as much of a pool as they may."""


class CanaryResult(StrEnum):
    """What became of a sample of the canary; the label ``result`` of its objects."""

    EQUAL = "equal"
    """The store has the bytes that were written."""
    DIFFERENT = "different"
    """It has other bytes."""
    UNMEASURED = "unmeasured"
    """It had the object before, or has it no more."""


class HintResult(StrEnum):
    """What became of a hint; the label ``result`` of the hints."""

    TOUCHED = "touched"
    """The store was asked."""
    OUTSTANDING = "outstanding"
    """Too many waited."""
    BUDGET = "budget"
    """The thread had used its part of a core."""
    ERROR = "error"
    """The store gave no answer that could be used."""


def miss_reason(
    pages: Sequence[str], kv_present: Sequence[bool], hit: int, recent: Container[str], *, without_draft: int
) -> MissReason:
    """Say why the restorable prefix has ``hit`` pages and not more.

    Args:
        pages: hashes of the pages asked for; ``hit`` is less than their number.
        kv_present: which KV pages exist, for a first part of ``pages`` or all.
        hit: pages of the restorable prefix.
        recent: hashes of pages that this engine stored lately.
        without_draft: pages that the prefix would have if no draft model had pages; at least ``hit``.
    """
    if without_draft > hit:
        return MissReason.NO_DRAFT
    missing = next((page for page, present in enumerate(kv_present) if not present), None)
    if missing is None or missing > hit:
        return MissReason.NO_CHECKPOINT
    return MissReason.EVICTED_RECENTLY if pages[missing] in recent else MissReason.NEVER_STORED
