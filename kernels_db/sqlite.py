"""A log in a SQLite file: connections to it, and errors in plain words.

The store (through SQLAlchemy) and `lookup` share it, so it uses the standard library only.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kernels_db import refusals
from kernels_db.compat import check_schema, older
from kernels_db.errors import LogError
from kernels_db.locked_files import connect as connect_to
from kernels_db.locked_files import first_bytes
from kernels_db.passwords import masked

log = logging.getLogger(__name__)

# First bytes of a SQLite file.
MAGIC = b"SQLite format 3\0"
HEAD = 18  # bytes that tell the size of a page too
# Suffixes of the files that SQLite puts beside a database.
COMPANIONS = ("-wal", "-shm", "-journal")
# SQL: views, triggers and virtual tables, which run code when a log is read.
_LIVELY = """
    SELECT name FROM sqlite_master
    WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1"""
# SQL: computed or hidden columns, and indexes of computed values. A CHECK or a DEFAULT is evaluated only when
# something is written, and MAX_VALUE limits what it may make.
_COMPUTED = """
    SELECT s.name FROM sqlite_master AS s, pragma_table_xinfo(s.name) AS c WHERE s.type = 'table' AND c.hidden
    UNION ALL
    SELECT s.name FROM sqlite_master AS s, pragma_index_xinfo(s.name) AS c
    WHERE s.type = 'index' AND c.cid = -2
    LIMIT 1"""
# Largest row and value (bytes), above all that `exchange` accepts.
MAX_VALUE = 2 << 20
# Errors of SQLite. Its messages quote the file; if that is damaged, Python raises UnicodeDecodeError.
FAULTS = (sqlite3.Error, UnicodeDecodeError)
# Errors of SQLite where it cannot make a file beside the database.
NO_ROOM = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)
# What SQLite was about in an error of reading or writing that a network share gives: its locks.
_LOCKS = re.compile("LOCK|SHM|PROTOCOL")


@dataclass(frozen=True)
class SqliteFile:
    """The `kernels_db.place.LogPlace` of a file."""

    path: Path

    @staticmethod
    def named(text: str) -> SqliteFile:
        """The file that a path or a ``sqlite:///path`` URL names. Raises `LogError`."""
        name, shown = text.removeprefix("sqlite:///"), masked(text)
        if not name or "\0" in name:
            raise LogError(f"{shown!r} is not a file name; give the path of a tuning log, such as tuning.db")
        if "://" in name or name == ":memory:":
            raise LogError(
                f"{shown!r} is not a file; a log is a path, sqlite:///PATH or "
                f"postgresql+psycopg://USER@HOST/DATABASE"
            )
        return SqliteFile(Path(name))

    def __str__(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        try:
            return self.path.exists()
        except OSError as err:
            raise explain(err, self.path) from None

    def version(self) -> tuple[tuple[int, ...] | None, ...]:
        """Of the file and of what is written ahead of it: the number, the size and the time of change."""
        found: list[tuple[int, ...] | None] = []
        ahead = f"{os.path.realpath(self.path)}-wal"  # beside what a link names
        for path in (str(self.path), ahead):
            try:
                s = os.stat(path)
            except (OSError, ValueError):
                found.append(None)
            else:
                found.append((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns))
        return tuple(found)

    def reader(self, timeout_s: float) -> SqliteReader | None:
        con = open_reader(self.path, timeout_s=timeout_s)
        return None if con is None else SqliteReader(con)

    def explain(self, err: BaseException, timeout_s: float | None = None) -> LogError:
        return explain(err, self.path, timeout_s)


class SqliteReader:
    """The `kernels_db.place.Reader` of a file."""

    def __init__(self, con: sqlite3.Connection) -> None:
        con.row_factory = sqlite3.Row
        self._con = con
        con.execute("BEGIN")  # one snapshot for all queries

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[Mapping[str, Any]]:
        return self._con.execute(sql, parameters).fetchall()

    def close(self) -> None:
        self._con.close()


def connect(path: Path, *, read_only: bool, timeout_s: float) -> sqlite3.Connection:
    """A connection in autocommit mode with foreign keys on. The file is created unless ``read_only``. Raises
    sqlite3.Error, which `explain` puts into words."""
    uri = path.absolute().as_uri() + ("?mode=ro" if read_only else "?mode=rwc")
    con = _open(path, uri, timeout_s)
    try:
        return _ready(con, path, uri, read_only=read_only, timeout_s=timeout_s)
    except BaseException:
        con.close()
        raise


def _ready(
    con: sqlite3.Connection, path: Path, uri: str, *, read_only: bool, timeout_s: float
) -> sqlite3.Connection:
    if not read_only:
        # In WAL mode NORMAL loses nothing if a process is killed, because the kernel has the pages. A power
        # cut may lose the last commits but never damages the file.
        con.execute("PRAGMA synchronous = NORMAL")
        con.execute("PRAGMA cache_size = -65536")  # KiB: the indexes of a large log are walked at random
        return con
    try:
        con.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as err:
        if err.sqlite_errorcode & 0xFF not in NO_ROOM:
            raise
        # A WAL database in a read-only directory, or on a full disk, has no place for its -shm file. Without
        # a -wal file nobody writes to it, so the file can be read as it is.
        con.close()
        if _has_wal(path):
            raise
        con = _open(path, uri + "&immutable=1", timeout_s)
    return con


def write_back_after(con: sqlite3.Connection, pages: int) -> None:
    """Let changes of this connection wait beside the file up to ``pages`` pages. A page that changes again
    meanwhile is written back once."""
    con.execute(f"PRAGMA wal_autocheckpoint = {pages}")


def _has_wal(path: Path) -> bool:
    """Whether changes wait beside the file, as while a process has it open for writing."""
    wal = path.with_name(path.name + "-wal")
    return wal.exists() and wal.stat().st_size > 0


def _ends_within_page(path: Path, head: bytes) -> bool:
    (page,) = struct.unpack(">H", head[16:18].rjust(2, b"\0"))
    return path.stat().st_size % (65536 if page == 1 else max(page, 512)) != 0


def _open(path: Path, uri: str, timeout_s: float) -> sqlite3.Connection:
    con = connect_to(
        path, uri, timeout=timeout_s, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    con.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
    con.execute("PRAGMA foreign_keys = ON")
    con.execute("PRAGMA trusted_schema = OFF")  # a log may come from anywhere
    return con


def inspect(con: sqlite3.Connection, path: Path) -> Literal["new", "current", "older"]:
    """Whose database this is: `compat.check_schema` of its marks. Raises `LogError`."""
    with _snapshot(con):
        return _inspect(con, path)


@contextmanager
def _snapshot(con: sqlite3.Connection) -> Iterator[None]:
    """All that is read is of one moment: another process may make the log meanwhile."""
    inside = con.in_transaction
    if not inside:
        con.execute("BEGIN")
    try:
        yield
    finally:
        if not inside:
            con.rollback()


def _inspect(con: sqlite3.Connection, path: Path) -> Literal["new", "current", "older"]:
    (application_id,) = con.execute("PRAGMA application_id").fetchone()
    (version,) = con.execute("PRAGMA user_version").fetchone()
    (tables,) = con.execute("SELECT count(*) FROM sqlite_master").fetchone()
    state = check_schema(str(path), application_id, version, tables == 0)
    if con.execute(_LIVELY).fetchone() is not None:
        raise LogError(
            f"{path} has views, triggers or virtual tables, which run when it is read, and which no tuning "
            f"log has; do not trust it. Ask for an export instead"
        )
    if con.execute(_COMPUTED).fetchone() is not None:
        raise LogError(
            f"{path} has columns or indexes that are computed when it is read, and which no tuning log has; "
            f"do not trust it. Ask for an export instead"
        )
    return state


def open_reader(path: Path, *, timeout_s: float) -> sqlite3.Connection | None:
    """A read-only connection to a log of the current schema; None for an empty one.

    Raises `LogError` for everything else, also for a missing file."""
    check_file(path)
    if not path.exists():
        raise LogError(f"there is no tuning log at {path}; tune something first, or give its path with --db")
    with _explained(path, timeout_s), ExitStack() as opened:
        con = connect(path, read_only=True, timeout_s=timeout_s)
        opened.callback(con.close)
        state = inspect(con, path)
        if state == "current":
            opened.pop_all()
            return con
    if state == "older":
        raise older(path)
    return None


def is_older(path: Path, timeout_s: float) -> bool:
    """Whether a log has a schema that this version upgrades. Raises `LogError`."""
    check_file(path)
    with _explained(path, timeout_s), closing(connect(path, read_only=True, timeout_s=timeout_s)) as con:
        return inspect(con, path) == "older"


def copy(path: Path, to: Path, timeout_s: float) -> None:
    """Copy a database while others may write to it. Raises `LogError`."""
    with (
        _explained(path, timeout_s),
        closing(connect(path, read_only=True, timeout_s=timeout_s)) as con,
        closing(sqlite3.connect(to)) as copied,
    ):
        con.backup(copied)


@contextmanager
def _explained(path: Path, timeout_s: float) -> Iterator[None]:
    """Raise errors of SQLite and of the operating system as `LogError`."""
    try:
        yield
    except (*FAULTS, OSError) as err:
        raise explain(err, path, timeout_s) from None


def check_file(path: Path) -> None:
    """Raises `LogError` if ``path`` is something that SQLite could not open or would take for an empty
    database."""
    try:
        if path.is_dir():
            raise LogError(
                f"{path} is a directory; give the path of a file in it, for example {path / 'tuning.db'}"
            )
        if not path.exists():
            return
        if not path.is_file():
            raise LogError(f"{path} is not a regular file; give the path of a tuning log")
        for beside in (Path(os.path.realpath(path) + suffix) for suffix in COMPANIONS):
            if beside.exists() and not beside.is_file():  # SQLite would wait for a pipe
                raise LogError(f"{beside}, which SQLite would read too, is not a regular file; remove it")
        head = first_bytes(path, HEAD)
        if head is None:  # it was looked into when it was opened
            return
        # SQLite takes a page that was cut off for one that ends in zeros. The last page may be incomplete
        # only while changes are being copied into the file, that is while some wait beside it.
        cut = (
            head.startswith(MAGIC)
            and _ends_within_page(path, head)
            and not _has_wal(path)
            and _ends_within_page(path, head)
        )
    except OSError as err:
        raise explain(err, path) from None
    if head and not MAGIC.startswith(head[: len(MAGIC)]):
        raise LogError(
            f"{path} is not a tuning log: it is not a SQLite database. If it is an export, import it into a "
            f"log with: autotune log import {path}"
        )
    if cut or 0 < len(head) < len(MAGIC):
        raise _damaged(path)


def database_exists(path: Path) -> bool:
    """Whether ``path`` is a file that starts as every SQLite database does."""
    try:
        if not path.is_file():  # reading a pipe would wait, and lose data
            return False
        head = first_bytes(path, len(MAGIC))
        return head is None or head == MAGIC
    except OSError:
        return False


def make_directory(path: Path) -> None:
    """Create the directory that ``path`` lies in, and say so: it may be a slip of the pen. Raises
    `LogError`."""
    folder = path.absolute().parent
    try:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        log.warning("made the directory %s for %s", folder, path.name)
    except OSError as err:
        raise LogError(
            f"cannot create the directory {path.parent} for the log {path.name}: {err.strerror}; "
            f"choose another place with --db or AUTOTUNE_DB"
        ) from None


def _damaged(path: Path) -> LogError:
    return LogError(
        f"{path} is damaged: it was truncated or overwritten. Restore it from a copy or an export; "
        f"`sqlite3 {path} .recover` may save the rest. To start afresh, move it away"
    )


def explain(err: BaseException, path: Path, timeout_s: float | None = None) -> LogError:
    """The `LogError` for an error of SQLite or the operating system: file, reason, remedy."""
    if isinstance(err, OSError):
        known = refusals.words(err)
        return LogError(
            f"cannot read {path}: {known or f'{err.strerror or err}; check the path and its permissions'}"
        )
    if isinstance(err, UnicodeDecodeError):
        return _damaged(path)
    code = (getattr(err, "sqlite_errorcode", None) or 0) & 0xFF
    folder = path.absolute().parent
    match code:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            waited = "" if timeout_s is None else f" for {timeout_s:g} s"
            return LogError(
                f"{path} is locked by another process{waited}; close that process (a database browser, a "
                f"backup) and try again. Committed records are kept"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            if refusal := refusals.found(path):
                return LogError(f"cannot use the log {path}: {refusal}")
            what = "the directory" if not os.access(folder, os.W_OK) else "the file"
            if path.exists() and not os.access(path, os.R_OK):
                return LogError(
                    f"cannot read {path}: permission denied; make it readable, or choose another with --db"
                )
            return LogError(
                f"cannot write the log {path}: {what} is read-only or out of reach; make it writable, or "
                f"choose another place with --db"
            )
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return _damaged(path)
        case sqlite3.SQLITE_TOOBIG:
            return LogError(
                f"{path} is damaged, or not to be trusted: a row has more than {MAX_VALUE >> 20} MB, and no "
                f"tuning log has such rows. Restore it from a copy or an export"
            )
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR | sqlite3.SQLITE_PROTOCOL:
            full = "the disk is full; free some space" if code == sqlite3.SQLITE_FULL else None
            if refusal := refusals.found(path) or full:
                return LogError(f"cannot write the log {path}: {refusal}. What was committed is kept")
            name = str(getattr(err, "sqlite_errorname", ""))
            if _LOCKS.search(name):
                why = "a log needs a local file system (not a network share)"
            else:
                why = "the disk may be failing, or was full; the system's log may say more"
            return LogError(f"cannot use {path}: {err} ({name}); {why}")
    if "no such" in str(err):
        return LogError(f"{path} is damaged: {err}. Restore it from a copy or an export")
    return LogError(
        f"cannot use the log {path}: {err}; restore it from a copy or an export, or choose another with --db"
    )


def use_wal(con: sqlite3.Connection, path: Path, timeout_s: float) -> None:
    """Put the file into WAL mode, in which readers and the writer do not wait for each other.

    SQLite does not wait its busy timeout for this statement, so it is repeated here."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            (mode,) = con.execute("PRAGMA journal_mode = WAL").fetchone()
            break
        except sqlite3.OperationalError as err:
            if err.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise LogError(
            f"{path} lies on a file system without the shared memory that a log needs (a network share?); "
            f"choose a local place with --db"
        )
