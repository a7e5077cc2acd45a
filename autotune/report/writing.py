"""Puts a page in its place: whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from autotune.errors import ReportError
from autotune.results.written import Written
from kernels_db.errors import LogError
from kernels_db.replacing import refuse_database


def check(path: str | os.PathLike[str]) -> None:
    """Raise `ReportError` where no file can be: before a log is read, which takes longer."""
    where = Path(path)
    if where.is_dir():
        raise ReportError(f"the report cannot be written to {where}: it is a directory; give a file in it")
    if not where.parent.is_dir():
        what = "is no directory" if where.parent.exists() else "does not exist"
        raise ReportError(
            f"the report cannot be written to {where}: {where.parent} {what}; make the directory first, or "
            "choose another"
        )
    try:
        for file in {where, where.resolve()}:
            refuse_database(file)
    except LogError as err:
        raise ReportError(str(err)) from None


def write(path: str | os.PathLike[str], text: str, tasks: int, trials: int) -> Written:
    """Write a page beside its place, and move it there: whoever reads the old one meanwhile sees the old one.
    What is no plain file, such as a pipe, is written to."""
    check(path)
    where = Path(path)
    data = text.encode("utf-8", "replace")
    try:
        if where.exists() and not where.is_file():
            where.write_bytes(data)
        else:
            _replace(where.resolve(), data)
    except BrokenPipeError:  # as in other programs before `head`
        raise
    except OSError as err:
        raise ReportError(
            f"the report cannot be written to {where}: {err.strerror or err}; choose another place with -o"
        ) from None
    return Written(where, tasks, trials, len(data))


def _replace(where: Path, data: bytes) -> None:
    handle, part = tempfile.mkstemp(prefix=f".{where.name}.", suffix=".part", dir=where.parent)
    try:
        with os.fdopen(handle, "wb") as f:
            f.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(part, 0o666 & ~mask)  # as any new file; those of mkstemp are for their owner alone
        os.replace(part, where)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)
