"""Which device memory an object consists of: SGLang's own code, behind typed methods.

A *plan* is SGLang's: the objects of one pool (``keys``, ``entries_per_page`` of them a page) and the rows of the pool
(``locations``, one a page) that hold them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from .batch import ObjectBatch


class DevicePages:
    """Plans for the pools of one rank, and the ranges of memory behind them."""

    def __init__(self, linker: Any, object_sizes: Mapping[Any, Sequence[int]]) -> None:
        """Take SGLang's UMBP linker, and per pool the bytes of each object of a page."""
        self._linker = linker
        self._object_sizes = object_sizes

    def load_plans(self, transfers: list[Any]) -> list[Any]:
        """Plan the objects of one request's load."""
        plans: list[Any] = self._linker._build_load_plans([transfers])
        return plans

    def write_plans(self, transfers: list[Any]) -> list[Any]:
        """Plan the objects of one node. Waits until the device has told which rows they are."""
        slot = 0

        def materialize(indices: Any) -> Any:
            nonlocal slot
            slot += 1
            return self._linker._materialize_offload_indices(indices, slot - 1)

        plans: list[Any] = self._linker._build_load_plans([transfers], materialize_indices=materialize)
        return plans

    def layer_groups(self) -> list[list[int]]:
        """Return the layers that are read together, in the order in which the forward needs them."""
        groups: list[list[int]] = self._linker._layer_groups()
        return groups

    def add_layers(self, batches: dict[str, ObjectBatch], owner: int, plan: Any, layers: list[int]) -> None:
        """Add the ranges of ``layers`` of a plan's objects to the batch of its pool; nothing if it has none of them."""
        ranges = self._linker._layer_group_ranges(plan, layers)
        if ranges is not None:
            _batch_for(plan, batches).add(owner, plan.keys, self.sizes(plan), ranges)

    def add_whole(self, batches: dict[str, ObjectBatch], owner: int, plan: Any) -> None:
        """Add a plan's objects with all of their layers to the batch of its pool."""
        _batch_for(plan, batches).add(owner, plan.keys, self.sizes(plan), self._linker._all_layer_ranges(plan))

    def scratch(self, pool: Any) -> list[int]:
        """Return registered addresses that nobody reads, one for each object of a page of ``pool``.

        Row 0 of every pool is SGLang's: padded tokens write there. A short read of an object brings bytes of that
        pool's own type.
        """
        entry = self._linker.pools[pool]
        components = entry.buffer_meta[:1] if entry.packed else entry.buffer_meta
        return [int(layers[0][0]) for layers in components]

    def sizes(self, plan: Any) -> list[int]:
        """Return the bytes of each object of a plan."""
        sizes: list[int] = list(self._object_sizes[plan.name]) * len(plan.locations)
        return sizes


def only_pages(plan: Any, pages: Sequence[int]) -> Any:
    """Return the plan with only these of its pages, given as indices."""
    step = plan.entries_per_page
    keys = [key for page in pages for key in plan.keys[page * step : (page + 1) * step]]
    return dataclasses.replace(plan, keys=keys, locations=[plan.locations[page] for page in pages])


def _batch_for(plan: Any, batches: dict[str, ObjectBatch]) -> ObjectBatch:
    return batches.setdefault(plan.name.value, ObjectBatch(plan.name.value, plan.entries_per_page))
