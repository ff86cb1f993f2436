"""The linker's settings, as they stand under ``umbra`` in SGLang's ``linker_extra_config``.

Standard library only: the operator imports this module to render the same names that the engine parses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

Choice = TypeVar("Choice", bound=StrEnum)

SECTION = "umbra"
"""Key under which these settings stand in ``linker_extra_config``."""


class SettingsError(ValueError):
    """A setting that cannot be used; the message names the field and what it accepts."""


class KeyLayout(StrEnum):
    """How the objects in the store are named, and with that how many copies of a page exist."""

    AUTO = "Auto"
    """One copy of each MLA page for all tensor-parallel ranks wherever every rank holds the same bytes."""
    PER_RANK = "PerRank"
    """SGLang's own naming: every rank stores its own copy."""


class Checkpoints(StrEnum):
    """Which checkpoints are stored. KV pages always are."""

    ALL = "All"
    """Each one that the tree offers."""
    ADAPTIVE = "Adaptive"
    """Prompt ends, and as many chunk ends as the store keeps for half an hour."""
    PROMPT_END = "PromptEnd"
    """Prompt ends only."""


class Touch(StrEnum):
    """Whether the store is told of prefixes that the device serves from its own memory."""

    AUTO = "Auto"
    """Wherever the store can be told: by short reads, which the tested one counts as uses."""
    OFF = "Off"
    """Never: the store evicts what the device serves as if nobody used it."""


class Switch(StrEnum):
    """On or off."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"


MOST_CALLS = 32
"""Upper bound of ``rpc_parallelism``: a store answers with at most 32 threads, and every rank has its own calls."""
MOST_PAGES = 65536
"""Upper bound of ``chunk_pages``."""
MOST_LOOKUP_MILLISECONDS = 10_000
"""Upper bound of ``lookup_deadline_milliseconds``: all requests of a rank stand still while a lookup is waited for."""

MOST_TOUCH_SECONDS = 3600
"""Upper bound of ``touch_interval_seconds``."""

MOST_STORE_BYTES = 1 << 47
"""Upper bound of ``store_bytes``: the policy's arithmetic stays below 2**63."""

