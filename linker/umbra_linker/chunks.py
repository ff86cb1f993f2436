"""Where a long prompt is cut: at the end of a page of the tree. Adapter to SGLang.

SGLang's scheduler cuts at pages of its own size. Under decode context parallelism the tree's page has several times the
tokens: a cut inside of it leaves no checkpoint at the chunk's end, and the page is allocated whole but counted in part.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def cutting_at_tree_pages(adder: type) -> type:
    """Return the subclass of SGLang's ``PrefillAdder`` that counts and cuts in pages of the tree."""

    class TreePageAdder(adder):  # type: ignore[misc]  # sglang is untyped
        tree_cache: Any

        def __init__(self, page_size: int, tree_cache: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(tree_cache.page_size, tree_cache, *arguments, **options)
            self._widened = tree_cache.page_size != page_size
            self._begin = 0
            """Where the chunk begins that is being cut."""

        def add_chunked_req(self, req: Any) -> Any:
            self._begin = req.prefix_len
            try:
                return super().add_chunked_req(req)
            finally:
                self._begin = 0

        def floor_chunked_tokens(self, trunc_len: int, remaining: int) -> int:
            """Return how many of ``trunc_len`` tokens a chunk that leaves some of ``remaining`` may have."""
            page: int = self.tree_cache.page_size
            to_a_page = (self._begin + trunc_len) // page * page - self._begin
            if self._widened and trunc_len < remaining and to_a_page > 0:
                return to_a_page
            # Where no page ends, SGLang's own grid keeps the checkpoints of the chunks to come.
            kept: int = super().floor_chunked_tokens(trunc_len, remaining)
            return kept

    return TreePageAdder
