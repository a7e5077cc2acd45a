"""SQLAlchemy engines on a log: they open it, check it and upgrade it to the current schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from kernels_db import migrate, sqlite
from kernels_db.place import LogPlace
from kernels_db.postgresql import SCHEMA, WRITERS, PostgresDatabase
from kernels_db.schema import METADATA
from kernels_db.sqlite import SqliteFile

# Kinds of transactions. "change" looks before it writes and holds the write lock; "bulk" is a large "change".
Access = Literal["read", "add", "change", "bulk"]
# Pages (4 KiB) that may wait beside a file to be written back: usually, in a bulk transaction.
PAGES, BULK_PAGES = 16384, 131072


def open_reader(place: LogPlace, timeout_s: float) -> Engine:
    """An engine that only reads. Raises `LogError` unless there is a log of the current schema."""
    reader = place.reader(timeout_s)
    if reader is None:  # an empty file or database is an empty log
        engine = _sqlite(partial(sqlite3.connect, ":memory:", isolation_level=None), StaticPool)
        METADATA.create_all(engine)
        return engine
    reader.close()
    if isinstance(place, PostgresDatabase):
        return _postgresql(place, timeout_s)
    assert isinstance(place, SqliteFile)
    return _sqlite(partial(sqlite.connect, place.path, read_only=True, timeout_s=timeout_s))


def open_writer(place: LogPlace, timeout_s: float) -> Engine:
    """An engine on a log, created or upgraded if needed. Raises `LogError`."""
    if isinstance(place, PostgresDatabase):
        engine = _postgresql(place, timeout_s)
        prepare: Callable[[Connection], None] = partial(_prepare_database, place)
    else:
        assert isinstance(place, SqliteFile)
        sqlite.check_file(place.path)
        sqlite.make_directory(place.path)
        engine = _sqlite(partial(sqlite.connect, place.path, read_only=False, timeout_s=timeout_s))
        prepare = partial(_prepare_file, place, timeout_s)
    try:
        with explained(place, timeout_s), accessing(engine, "change").connect() as con:
            prepare(con)
    except BaseException:
        engine.dispose()
        raise
    return engine


def accessing(engine: Engine, access: Access) -> Engine:
    """The same engine, with transactions of this kind."""
    return engine.execution_options(access=access)


@contextmanager
def explained(place: LogPlace, timeout_s: float) -> Iterator[None]:
    """Raise errors of SQLAlchemy and of the database as `LogError`."""
    try:
        yield
    except DBAPIError as err:
        raise place.explain(err.orig or err, timeout_s) from None
    except sqlite.FAULTS as err:
        raise place.explain(err, timeout_s) from None


def read_any_text(con: Connection) -> None:
    """Let this connection return damaged texts too, marked, so that only their row is refused and not the
    whole log."""
    raw = cast(Any, con.connection.dbapi_connection)
    if isinstance(raw, sqlite3.Connection):
        raw.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")


def _prepare_file(place: SqliteFile, timeout_s: float, con: Connection) -> None:
    """Create or upgrade the schema if needed. Of several processes one does it."""
    raw = cast(sqlite3.Connection, con.connection.dbapi_connection)
    state = sqlite.inspect(raw, place.path)  # before any change, because the file may not be a log
    sqlite.use_wal(raw, place.path, timeout_s)
    if state != "current":
        with con.begin():
            if sqlite.inspect(raw, place.path) != "current":
                migrate.upgrade(con)


def _prepare_database(place: PostgresDatabase, con: Connection) -> None:
    """Like `_prepare_file`. A migration is one transaction here too."""
    raw = cast(Any, con.connection.dbapi_connection)
    with con.begin():
        state = place.inspect(raw)
        if state == "new":
            con.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        if state != "current":
            migrate.upgrade(con)


def _sqlite(connect: Callable[[], sqlite3.Connection], pool: type[Pool] = QueuePool) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=pool)

    @event.listens_for(engine, "begin")
    def begin(con: Connection) -> None:
        if con.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            return
        # A write transaction takes the lock at once and waits for it. One that begins as a read would fail at
        # its first write if another process had written meanwhile.
        access = con.get_execution_options().get("access", "read")
        if access != "read":
            raw = cast(sqlite3.Connection, con.connection.dbapi_connection)
            sqlite.write_back_after(raw, BULK_PAGES if access == "bulk" else PAGES)
        con.exec_driver_sql("BEGIN" if access == "read" else "BEGIN IMMEDIATE")

    return engine


def _postgresql(place: PostgresDatabase, timeout_s: float) -> Engine:
    place.driver()

    def connect() -> object:
        con = place.connect(timeout_s)
        con.autocommit = False
        return con

    # A session may be idle for the length of a trial, and the server may restart meanwhile.
    engine = create_engine("postgresql+psycopg://", creator=connect, pool_pre_ping=True)

    @event.listens_for(engine, "begin")
    def begin(con: Connection) -> None:
        match con.get_execution_options().get("access", "read"):
            case "read":
                con.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            case "change" | "bulk":
                con.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS})")

    return engine


def insert(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert rows of one form, except those whose key exists. Returns the number inserted. Rows go directly
    to the driver, because SQLAlchemy's work on a row takes as long as SQLite's."""
    if not rows:
        return 0
    mark = "%({})s" if connection.dialect.name == "postgresql" else ":{}"
    values = ", ".join(mark.format(name) for name in rows[0])
    sql = f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES ({values}) ON CONFLICT DO NOTHING"
    return connection.exec_driver_sql(sql, rows).rowcount
