"""Which tree core a rank gets."""

from __future__ import annotations

import logging
import os
from typing import Any

from rank import Rank, cache_parameters, make_cache, make_pools, publish
from sglang.srt.mem_cache.unified_cache.components import ComponentType


def built(rank: Rank) -> dict[str, Any]:
    """Build a cache without a linker and say which core it has and what the linker's hooks logged about it."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("umbra_linker").addHandler(handler)
    arguments = publish(rank, None)
    cache = make_cache(rank, make_pools(rank, tokens=1024, states=8), arguments)
    return {"backend": cache._tree_core_backend, "core": type(cache.tree_core).__name__, "log": lines}


def asked_again(rank: Rank) -> str:
    """Settle on a core, then let this rank's toolchain fail before SGLang asks about it again to build the core."""
    from sglang.srt.mem_cache.unified_cache import tree_core_registry

    publish(rank, None)
    pools = make_pools(rank, tokens=1024, states=8)
    params = cache_parameters(rank, pools)
    params.tree_components = (ComponentType.FULL, ComponentType.MAMBA)
    settled = tree_core_registry.select_tree_core_backend(params)
    if rank.rank == 0:
        os.environ["SGLANG_RUST_BUILD_MODE"] = "force"
    return tree_core_registry.resolve_tree_core_backend(settled, params)
