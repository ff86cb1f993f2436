"""The linker's settings, as they stand under ``umbra`` in SGLang's ``linker_extra_config``.

Standard library only: the operator imports this module to render the same names that the engine parses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator may choose about the linker. Immutable; all fields have safe defaults."""

    key_layout: KeyLayout = KeyLayout.AUTO

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Settings:
        """Parse camelCase names. Absent names take their default.

        Raises:
            SettingsError: for an unknown name or a value that is not allowed.
        """
        unknown = sorted(set(mapping) - set(_FIELDS))
        if unknown:
            raise SettingsError(
                f"unknown linker setting {', '.join(map(repr, unknown))}: "
                f"use {', '.join(_FIELDS)}, or remove it from linker_extra_config.{SECTION}"
            )
        raw = mapping.get("keyLayout", KeyLayout.AUTO)
        try:
            layout = KeyLayout(raw) if isinstance(raw, str) else None
        except ValueError:
            layout = None
        if layout is None:
            allowed = " or ".join(repr(str(choice)) for choice in KeyLayout)
            raise SettingsError(f"linker setting 'keyLayout' is {raw!r}: set it to {allowed}")
        return cls(key_layout=layout)

    def to_mapping(self) -> dict[str, object]:
        """Return the JSON form; ``from_mapping`` of it gives an equal object."""
        return {"keyLayout": str(self.key_layout)}


_FIELDS = ("keyLayout",)
