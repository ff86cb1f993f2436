"""Decode context parallelism (DCP): how ranks share the tokens of a page, and what cannot be shared. Pure.

With DCP of N ways, N ranks keep the MLA KV of a prompt between them, token by token in turn. The tree names a token by
its *widened* location, the same on all N ranks; location ``l`` is on rank ``l % N``, in row ``l // N`` of its pool. A
page of the tree has N times the tokens of a page of the pool, and each rank holds one pool page of it. Checkpoints are
named by slots, which are not widened.
"""

from __future__ import annotations

from dataclasses import dataclass

from .guard import LinkerRefusedError


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a cache consists of, as far as it decides whether its pages can be shared."""

    page: int
    """Tokens of a page of the tree."""
    rows: int
    """Tokens of a page of the pool of one rank."""
    chunk: int | None
    """Most tokens of a prompt that the engine computes at once; None without a bound."""
    sparse: bool
    """Whether a layer has sparse attention (DSA or NSA) with an index beside its KV."""
    windows: bool
    """Whether a layer has sliding-window attention."""
    draft: bool
    """Whether a draft model has a pool."""
    linear: bool
    """Whether the layers are KDA and plain MLA, the one kind that was tested."""


def require_shardable(shape: CacheShape, ways: int) -> None:
    """Check that ``ways`` ranks can share the pages of a cache.

    Args:
        shape: of the cache.
        ways: ranks that share the tokens of a page; more than 1.

    Raises:
        LinkerRefusedError: when they cannot; the sentence says why and what to do.
    """
    if shape.sparse:
        raise _refused(ways, "sparse attention (DSA or NSA), whose index is not divided as its KV is")
    if shape.windows:
        raise _refused(ways, "sliding-window layers, whose locations are not widened as those of the full layers are")
    if shape.draft:
        raise _refused(
            ways, "a draft model, whose KV every rank holds whole where its target's is divided",
            remedy="leave out --speculative-algorithm, or start with --dcp-size 1",
        )  # fmt: skip
    if not shape.linear:
        raise _refused(ways, "this model: only KDA with plain MLA layers was tested")
    if shape.page != ways * shape.rows:
        raise _refused(
            ways, f"a tree page of {shape.page} tokens: {ways} pages of {shape.rows}, one a rank, are not that"
        )
    if shape.chunk is not None and shape.chunk < shape.page:
        raise _refused(
            ways, f"--chunked-prefill-size {shape.chunk}: a page of the tree has {shape.page} tokens, and no prompt "
            "longer than a chunk could begin",
            remedy=f"set --chunked-prefill-size to at least {shape.page}",
        )  # fmt: skip


def _refused(ways: int, what: str, remedy: str = "start with --dcp-size 1") -> LinkerRefusedError:
    return LinkerRefusedError(f"the Umbra linker refuses to start: --dcp-size {ways} with {what}; {remedy}")
