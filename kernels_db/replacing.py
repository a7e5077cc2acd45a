"""Writing a file that is replaced whole, or left as it was, and that is no log."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from kernels_db import sqlite
from kernels_db.compression import packing
from kernels_db.errors import LogError
from kernels_db.passwords import masked

_URL = re.compile(r"[A-Za-z][\w+.-]+:/")  # of a path, which has one / left of two


@contextmanager
def replaced(place: str | os.PathLike[str] | IO[str]) -> Iterator[IO[str]]:
    """A text file to write in the place of a path, packed if its name ends in ``.gz`` or ``.xz``; its
    directory is made. An open file is given back. Raises `LogError` where that is a
    database, a file of one, or a URL, or cannot be written, and `BrokenPipeError` for a pipe that nobody
    reads any more."""
    if not isinstance(place, (str, os.PathLike)):
        yield place
        return
    path = Path(place)
    # A link stays one: that of the standard output belongs to the system.
    home = path.resolve() if path.is_file() else path
    for file in {path, home}:
        _refuse_database(file)
    if _URL.match(str(path)):
        raise LogError(f"{masked(str(path))} is a URL, and what is written is a file; give its path")
    sqlite.make_directory(path)
    # A pipe or a terminal can only be written to, not replaced.
    plain = not path.exists() or path.is_file()
    part = home.with_name(f".{home.name}.{os.getpid()}.part") if plain else path
    try:
        with part.open("wb") as f, packing(path, f) as text:
            yield text
        if plain:
            part.replace(home)
    except BrokenPipeError:  # as of any program before `head`
        raise
    except OSError as err:
        raise LogError(f"cannot write {path}: {err.strerror}; choose another file") from None
    finally:
        if plain:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _refuse_database(file: Path) -> None:
    """Raises `LogError` if a file of a database has this name, be the file there or not."""
    for suffix in ("", *sqlite.COMPANIONS):
        name = file.name.removesuffix(suffix)
        if name and file.name.endswith(suffix) and sqlite.database_exists(file.with_name(name)):
            what = f"a file of the database {file.with_name(name)}" if suffix else "a database"
            raise LogError(f"{file} is {what}, which would be overwritten; choose another file")