MOST_LOAD_SECONDS = 600
"""Upper bound of ``load_deadline_seconds``: every request of the engine waits for a load that has begun."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator may choose about the linker. Immutable; all fields have safe defaults."""

    key_layout: KeyLayout = KeyLayout.AUTO
    rpc_parallelism: int = 4
    """Calls to the store at the same time, for each of lookups, loads and offloads of a rank; 1 to ``MOST_CALLS``."""
    chunk_pages: int = 1024
    """Pages that one call carries at most; 1 to ``MOST_PAGES``. A page is never spread over two calls."""

    lookup_deadline_milliseconds: int = 50
    """How long the scheduler waits for a lookup, which is a miss afterwards; 1 to ``MOST_LOOKUP_MILLISECONDS``."""

    load_deadline_seconds: int = 10
    """How long a call of a load may stay unanswered before the store is killed; 1 to ``MOST_LOAD_SECONDS``."""

    offload_backpressure_percent: int = 75
    """Part of each device pool that nodes waiting for the store may hold, which cannot be evicted; 1 to 100."""

    checkpoints: Checkpoints = Checkpoints.ADAPTIVE

    touch: Touch = Touch.AUTO

    touch_interval_seconds: int = 30
    """A prefix is touched once in this time at most; 1 to ``MOST_TOUCH_SECONDS``."""

    rewrite_missing: Switch = Switch.ENABLED
    """Whether what a touch did not find in the store is written again."""

    store_bytes: int = 0
    """Capacity of the store, at most ``MOST_STORE_BYTES``; 0: not known, and ``Adaptive`` drops no chunk end."""

    live_file: str = "/run/umbra/live.json"
    """File of settings that change while the engine runs; without it nothing does."""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Settings:
        """Parse camelCase names. Absent names take their default.

        Raises:
            SettingsError: for an unknown name or a value that is not allowed.
        """
        defaults = cls().to_mapping()
        unknown = sorted(set(mapping) - set(defaults))
        if unknown:
            raise SettingsError(
                f"unknown linker setting {', '.join(map(repr, unknown))}: "
                f"use {', '.join(defaults)}, or remove it from linker_extra_config.{SECTION}"
            )
        given = defaults | dict(mapping)
        return cls(
            key_layout=_choice("keyLayout", given["keyLayout"], KeyLayout),
            rpc_parallelism=_whole("rpcParallelism", given["rpcParallelism"], MOST_CALLS),
            chunk_pages=_whole("chunkPages", given["chunkPages"], MOST_PAGES),
            lookup_deadline_milliseconds=_whole(
                "lookupDeadlineMilliseconds", given["lookupDeadlineMilliseconds"], MOST_LOOKUP_MILLISECONDS
            ),
            load_deadline_seconds=_whole("loadDeadlineSeconds", given["loadDeadlineSeconds"], MOST_LOAD_SECONDS),
            offload_backpressure_percent=_whole("offloadBackpressurePercent", given["offloadBackpressurePercent"], 100),
            checkpoints=_choice("checkpoints", given["checkpoints"], Checkpoints),
            touch=_choice("touch", given["touch"], Touch),
            touch_interval_seconds=_whole("touchIntervalSeconds", given["touchIntervalSeconds"], MOST_TOUCH_SECONDS),
            rewrite_missing=_choice("rewriteMissing", given["rewriteMissing"], Switch),
            store_bytes=_whole("storeBytes", given["storeBytes"], MOST_STORE_BYTES, least=0),
            live_file=_text("liveFile", given["liveFile"]),
        )

    def updated(self, live: Mapping[str, object]) -> Settings:
        """Return the settings with those of ``live`` that can change in a running engine.

        Other names are ignored: whoever wrote them may be newer.

        Raises:
            SettingsError: for a value that is not allowed.
        """
        present = self.to_mapping()
        known = {name: value for name, value in live.items() if name in present and name not in _FIXED}
        return self.from_mapping(present | known)

    def to_mapping(self) -> dict[str, object]:
        """Return the JSON form; ``from_mapping`` of it gives an equal object."""
        return {
            "keyLayout": str(self.key_layout),
            "rpcParallelism": self.rpc_parallelism,
            "chunkPages": self.chunk_pages,
            "lookupDeadlineMilliseconds": self.lookup_deadline_milliseconds,
            "loadDeadlineSeconds": self.load_deadline_seconds,
            "offloadBackpressurePercent": self.offload_backpressure_percent,
            "checkpoints": str(self.checkpoints),
            "touch": str(self.touch),
            "touchIntervalSeconds": self.touch_interval_seconds,
            "rewriteMissing": str(self.rewrite_missing),
            "storeBytes": self.store_bytes,
            "liveFile": self.live_file,
        }


_FIXED = ("keyLayout", "liveFile")
"""What an engine keeps for its whole life: the names of its objects, and where it looks."""


def _choice(name: str, raw: object, choices: type[Choice]) -> Choice:
    if isinstance(raw, str) and raw in [str(choice) for choice in choices]:
        return choices(raw)
    allowed = " or ".join(repr(str(choice)) for choice in choices)
    raise SettingsError(f"linker setting {name!r} is {raw!r}: set it to {allowed}")


def _text(name: str, raw: object) -> str:
    if isinstance(raw, str):
        return raw
    raise SettingsError(f"linker setting {name!r} is {raw!r}: set it to a text")


def _whole(name: str, raw: object, most: int, *, least: int = 1) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool) and least <= raw <= most:
        return raw
    raise SettingsError(f"linker setting {name!r} is {raw!r}: set it to a whole number from {least} to {most}")
