"""Readers of the trace formats. Each yields one trace; ``read`` finds out which is needed.

* ``agentx``: recorded agent sessions, one JSON object a session: a file, a folder of them, or a tar of it.
* ``mooncake``: one JSON object a line: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.
* ``umbp``: a recording of UMBP's puts and gets.
* ``neutral``: Umbra's own, documented in docs/reference/trace-format.md.

What is unreadable is named by file and line. It ends the reading, or is left out and counted when the user said so.
"""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np

from umbra_linker.shape import PAGE_TOKENS
from umbra_sim.errors import InputError
from umbra_sim.files import DamagedError, open_trace
from umbra_sim.recording import MAGIC, RecordingError, accesses, events
from umbra_sim.trace import PageNumbers, Request, Session, Trace

MOONCAKE_BLOCK = 512
"""Tokens a block in Mooncake's traces (FAST'25 release)."""
_DAMAGED = (tarfile.ReadError, DamagedError)


class Format(StrEnum):
    """How a trace is written."""

    AUTO = "auto"
    AGENTX = "agentx"
    MOONCAKE = "mooncake"
    UMBP = "umbp"
    NEUTRAL = "neutral"


Progress = Callable[[int], None]
"""Is told how many sessions or lines were read."""


def read(path: Path, form: Format = Format.AUTO, *, skip_bad: bool = False, progress: Progress | None = None) -> Trace:
    """Read a trace.

    Args:
        path: a file, or a folder of session files.
        form: the format; AUTO looks at the beginning of the file.
        skip_bad: whether unreadable lines and sessions are left out and counted.
        progress: is told how many sessions or lines were read.

    Raises:
        InputError: for what cannot be read, with file and line.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path} is neither a file nor a folder: a trace is read more than once, so save it first")
    reading = _Reading(skip_bad, progress)
    try:
        if form is Format.AUTO:
            form = _detect(path)
        trace = _READERS[form](path, reading)
    except _DAMAGED as error:
        raise InputError(f"{path} is damaged or was cut off: {error}; fetch it again") from error
    except OSError as error:
        raise InputError(f"{path}: {error}") from error
    if not trace.requests:
        raise InputError(f"{path} holds no request" + (f"; {trace.skipped} were unreadable" if trace.skipped else ""))
    return trace


class _Bad(Exception):
    """One line or session that cannot be read; the message says why."""


_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, _Bad)
"""What a line or a session that is not as it must be ends with."""


class _Reading:
    """What all readers do alike: count, report, skip."""

    def __init__(self, skip_bad: bool, progress: Progress | None) -> None:
        self._skip_bad = skip_bad
        self._progress = progress
        self.skipped = 0
        self._read = 0

    def bad(self, where: str, error: Exception) -> None:
        """Leave it out, or end here."""
        if not self._skip_bad:
            raise InputError(f"{where}: {error}; --skip-bad leaves such lines out and counts them") from error
        self.skipped += 1

    def one(self) -> None:
        """Count one that was read."""
        self._read += 1
        if self._progress:
            self._progress(self._read)


def _detect(path: Path) -> Format:
    if path.is_dir():
        return Format.AGENTX
    with open_trace(path) as file:
        head = file.read(512)
        if head[257:262] == b"ustar":
            return Format.AGENTX
        if head.startswith(MAGIC):
            return Format.UMBP
        first = head.lstrip()[:1] and (head + file.readline(1 << 24)).lstrip().partition(b"\n")[0]
    if not first:
        raise InputError(f"{path} is empty")
    try:
        keys = json.loads(first).keys()
    except (ValueError, AttributeError, RecursionError):
        # A session that is spread over several lines.
        if first.startswith(b"{"):
            return Format.AGENTX
        raise InputError(f"{path}: not a known trace; say --format agentx, mooncake, umbp or neutral") from None
    if "umbra_trace" in keys:
        return Format.NEUTRAL
    return Format.AGENTX if "requests" in keys else Format.MOONCAKE


def _agentx(path: Path, reading: _Reading) -> Trace:
    sessions = []
    for where, text in _session_texts(path):
        try:
            sessions.append(_session(json.loads(text)))
        except _UNREADABLE as error:
            reading.bad(where, _explained(error))
        reading.one()
    return Trace(tuple(sessions), closed=True, skipped=reading.skipped)


def _session_texts(path: Path) -> Iterator[tuple[str, bytes]]:
    if path.is_dir():
        for file in sorted(item for item in path.rglob("*") if item.is_file() and ".json" in item.name):
            with open_trace(file) as stream:
                yield str(file), stream.read()
        return
    with open_trace(path) as stream:
        head = stream.read(512)
    with open_trace(path) as stream:
        if head[257:262] != b"ustar":
            yield str(path), stream.read()
            return
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() and ".json" in member.name else None
                if content is not None:
                    yield f"{path}:{member.name}", content.read()
        while stream.read(1 << 20):
            pass  # what a packed archive's own checksum says is found behind it


class _Member(tarfile.TarInfo):
    """A member. Only an empty block ends an archive; to tarfile, so does a header that is missing or damaged."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if len(buf) == tarfile.BLOCKSIZE and not any(buf):
                raise
            raise tarfile.ReadError(str(error)) from error


