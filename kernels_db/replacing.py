"""Writes a file so that it is replaced whole or left as it was. A log is never replaced."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from kernels_db import sqlite
from kernels_db.compression import packing
from kernels_db.errors import LogError
from kernels_db.passwords import masked

# A URL that was taken for a path, which has only one / left.
_URL = re.compile(r"[A-Za-z][\w+.-]+:/")


@contextmanager
def replaced(place: str | os.PathLike[str] | IO[str]) -> Iterator[IO[str]]:
    """A text file to write in place of a path, packed if its name ends in ``.gz`` or ``.xz``. Its directory
    is made. An open file is returned as it is.

    Raises `LogError` for a database, a companion file of one, a URL, and what cannot be written; raises
    `BrokenPipeError` for a pipe without a reader."""
    if not isinstance(place, (str, os.PathLike)):
        yield place
        return
    path = Path(place)
    # A link stays a link, such as that of the standard output.
    home = path.resolve() if path.is_file() else path
    for file in {path, home}:
        refuse_database(file)
    if _URL.match(str(path)):
        raise LogError(f"{masked(str(path))} is a URL; give the path of a file")
    sqlite.make_directory(path)
    # A pipe or a terminal can be written to but not replaced.
    plain = not path.exists() or path.is_file()
    try:
        with in_place_of(home) if plain else path.open("wb") as f, packing(path, f) as text:
            yield text
    except BrokenPipeError:  # as in other programs before `head`
        raise
    except OSError as err:
        raise LogError(f"cannot write {path}: {err.strerror}; choose another file") from None


@contextmanager
def in_place_of(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets this name at the end of the block: whoever reads the old one meanwhile sees
    the old one, and what fails leaves it as it was. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as f:
            yield f
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_replaceable(path: Path) -> None:
    """Raises `LogError` where another file must not take the place of what is there, nor of what a link
    names: of a database, of a file of one, and of what is no regular file."""
    for file in (path, path.resolve()):
        refuse_database(file)
    if path.exists() and not path.is_file():
        raise LogError(f"{path} is no regular file and would be replaced; choose another file")


def refuse_database(file: Path) -> None:
    """Raises `LogError` if a file of a database has this name, whether or not the file exists."""
    for suffix in ("", *sqlite.COMPANIONS):
        name = file.name.removesuffix(suffix)
        if name and file.name.endswith(suffix) and sqlite.database_exists(file.with_name(name)):
            what = f"a file of the database {file.with_name(name)}" if suffix else "a database"
            raise LogError(f"{file} is {what} and would be overwritten; choose another file")
