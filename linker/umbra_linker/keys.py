"""Names of the objects in the store: which copies exist, and which rank may read which object.

Pure. A page of MLA KV is the same on every tensor-parallel rank, so one copy serves all of them; KDA (Mamba) states and
draft KV are sharded and stay per rank. The backend tag separates layouts and cache geometries: an engine restarted with
another layout, data type or parallelism misses the old objects instead of reading bytes of another shape. A draft model
is not in the tag but in the names of its own pages: without it, the target's pages are found as before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .settings import KeyLayout

KV_POOL = "kv"
"""SGLang's name of the pool of MLA KV pages."""

MAMBA_POOL = "mamba"
"""SGLang's name of the pool of KDA states."""

DRAFT_POOL = "draft"
"""SGLang's name of the pool of a draft model's KV."""

FORMAT = 1
"""Version of the naming below; raise it when an object's name or content changes meaning."""


@dataclass(frozen=True, slots=True)
class RankPosition:
    """Where one engine process stands in its parallel groups."""

    tensor: int
    tensor_size: int
    context: int = 0
    pipeline: int = 0
    decode_context_size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.tensor < self.tensor_size:
            raise ValueError(f"tensor rank {self.tensor} is outside a group of {self.tensor_size}")


@dataclass(frozen=True, slots=True)
class KeyScheme:
    """How one rank names its objects."""

    shared_kv: bool
    """Whether all tensor-parallel ranks use one copy of each KV page, and stripe the writing."""
    kv_suffix: str
    rank_suffix: str
    """Suffix of every other pool; equal to SGLang's own."""
    draft_suffix: str
    """The same with the draft model that the page is of."""
    tag: str

    def suffix(self, pool: str) -> str:
        """Return the suffix of an object of ``pool``: whose it is."""
        return {KV_POOL: self.kv_suffix, DRAFT_POOL: self.draft_suffix}.get(pool, self.rank_suffix)

    def describe(self, position: RankPosition) -> str:
        """Return the start-up log's line about this rank."""
        copies = "one copy for all tensor ranks" if self.shared_kv else "one copy per rank"
        return (
            f"key layout: kv {self.kv_suffix} ({copies}), other pools {self.rank_suffix}, "
            f"tag {self.tag}, rank {position.tensor} of {position.tensor_size}"
        )


def key_scheme(
    layout: KeyLayout,
    position: RankPosition,
    *,
    kv_replicated: bool,
    store_shared: bool,
    geometry: str,
    draft: str | None = None,
    parent_tag: str | None = None,
) -> KeyScheme:
    """Decide the names for one rank.

    Args:
        layout: the configured layout.
        position: the rank.
        kv_replicated: whether every tensor rank holds the same bytes of a KV page (a plain MLA pool does).
        store_shared: whether all ranks reach the same store; a tier private to a rank needs its own copy.
        geometry: digest of the shapes of the target's objects, see ``geometry_digest``.
        draft: digest of the draft model, see ``draft_digest``; None without one.
        parent_tag: a backend tag that the caller already uses; ours follows it.
    """
    once = layout is KeyLayout.AUTO and kv_replicated and store_shared and position.decode_context_size == 1
    group = f"cp{position.context}_pp{position.pipeline}"
    rank = f"tp{position.tensor}_{group}"
    tag = f"umbra{FORMAT}-{'once' if once else 'rank'}-{geometry}"
    return KeyScheme(
        shared_kv=once,
        kv_suffix=group if once else rank,
        rank_suffix=rank,
        draft_suffix=f"{rank}_{draft}" if draft else rank,
        tag=f"{parent_tag}-{tag}" if parent_tag else tag,
    )


def object_names(pool: str, components: int, *, packed: bool) -> tuple[str, ...]:
    """Return the last part of the names of a page's objects, as SGLang's own linker spells them.

    Args:
        pool: SGLang's name of the pool.
        components: buffers a page has in the device pool (K and V, or the parts of a KDA state).
        packed: whether the device pool stores all components of a page as one object.

    Raises:
        ValueError: for a layout that has no names.
    """
    if packed or components == 1:
        return ("temporal",) if pool == MAMBA_POOL else (pool,)
    if components == 2 and pool != MAMBA_POOL:
        return (f"{pool}_k", f"{pool}_v")
    raise ValueError(f"pool {pool} has {components} objects a page: the linker has names for one, or for K and V")


def object_keys(prefix: str, pages: Sequence[str], suffix: str, names: Sequence[str]) -> list[str]:
    """Return the keys of all objects of ``pages``, page by page.

    Args:
        prefix: tag and model, the same for every object of an engine.
        pages: hash of each page and its prefix.
        suffix: which rank's copy, see ``KeyScheme.suffix``.
        names: see ``object_names``.
    """
    ends = [f"_{suffix}_{name}" for name in names]
    return [f"{prefix}_{page}{end}" for page in pages for end in ends]


def geometry_digest(
    object_bytes: Mapping[str, Sequence[int]], data_types: Mapping[str, str], *, page_size: int, tensor_size: int
) -> str:
    """Return 8 hex digits over what gives an object its shape.

    Args:
        object_bytes: per pool, the size in bytes of each object of a page.
        data_types: per pool, the element types.
        page_size: tokens a page.
        tensor_size: ranks that share a sharded state.
    """
    pools = sorted((name, tuple(sizes), data_types.get(name, "")) for name, sizes in object_bytes.items())
    return hashlib.sha256(repr((pools, page_size, tensor_size)).encode()).hexdigest()[:8]


def draft_digest(model: str | None, object_bytes: Sequence[int], data_types: str) -> str:
    """Return 8 hex digits over what a draft model's pages depend on besides the target.

    Args:
        model: path of the draft model, as the engine was given it.
        object_bytes: the size in bytes of each object of a page.
        data_types: the element types.
    """
    return hashlib.sha256(repr((model, tuple(object_bytes), data_types)).encode()).hexdigest()[:8]