def _session(data: dict[str, Any]) -> Session:
    """Make one session of what was recorded. Subagents' requests stand where the subagent was called."""
    block = _whole(data, "block_size")
    if block % PAGE_TOKENS or not block:
        raise _Bad(f"block_size is {block}: it must be a multiple of {PAGE_TOKENS}")
    numbers = PageNumbers(block // PAGE_TOKENS)
    requests = []
    for item in _flat(data["requests"]):
        prompt = _whole(item, "in")
        if not prompt:
            continue
        blocks = _blocks(item["hash_ids"], prompt // block)
        requests.append(
            Request(
                at=_seconds(item.get("t", 0.0), "t"),
                think=_seconds(item.get("think_time", 0.0), "think_time"),
                prompt=prompt,
                output=_whole(item, "out"),
                pages=numbers.pages(blocks),
            )
        )
    return Session(str(data.get("id", "")), tuple(requests), numbers.count)


def _flat(requests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for item in requests:
        if "requests" in item:
            yield from _flat(item["requests"])
        else:
            yield item


def _mooncake(path: Path, reading: _Reading) -> Trace:
    with open_trace(path) as file:
        lines = ((number, line, MOONCAKE_BLOCK) for number, line in enumerate(file, 1) if line.strip())
        return _open_loop(path, lines, reading, milliseconds=True)


def _neutral(path: Path, reading: _Reading) -> Trace:
    """A header line, then one line a request; with ``session`` in each the loop is closed."""
    with open_trace(path) as file:
        try:
            header = json.loads(file.readline())
            version, block = header["umbra_trace"], _whole(header, "block_tokens")
        except (ValueError, KeyError, TypeError, _Bad) as error:
            raise InputError(f"{path} line 1: {_explained(error)}; see docs/reference/trace-format.md") from error
        if version != 1:
            raise InputError(f"{path} line 1: version {version} is not known to this release, which reads 1")
        if block % PAGE_TOKENS or not block:
            raise InputError(f"{path} line 1: block_tokens is {block}: it must be a multiple of {PAGE_TOKENS}")
        lines = ((number, line, block) for number, line in enumerate(file, 2) if line.strip())
        if header.get("closed_loop"):
            return _closed_loop(path, lines, reading)
        return _open_loop(path, lines, reading, milliseconds=False)


def _umbp(path: Path, reading: _Reading) -> Trace:
    """What was put or asked for together is one prompt. Names of pages are those of prefixes already."""
    numbers: dict[str, int] = {}
    requests = []
    with open_trace(path) as file:
        try:
            for access in accesses(events(file)):
                pages = np.array([numbers.setdefault(name, len(numbers)) for name in access.pages], dtype=np.int64)
                requests.append(Request(access.at, 0.0, len(pages) * PAGE_TOKENS + 1, 0, pages))
                reading.one()
        except RecordingError as error:
            raise InputError(f"{path}: {error}") from error
    session = Session(path.name, tuple(requests), len(numbers))
    return Trace((session,), closed=False, skipped=reading.skipped, below_device=True)


Lines = Iterator[tuple[int, bytes, int]]


def _open_loop(path: Path, lines: Lines, reading: _Reading, *, milliseconds: bool) -> Trace:
    requests: list[Request] = []
    numbers: PageNumbers | None = None
    for number, line, block in lines:
        numbers = numbers or PageNumbers(block // PAGE_TOKENS)
        try:
            item = json.loads(line)
            at = _seconds(item["timestamp"], "timestamp") / (1000 if milliseconds else 1)
            if request := _line_request(item, at, block, numbers):
                requests.append(request)
        except _UNREADABLE as error:
            reading.bad(f"{path} line {number}", _explained(error))
        reading.one()
    requests.sort(key=lambda request: request.at)
    pages = numbers.count if numbers else 0
    return Trace((Session(path.name, tuple(requests), pages),), closed=False, skipped=reading.skipped)


def _closed_loop(path: Path, lines: Lines, reading: _Reading) -> Trace:
    sessions: dict[str, tuple[PageNumbers, list[Request]]] = {}
    for number, line, block in lines:
        try:
            item = json.loads(line)
            numbers, requests = sessions.setdefault(str(item["session"]), (PageNumbers(block // PAGE_TOKENS), []))
            if request := _line_request(item, 0.0, block, numbers):
                requests.append(request)
        except _UNREADABLE as error:
            reading.bad(f"{path} line {number}", _explained(error))
        reading.one()
    made = tuple(Session(name, tuple(requests), numbers.count) for name, (numbers, requests) in sessions.items())
    return Trace(made, closed=True, skipped=reading.skipped)


def _line_request(item: dict[str, Any], at: float, block: int, numbers: PageNumbers) -> Request | None:
    prompt = _whole(item, "input_length")
    if not prompt:
        return None
    return Request(
        at=at,
        think=_seconds(item.get("think_seconds", 0.0), "think_seconds"),
        prompt=prompt,
        output=_whole(item, "output_length"),
        pages=numbers.pages(_blocks(item["hash_ids"], prompt // block)),
    )


def _blocks(raw: object, full: int) -> list[int]:
    """The prompt's full blocks; traces also name a last one that is not full."""
    if not isinstance(raw, list) or not all(type(block) is int for block in raw):
        raise _Bad("hash_ids is not a list of whole numbers")
    if len(raw) < full:
        raise _Bad(f"hash_ids has {len(raw)} blocks where the prompt fills {full}")
    return raw[:full]


def _whole(item: dict[str, Any], key: str) -> int:
    value = item[key]
    if type(value) is not int or not 0 <= value < 1 << 40:
        raise _Bad(f"{key} is {value!r}: it must be a whole number, at least 0")
    return value


def _seconds(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _Bad(f"{key} is {value!r}: it must be a number, at least 0")
    return float(value)


def _explained(error: Exception) -> Exception:
    if isinstance(error, KeyError):
        return _Bad(f"{error.args[0]} is missing")
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return _Bad(f"not JSON ({error})")
    if isinstance(error, RecursionError):
        return _Bad("objects stand in one another too deeply")
    if isinstance(error, TypeError | AttributeError):
        return _Bad("not a JSON object of the format")
    return error


_READERS: dict[Format, Callable[[Path, _Reading], Trace]] = {
    Format.AGENTX: _agentx,
    Format.MOONCAKE: _mooncake,
    Format.UMBP: _umbp,
    Format.NEUTRAL: _neutral,
}
