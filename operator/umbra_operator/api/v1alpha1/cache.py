"""The cache tier of one replica: the store's memory, and what the linker does with it."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from umbra_operator.api.base import ENGINE, LIVE, POD, Bytes, Cel, EditClass, Model, checked, edit, quantity_bytes


class KeyLayout(StrEnum):
    """How pages are named in the store."""

    AUTO = "Auto"
    PER_RANK = "PerRank"


class TouchMode(StrEnum):
    """Whether the store is told of prefixes that the device serves from its own memory."""

    AUTO = "Auto"
    OFF = "Off"


class Checkpoints(StrEnum):
    """Which checkpoints (KDA states) are stored; pages of KV always are."""

    ALL = "All"
    ADAPTIVE = "Adaptive"
    PROMPT_END = "PromptEnd"


class Switch(StrEnum):
    """On or off."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Hugepages(StrEnum):
    """Pages of the node's memory that the store's tier is made of."""

    NONE = "None"
    TWO_MIB = "2Mi"
    ONE_GIB = "1Gi"


MOST_STORE_SIZE = "128Ti"
"""Far above any node's memory; the linker takes no larger one."""
_AT_MOST = Cel(f"quantity(self).compareTo(quantity('{MOST_STORE_SIZE}')) <= 0", f"must be at most {MOST_STORE_SIZE}")


def _possible(size: str) -> str:
    """The API server looks at no object that was stored before the rule, so it is checked here again."""
    if quantity_bytes(size) > quantity_bytes(MOST_STORE_SIZE):
        raise ValueError(_AT_MOST.message)
    return size


StoreSize = Annotated[Bytes, AfterValidator(_possible), Field(json_schema_extra=checked(_AT_MOST))]
"""Bytes of a store's memory, at most ``MOST_STORE_SIZE``."""


class Dram(Model):
    """The store's host memory."""

    size: StoreSize
    """Bytes that the store may use on the node, for all ranks together; about 90 % holds pages (see watermarks)."""
    hugepages: Hugepages = Hugepages.NONE
    """Huge pages for the tier, requested from the node, which must have reserved them. None: ordinary pages."""
    numa_nodes: Annotated[
        list[Annotated[int, Field(ge=0, le=63)]],
        Field(max_length=16, json_schema_extra=edit(EditClass.POD, **{"x-kubernetes-list-type": "set"})),
    ] = []
    """NUMA nodes whose memory the tier is spread over. Empty: wherever the kernel puts it."""


class Watermarks(Model):
    """When the store evicts, in percent of its size."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel("self.highPercent > self.lowPercent", "highPercent must be greater than lowPercent"),
    )
    high_percent: Annotated[int, Field(ge=2, le=99)]
    """Eviction starts here."""
    low_percent: Annotated[int, Field(ge=1, le=98)]
    """Eviction ends here."""


class TouchPolicy(Model):
    """How the store learns of prefixes that the device serves from its own memory, and which look unused to it."""

    mode: TouchMode | None = None
    """Auto reads a little of each of their objects, which the store counts as a use. Off: never. Unset: Auto."""
    interval_seconds: Annotated[int | None, Field(ge=1, le=3600)] = None
    """A prefix is touched once in this time at most. Unset: 30."""


class CachePolicy(Model):
    """What the linker stores, under which names, and how it calls the store."""

    rules: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.rewriteMissing) || self.rewriteMissing == 'Disabled' || "
            "!has(self.touch) || !has(self.touch.mode) || self.touch.mode != 'Off'",
            "rewriteMissing needs touch: only a touch finds out what the store has lost",
        ),
    )
    key_layout: Annotated[KeyLayout | None, Field(json_schema_extra=ENGINE)] = None
    """Auto stores each page of MLA KV once for all ranks. PerRank stores it once per rank, as the stock linker does."""
    touch: TouchPolicy | None = None
    """How the store learns what the device serves."""
    checkpoints: Checkpoints | None = None
    """PromptEnd: those at the ends of prompts. Adaptive: as many more as the store can keep. Unset: Adaptive."""
    rewrite_missing: Switch | None = None
    """Whether what a touch did not find in the store is written again. Unset: Enabled."""
    rpc_parallelism: Annotated[int | None, Field(ge=1, le=32)] = None
    """Calls that a rank has under way to the store at once, for each of lookups, loads and offloads. Unset: 4."""
    chunk_pages: Annotated[int | None, Field(ge=1, le=65536)] = None
    """Pages that one call to the store carries at most. Unset: 1024."""
    offload_backpressure_percent: Annotated[int | None, Field(ge=1, le=100)] = None
    """Part of each device pool that pages waiting for the store may hold; beyond it they are not stored. Unset: 75."""
    lookup_deadline_milliseconds: Annotated[int | None, Field(ge=1, le=10000)] = None
    """How long requests wait for the store to say what it has; afterwards it is a miss. Unset: 50."""
    load_deadline_seconds: Annotated[int | None, Field(ge=1, le=600)] = None
    """How long a call of a load may stay unanswered before the store is killed and its requests fail. Unset: 10."""


class Cache(Model):
    """The cache tier of one replica."""

    dram: Annotated[Dram, Field(json_schema_extra=POD)]
    """The store's host memory."""
    watermarks: Annotated[Watermarks | None, Field(json_schema_extra=POD)] = None
    """When the store evicts. Unset: 90 and 85."""
    policy: Annotated[CachePolicy | None, Field(json_schema_extra=LIVE)] = None
    """What the linker stores, and how."""
