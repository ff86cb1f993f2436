"""A trace as the replay sees it: requests whose prompts are rows of pages.

Every reader makes this, so the replay knows no file format. A page has 64 tokens, or more where the ranks of an engine
share each context (``Trace.in_pages_of``); its number stands for the page and
everything before it, so two prompts share a prefix of n pages exactly when their first n numbers are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from umbra_linker.shape import PAGE_TOKENS

Pages = npt.NDArray[np.int64]
"""Numbers of pages, in the order of the prompt."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    at: float
    """Seconds after the trace's beginning; only an open loop looks at it."""
    think: float
    """Seconds that the user waited before it; only a closed loop looks at it."""
    prompt: int
    """Tokens of the prompt, positive."""
    output: int
    """Tokens of the answer."""
    pages: Pages
    """The prompt's full blocks, as pages; a last part of a block is no page, as nobody else can share it."""


@dataclass(frozen=True, slots=True)
class Session:
    """Requests that follow one another."""

    name: str
    requests: tuple[Request, ...]
    page_numbers: int
    """Page numbers are below this."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All that one file or folder holds."""

    sessions: tuple[Session, ...]
    """Sessions share no pages. An open loop has exactly one session."""
    closed: bool
    """Whether users wait for an answer before they ask again; otherwise the requests come when the trace says."""
    skipped: int = 0
    """Unreadable lines or sessions that were left out."""
    below_device: bool = False
    """Whether it was recorded at the store, so that what the device served is missing in it."""

    page_tokens: int = PAGE_TOKENS

    @property
    def requests(self) -> int:
        """Number of requests."""
        return sum(len(session.requests) for session in self.sessions)

    def in_pages_of(self, tokens: int) -> Trace:
        """Return the trace in longer pages; a last part of one is no page.

        Args:
            tokens: of a page, a multiple of ``page_tokens``.
        """
        if tokens == self.page_tokens:
            return self
        times = tokens // self.page_tokens

        def longer(request: Request) -> Request:
            if self.below_device:  # what is recorded is a page already, of whatever length
                return replace(request, prompt=len(request.pages) * tokens + 1)
            # The number of its last part names a long page, as it stands for everything before it.
            return replace(request, pages=request.pages[times - 1 :: times])

        sessions = [replace(each, requests=tuple(map(longer, each.requests))) for each in self.sessions]
        return replace(self, sessions=tuple(sessions), page_tokens=tokens)


class PageNumbers:
    """Numbers pages so that equal numbers mean equal prefixes, whatever the trace's own block numbers mean."""

    def __init__(self, block_pages: int) -> None:
        """Take how many pages one block of the trace has."""
        self._block_pages = block_pages
        self._known: dict[tuple[int, int], int] = {}
        self._blocks = 0
        self._last: tuple[list[int], list[int]] = ([], [])

    @property
    def count(self) -> int:
        """How many pages were numbered."""
        return self._blocks * self._block_pages

    def pages(self, blocks: Sequence[int]) -> Pages:
        """Return the pages of a prompt made of ``blocks``."""
        # Most prompts continue the one before, so what both begin with is found by one comparison of lists.
        before, numbers = self._last
        same = _common(before, blocks)
        numbers = numbers[:same]
        parent = numbers[-1] if numbers else -1
        for block in blocks[same:]:
            number = self._known.setdefault((parent, block), self._blocks)
            if number == self._blocks:
                self._blocks += 1
            numbers.append(number)
            parent = number
        self._last = (list(blocks), numbers)
        first = np.array(numbers, dtype=np.int64) * self._block_pages
        return np.repeat(first, self._block_pages) + np.tile(np.arange(self._block_pages), len(numbers))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
