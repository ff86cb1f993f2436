"""Pages are shared by the ranks of a group only where that was tested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from umbra_linker.decode_context import CacheShape, require_shardable
from umbra_linker.guard import LinkerRefusedError

K3 = CacheShape(page=512, rows=64, chunk=8192, sparse=False, windows=False, draft=False, linear=True)


def test_linear_attention_with_mla_is_shared() -> None:
    require_shardable(K3, 8)
    require_shardable(replace(K3, chunk=512), 8)
    require_shardable(replace(K3, chunk=None), 8)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sparse": True}, r"with sparse attention \(DSA or NSA\).*; start with --dcp-size 1"),
        ({"windows": True}, "with sliding-window layers.*; start with --dcp-size 1"),
        ({"draft": True}, "with a draft model.*; leave out --speculative-algorithm, or start with --dcp-size 1"),
        ({"linear": False}, "only KDA with plain MLA"),
        ({"page": 500}, "a tree page of 500 tokens: 8 pages of 64, one a rank, are not that"),
        ({"page": 64}, "a tree page of 64 tokens: 8 pages of 64"),
        ({"rows": 32}, "a tree page of 512 tokens: 8 pages of 32"),
        ({"chunk": 448}, "--chunked-prefill-size 448.*; set --chunked-prefill-size to at least 512"),
    ],
)
def test_what_cannot_be_shared_is_refused_with_a_remedy(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(LinkerRefusedError, match=f"^the Umbra linker refuses to start: --dcp-size 8 .*{sentence}"):
        require_shardable(replace(K3, **change), 8)  # type: ignore[arg-type]
