"""Files that SQLite has open in this process, and their first bytes.

A process that closes a file gives up all of its POSIX locks on it, those of its other descriptors too. So a
file that SQLite has open must not be opened beside it. Else another process takes the log for one that nobody
uses, and removes what is written ahead of it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from pathlib import Path
from typing import Any

File = tuple[int, int]  # device and number

_guard = threading.RLock()  # no file is looked into while SQLite opens it
_open: Counter[File] = Counter()


class Connection(sqlite3.Connection):
    """A connection that is counted until it is closed."""

    _file: File | None = None

    def close(self) -> None:
        super().close()
        self._forget()

    def __del__(self) -> None:
        self._forget()

    def count(self, path: Path) -> None:
        """Count this connection to a file."""
        self._file = file_of(path)
        if self._file is not None:
            _open[self._file] += 1

    def _forget(self) -> None:
        with _guard:
            if self._file is not None:
                _open[self._file] -= 1
                if not _open[self._file]:
                    del _open[self._file]
                self._file = None


def connect(path: Path, uri: str, **how: Any) -> Connection:
    """`sqlite3.connect` for the file ``path``, which ``uri`` names. Raises sqlite3.Error."""
    with _guard:
        con = sqlite3.connect(uri, uri=True, factory=Connection, **how)
        con.count(path)
    return con


def first_bytes(path: Path, number: int) -> bytes | None:
    """The first bytes of a file; None where SQLite has it open here, so that it is a database. Raises
    OSError."""
    with _guard:
        if _open[file_of(path) or (0, 0)] > 0:
            return None
        with path.open("rb") as f:
            return f.read(number)


def file_of(path: Path) -> File | None:
    """Which file a path names; None if it names none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _forked() -> None:
    """In a child of a fork: no other thread is there to give the guard back."""
    global _guard
    _guard = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
