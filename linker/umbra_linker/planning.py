"""Which pages a rank writes when all ranks hold the same bytes. Pure.

Each page is written by exactly one rank, chosen from its key alone: ranks need no message to agree, and the work splits
evenly. Reading is not split: every rank needs every page.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence


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
