"""Where a long prompt is cut: at the end of a page of the tree. Adapter to SGLang.

SGLang's scheduler cuts at pages of its own size. Under decode context parallelism the tree's page has several times the
tokens: a cut inside of it leaves no checkpoint at the chunk's end, and the page is allocated whole but counted in part.
"""

from __future__ import annotations

import functools
import math
from typing import Any


@functools.cache
def cutting_at_tree_pages(adder: type) -> type:
    """Return the subclass of SGLang's ``PrefillAdder`` that counts and cuts in pages of the tree."""

    class TreePageAdder(adder):  # type: ignore[misc]  # sglang is untyped
        mamba_chunk_grid: int

        def __init__(self, page_size: int, tree_cache: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(tree_cache.page_size, tree_cache, *arguments, **options)
            if tree_cache.page_size != page_size:
                # The first chunk of a prompt is cut at a page; each one after it has a multiple of this.
                self.mamba_chunk_grid = math.lcm(self.mamba_chunk_grid, tree_cache.page_size)

    return TreePageAdder
