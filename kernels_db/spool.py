"""Turns a source that can be read only once into a file that can be read again."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels_db.compression import GZIP, XZ
from kernels_db.encoding import HEAD, foreign
from kernels_db.errors import LogError
from kernels_db.opening import TO_READ, WAITS_NOT, is_named_pipe
from kernels_db.sqlite import MAGIC
from kernels_db.temporary import temporary_folder

# Most bytes and lines of a pipe, so that an endless one cannot fill a disk.
MAX_BYTES, MAX_LINES = 4 << 30, 20_000_000
# Seconds that a named pipe may be without a writer, and between two looks.
WRITER_S, LOOK_S = 5.0, 0.02
# First bytes of sources that are no text.
BINARY = (MAGIC, GZIP, XZ)
# Bytes read at a time.
PIECE = 1 << 20


@contextmanager
def as_file(path: Path) -> Iterator[Path]:
    """``path`` itself, or for a pipe or device a temporary copy, because a source is inspected before it is
    read. Raises `LogError`; errors about the copy name ``path``."""
    if not _is_stream(path):
        yield path
        return
    with temporary_folder() as folder:
        copy = folder / path.name
        try:
            _copy(path, copy)
        except OSError as err:
            why = err.strerror or err
            raise LogError(f"cannot copy {path} to {folder}: {why}; give a file, or another TMPDIR") from None
        try:
            yield copy
        except LogError as err:
            raise LogError(str(err).replace(str(copy), str(path))) from None


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False  # the reader reports it
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _copy(path: Path, to: Path) -> None:
    size = lines = 0
    fd = os.open(path, TO_READ)
    with os.fdopen(fd, "rb", buffering=0) as source, to.open("wb") as sink:
        piece = _first(path, fd)
        while piece and len(piece) < len(MAGIC) and (more := source.read(PIECE)):
            piece += more
        binary = piece.startswith(BINARY)
        while piece:
            size, lines = size + len(piece), lines + piece.count(b"\n") * (not binary)
            if size > MAX_BYTES or lines > MAX_LINES:
                most = f"{MAX_BYTES >> 30} GB" if size > MAX_BYTES else f"{MAX_LINES:,} lines"
                raise LogError(f"{path} gives more than {most}; write it to a file, and give that")
            sink.write(piece)
            if size == len(piece) and not _may_be_a_log(piece):
                return  # whoever reads it will say what it is not
            piece = source.read(PIECE)


def _first(path: Path, fd: int) -> bytes:
    """The first bytes of a stream, which is waited for from now on. Raises `LogError` for a named pipe that
    nobody writes to."""
    until = time.monotonic() + WRITER_S
    named = is_named_pipe(path)
    while True:
        try:
            piece = os.read(fd, PIECE)
        except BlockingIOError:  # there is a writer
            os.set_blocking(fd, True)
            return os.read(fd, PIECE)
        if piece or not named:
            if WAITS_NOT:
                os.set_blocking(fd, True)
            return piece
        if time.monotonic() >= until:
            raise LogError(f"nobody writes to the pipe {path}; start what writes to it first, or give a file")
        time.sleep(LOOK_S)


def _may_be_a_log(head: bytes) -> bool:
    """Whether a stream begins as a log, an export or a table may, also in a foreign encoding."""
    text = head.lstrip()
    return not text or text.startswith((b"{", *BINARY)) or foreign(head[:HEAD]) is not None
