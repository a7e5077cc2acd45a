"""Puts a page in its place: whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.errors import ReportError
from autotune.results.written import Written
from kernels_db.errors import LogError
from kernels_db.replacing import in_place_of, refuse_database


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
    """Write a page in the place of the old one. What is no plain file, such as a pipe, is written to."""
    check(path)
    where = Path(path)
    data = text.encode("utf-8", "replace")
    try:
        if where.exists() and not where.is_file():
            where.write_bytes(data)
        else:
            with in_place_of(where.resolve()) as f:
                f.write(data)
    except BrokenPipeError:  # as in other programs before `head`
        raise
    except OSError as err:
        raise ReportError(
            f"the report cannot be written to {where}: {err.strerror or err}; choose another place with -o"
        ) from None
    return Written(where, tasks, trials, len(data))
