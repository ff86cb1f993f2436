"""UMBP's own recordings (``UMBP_WORKLOAD_TRACE_PATH``): puts and gets of objects, as one store or client saw them.

The file is the eight bytes UMBPTRCE, a version, and records of protobuf, each after its length; numbers of the envelope
are little-endian and have four bytes (ROCm/mori, umbp_workload.proto and workload_trace.cpp). A recording names
objects and not prompts, and what the device served is not in it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

MAGIC = b"UMBPTRCE"
_ENVELOPE, _SCHEMA, _NANOSECONDS = 1, 1, 1
_LARGEST_RECORD = 2 << 20
_KEY = re.compile(r"(?P<page>.+?)_(?:tp\d+_)?cp\d+_pp\d+_kv(?:_[kv])?")
"""A page of KV: tag, model and hash; then whose copy it is (umbra_linker.keys)."""
_GAP_NS = 100_000_000
"""Calls of one kind that follow one another faster belong to one request: a rank's chunks, and the ranks' stripes."""


class RecordingError(ValueError):
    """The file is no such recording, or is damaged; the message says where."""


@dataclass(frozen=True, slots=True)
class Event:
    """One object that was put or asked for."""

    at_ns: int
    operation: int
    """1: put, 2: get."""
    key: str


@dataclass(frozen=True, slots=True)
class Access:
    """Pages that were put, or asked for, together."""

    at: float
    """Seconds after the recording's beginning."""
    pages: tuple[str, ...]
    """Names, in the order in which they first occur."""


def events(file: IO[bytes]) -> Iterator[Event]:
    """Read a recording's events.

    The last record may be cut off: a store that is killed leaves it so.

    Raises:
        RecordingError: for anything else that is not as it must be, with the record's number.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise RecordingError("not a recording of UMBP")
    if (version := _number(file.read(4))) != _ENVELOPE:
        raise RecordingError(f"version {version} of the file's envelope is not known to this release")
    header = _fields(_record(file, 0) or b"", 0)
    if (header.get(1, 0), header.get(2, 0)) != (_SCHEMA, _NANOSECONDS):
        raise RecordingError("the header names another schema or unit of time")
    number = 1
    while (record := _record(file, number)) is not None:
        fields = _fields(record, number)
        at, operation, key = fields.get(1, 0), fields.get(4, 0), fields.get(5, b"")
        if not isinstance(at, int) or not isinstance(operation, int) or not isinstance(key, bytes) or not key:
            raise RecordingError(f"record {number} is no event")
        yield Event(at, operation, key.decode("utf-8", "replace"))
        number += 1


def accesses(recorded: Iterator[Event]) -> Iterator[Access]:
    """Group the KV pages of a recording; each page of a group once, whichever rank's copy it is."""
    pages: dict[str, None] = {}
    begin = latest = operation = 0
    for event in recorded:
        match = _KEY.fullmatch(event.key)
        if match is None:
            continue
        if pages and (event.operation != operation or event.at_ns - latest > _GAP_NS):
            yield Access(begin / 1e9, tuple(pages))
            pages = {}
        if not pages:
            begin, operation = event.at_ns, event.operation
        pages[match["page"]] = None
        latest = event.at_ns
    if pages:
        yield Access(begin / 1e9, tuple(pages))


def _record(file: IO[bytes], number: int) -> bytes | None:
    """Return the next record; None at the end, and for one that is cut off."""
    length = file.read(4)
    if len(length) < 4:
        return None
    size = _number(length)
    if size > _LARGEST_RECORD:
        raise RecordingError(f"record {number} claims {size} bytes, more than any has: the file is damaged")
    content = file.read(size)
    return content if len(content) == size else None


def _number(raw: bytes) -> int:
    return int(struct.unpack("<I", raw)[0]) if len(raw) == 4 else -1


def _fields(record: bytes, number: int) -> dict[int, int | bytes]:
    """The fields of a protobuf message by number: whole numbers and bytes, the last of each."""
    fields: dict[int, int | bytes] = {}
    at = 0
    try:
        while at < len(record):
            tag, at = _varint(record, at)
            value, at = _varint(record, at)
            if tag & 7 == 2:
                if at + value > len(record):
                    raise RecordingError(f"record {number} is damaged")
                fields[tag >> 3] = record[at : at + value]
                at += value
            elif tag & 7 == 0:
                fields[tag >> 3] = value
            else:
                raise RecordingError(f"record {number} has a field of a kind that recordings do not have")
    except IndexError:
        raise RecordingError(f"record {number} is damaged") from None
    return fields


def _varint(record: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
