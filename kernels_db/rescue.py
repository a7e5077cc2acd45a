"""What a log in use does when its file is moved, deleted or replaced.

SQLite would go on writing to a file that no path names any more. All that it holds is read through the
connection that is still open. It is put where the log was, or merged into a log that lies there by now. Where
neither can be, it becomes a file beside it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from kernels_db import sqlite
from kernels_db.errors import LogError
from kernels_db.temporary import TemporaryFilesError, temporary_place


def saved(con: sqlite3.Connection, path: Path) -> Path:
    """A new file with all that a connection reads, in the directory of ``path``, which is made, or else where
    temporary files go. Raises `LogError`."""
    refused: Exception | None = None
    for folder in _folders(path):
        copy = folder / f"{path.stem}-saved-{secrets.token_hex(8)}.db"
        try:
            sqlite.make_directory(folder / path.name)
            with closing(sqlite3.connect(copy)) as copied:
                con.backup(copied)
            _leave_whole(con)
            return copy
        except (LogError, OSError, sqlite3.Error) as err:
            refused = err
            with contextlib.suppress(OSError):
                copy.unlink(missing_ok=True)
    raise LogError(
        f"the log {path} was moved, deleted or replaced while it was in use, and what it held cannot be "
        f"saved: {refused}"
    )


def _folders(path: Path) -> Iterator[Path]:
    yield path.absolute().parent
    with contextlib.suppress(TemporaryFilesError):
        yield temporary_place()


def _leave_whole(con: sqlite3.Connection) -> None:
    """Write what waits beside the file into it. SQLite does not when it closes a file that was moved, and
    would take what waits for changes of whatever has the name now."""
    with contextlib.suppress(sqlite3.Error):  # another process reads it
        con.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def put_back(copy: Path, path: Path) -> bool:
    """Give a file the name ``path`` if nothing has it. Returns whether it has it now."""
    if os.path.lexists(path):
        return False
    forget_changes(path)  # of the file that is gone: SQLite would take them for this one's
    try:
        os.link(copy, path)  # unlike a rename it replaces nothing
        copy.unlink()
        return True
    except FileExistsError:
        return False
    except OSError:  # a file system without links, or another one
        with contextlib.suppress(OSError):
            if not os.path.lexists(path):
                os.rename(copy, path)
                return True
    return False


def forget_changes(path: Path) -> None:
    """Remove the files that SQLite puts beside a database."""
    for suffix in sqlite.COMPANIONS:
        with contextlib.suppress(OSError):
            path.with_name(path.name + suffix).unlink()
