"""Opening traces: plain, gz, xz or zst, told apart by their first bytes and not by their names.

The three are read alike: a packed file is one stream, or several that follow one another, and the file is whole only
where the last of them ends. Python's own readers differ there: some take what was cut off, or what follows the first
stream and is damaged, for the end of the file.
"""

from __future__ import annotations

import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from umbra_sim.errors import InputError

_GZIP, _XZ, _ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_GZIP_HEADER = 16 + zlib.MAX_WBITS
_READ = 1 << 13
"""Bytes unpacked in one go: what is packed well still does not become more than memory holds."""


class DamagedError(Exception):
    """A compressed file that cannot be unpacked, or not to its end."""


def open_trace(path: Path) -> IO[bytes]:
    """Open a file for reading, decompressed on the way.

    Raises:
        InputError: when it does not exist, or is zst and the package for it is not installed.
    """
    try:
        with path.open("rb") as file:
            head = file.read(6)
        if head.startswith(_GZIP):
            return _unpacked(path, lambda: zlib.decompressobj(_GZIP_HEADER), zlib.error)
        if head.startswith(_XZ):
            return _unpacked(path, lzma.LZMADecompressor, lzma.LZMAError)
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
    return _unpacked(path, zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)


class _Stream(Protocol):
    """What unpacks one stream."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


def _unpacked(path: Path, begin: Callable[[], _Stream], damage: type[Exception]) -> IO[bytes]:
    return io.BufferedReader(_Unpacked(path.open("rb"), begin, damage), 1 << 17)


class _Unpacked(io.RawIOBase):
    """What is packed; damage is told in a way that does not need the package to be known."""

    def __init__(self, source: IO[bytes], begin: Callable[[], _Stream], damage: type[Exception]) -> None:
        self._source = source
        self._begin = begin
        self._damage = damage
        self._stream = begin()
        self._content = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._source.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._content:
            packed = self._next_packed()
            if not packed:
                if not self._stream.eof:
                    raise DamagedError("its end is missing")
                return 0
            if self._stream.eof:
                self._stream = self._begin()
            try:
                self._content = memoryview(self._stream.decompress(packed))
            except self._damage as error:
                raise DamagedError(str(error)) from error
        count = min(len(buffer), len(self._content))
        buffer[:count] = self._content[:count]
        self._content = self._content[count:]
        return count

    def _next_packed(self) -> bytes:
        """Return what comes next: of the same stream, or from the beginning of another; nothing at the file's end."""
        if not self._stream.eof:
            return self._source.read(_READ)
        packed = self._stream.unused_data.lstrip(b"\0")
        while not packed and (block := self._source.read(_READ)):
            packed = block.lstrip(b"\0")  # gz and xz may be filled up with zeros
        return packed
