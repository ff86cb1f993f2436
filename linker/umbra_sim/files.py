"""Opening traces: plain, gz, xz or zst, told apart by their first bytes and not by their names."""

from __future__ import annotations

import gzip
import io
import lzma
from pathlib import Path
from typing import IO, Any, cast

from umbra_sim.errors import InputError

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"


class DamagedError(Exception):
    """A compressed file that cannot be unpacked."""


def open_trace(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed on the way.

    Raises:
        InputError: when it does not exist, or is zst and the package for it is not installed.
    """
    try:
        with path.open("rb") as file:
            head = file.read(6)
        if head.startswith(_GZIP):
            return cast("IO[bytes]", gzip.open(path, "rb"))
        if head.startswith(_XZ):
            return lzma.open(path, "rb")
        if head.startswith(_ZSTD):
            return _zstd(path)
        return path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _zstd(path: Path) -> IO[bytes]:
    try:
        import zstandard  # noqa: PLC0415 - a trace in another form needs no such package
    except ImportError as error:
        raise InputError(f"{path} is zst: install the Python package zstandard, or give it as xz or gz") from error
    return io.BufferedReader(_Zstd(zstandard.open(path, "rb"), zstandard.ZstdError), 1 << 17)


class _Zstd(io.RawIOBase):
    """What is packed; damage is told in a way that does not need the package to be known."""

    def __init__(self, source: IO[bytes], damage: type[Exception]) -> None:
        self._source = source
        self._damage = damage

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            content = self._source.read(len(buffer))
        except self._damage as error:
            raise DamagedError(str(error)) from error
        buffer[: len(content)] = content
        return len(content)
