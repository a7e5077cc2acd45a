"""Turns a source that can be read only once into a file that can be read again."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kernels_db.errors import LogError

# Most bytes of a pipe, so that an endless one cannot fill a disk.
MAX_BYTES = 4 << 30
# Bytes read at a time.
PIECE = 1 << 20


@contextmanager
def as_file(path: Path) -> Iterator[Path]:
    """``path`` itself, or for a pipe or device a temporary copy, because a source is inspected before it is
    read. Raises `LogError`; errors about the copy name ``path``."""
    if not _is_stream(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
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
    size = 0
    with path.open("rb") as source, to.open("wb") as sink:
        while piece := source.read(PIECE):
            size += len(piece)
            if size > MAX_BYTES:
                raise LogError(
                    f"{path} gives more than {MAX_BYTES >> 30} GB; write it to a file, and give that"
                )
            sink.write(piece)
