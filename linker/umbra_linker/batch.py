"""Objects of many tasks, moved in few calls, with a result for each task. Pure.

A task is a tree node to store or a request to load. Its objects are put beside those of other tasks, so that a call
carries many; the store answers for each object, and a task succeeded when all of its own objects did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class ObjectBatch:
    """Objects of one pool in the order in which they were added. All lists have one entry an object."""

    pool: str
    per_page: int
    """Objects that make up a page."""
    keys: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Bytes of the whole object."""
    pointers: list[list[int]] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    offsets: list[list[int]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """Number of the task that an object belongs to."""

    def add(
        self,
        owner: int,
        keys: Sequence[str],
        sizes: Sequence[int],
        ranges: tuple[list[list[int]], list[list[int]], list[list[int]]],
    ) -> None:
        """Append objects of one task; ``ranges`` are pointers, lengths and offsets.

        Raises:
            ValueError: when the lists differ in length, with nothing appended.
        """
        pointers, lengths, offsets = ranges
        if not len(keys) == len(sizes) == len(pointers) == len(lengths) == len(offsets):
            raise ValueError(
                f"pool {self.pool}: {len(keys)} keys, {len(sizes)} sizes and "
                f"{len(pointers)}/{len(lengths)}/{len(offsets)} ranges do not belong together"
            )
        self.keys += keys
        self.sizes += sizes
        self.pointers += pointers
        self.lengths += lengths
        self.offsets += offsets
        self.owners += [owner] * len(keys)

    def spans(self, *, most_objects: int, most_ranges: int) -> list[slice]:
        """Cut the batch into calls of at most ``most_objects`` objects and about ``most_ranges`` ranges.

        An object is never cut: one that alone has more ranges gets a call of its own.
        """
        widest = max((len(lengths) for lengths in self.lengths), default=1)
        return spans(len(self.keys), max(1, min(most_objects, most_ranges // max(1, widest))))

    def failed_owners(self, answers: Sequence[bool]) -> set[int]:
        """Return the tasks that an answer of False belongs to; ``answers`` has one entry an object."""
        return {owner for owner, answer in zip(self.owners, answers, strict=True) if not answer}


def spans(total: int, step: int) -> list[slice]:
    """Cut ``range(total)`` into consecutive slices of at most ``step``, in order."""
    return [slice(begin, min(begin + step, total)) for begin in range(0, total, step)]
