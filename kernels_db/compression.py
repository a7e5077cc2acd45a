"""Reads and writes files of the exchange, packed or not. gzip and xz are known by their first bytes.

Packed files may come from anyone, and a few megabytes may unpack to terabytes. So the unpacked size is
limited, and so is the memory that xz may use.
"""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Protocol, cast

from kernels_db.encoding import HEAD, foreign, refusal
from kernels_db.errors import LogError
from kernels_db.opening import open_regular

# First bytes of packed files.
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
# Most unpacked bytes.
MAX_BYTES = 4 << 30
# Most unpacked bytes for each that is packed, once there are RATIO_FROM of them. Logs have about ten.
MAX_RATIO, RATIO_FROM = 300, 64 << 20
# Most memory of xz (bytes). Its highest level needs 65 MB.
MAX_WINDOW = 256 << 20
# Bytes read at a time.
PIECE = 64 << 10
# Level of packing.
LEVEL = 6


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def is_packed(head: bytes) -> bool:
    """Whether a file that begins so is packed."""
    return head.startswith((GZIP, XZ))


def opened(path: Path) -> io.BufferedReader:
    """A regular file opened for reading, unpacked. Reading raises `LogError` if packed data is torn, damaged
    or too large. Raises OSError if the file cannot be opened."""
    f = open_regular(path)
    head = f.peek(len(XZ))[: len(XZ)]
    if not is_packed(head):
        return f
    return io.BufferedReader(_Unpacked(f, path, gz=head.startswith(GZIP)), PIECE)


@contextmanager
def opened_text(path: Path) -> Iterator[io.BufferedReader]:
    """`opened`, for a text file. Raises `LogError` if it is not in UTF-8."""
    with opened(path) as f:
        encoding = foreign(f.peek(HEAD)[:HEAD])
        if encoding is not None:
            raise LogError(refusal(path, encoding))
        yield f


class _Unpacked(io.RawIOBase):
    """The content of one or more packed members in sequence."""

    def __init__(self, f: BinaryIO, path: Path, gz: bool) -> None:
        self._f, self._path, self._gz = f, path, gz
        self._unpacker = self._new()
        self._packed, self._sum = b"", 0

    def _new(self) -> _Unpacker:
        if self._gz:
            return cast(_Unpacker, zlib.decompressobj(wbits=31))
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_WINDOW)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        room = memoryview(cast(bytearray, buffer)).cast("B")
        try:
            data = self._next(len(room))
        except (zlib.error, lzma.LZMAError) as err:
            raise LogError(f"{self._path} cannot be unpacked ({err}); copy it again") from None
        self._sum += len(data)
        if self._sum > MAX_BYTES:
            raise LogError(f"{self._path} unpacks to more than {MAX_BYTES >> 30} GB; give parts of it")
        if self._sum > max(RATIO_FROM, MAX_RATIO * self._f.tell()):
            raise LogError(f"{self._path} unpacks to more than {MAX_RATIO} times its size, as no log does")
        room[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        while True:
            if self._unpacker.eof:
                self._packed = (self._unpacker.unused_data or self._f.read(PIECE)).lstrip(b"\0")  # padding
                if not self._packed:
                    return b""
                self._unpacker = self._new()
            data = self._unpacker.decompress(self._packed, most)
            self._packed = getattr(self._unpacker, "unconsumed_tail", b"")  # zlib's; xz keeps its own
            if data:
                return data
            if not self._packed and not self._unpacker.eof:
                self._packed = self._f.read(PIECE)
                if not self._packed:
                    raise LogError(f"{self._path} ends early: it was not copied whole; copy it again")

    def close(self) -> None:
        self._f.close()
        super().close()


@contextmanager
def packing(path: Path, f: BinaryIO) -> Iterator[IO[str]]:
    """A text file that writes to ``f``, packed by the name of ``path``: ``.gz``, ``.xz``, else not. The same
    text gives the same bytes."""
    made: BinaryIO = f
    if path.suffix == ".gz":
        made = cast(BinaryIO, gzip.GzipFile("", "wb", LEVEL, f, mtime=0))
    elif path.suffix == ".xz":
        made = cast(BinaryIO, lzma.LZMAFile(f, "wb", preset=LEVEL))
    text = io.TextIOWrapper(made, encoding="ascii", newline="\n")
    try:
        yield text
    finally:
        text.detach()
    if made is not f:
        made.close()
