"""SQLAlchemy engines on a log's file: opened, checked, and brought to the current schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import Pool, QueuePool, StaticPool

from kernels_db import connection, migrate
from kernels_db.schema import Base


def open_reader(path: Path, timeout_s: float) -> Engine:
    """An engine that only reads. Raises `LogError` unless there is a log of the current schema."""
    con = connection.open_reader(path, timeout_s=timeout_s)
    if con is None:  # an empty file: a log without anything in it
        engine = _engine(partial(sqlite3.connect, ":memory:", isolation_level=None), StaticPool)
        Base.metadata.create_all(engine)
        return engine
    con.close()
    return _engine(partial(connection.connect, path, read_only=True, timeout_s=timeout_s), QueuePool)


def open_writer(path: Path, timeout_s: float) -> Engine:
    """An engine on a log that is created or upgraded where there is need. Raises `LogError`."""
    connection.check_file(path)
    connection.make_directory(path)
    engine = _engine(partial(connection.connect, path, read_only=False, timeout_s=timeout_s), QueuePool)
    try:
        with explained(path, timeout_s), writing(engine).connect() as con:
            _prepare(con, path, timeout_s)
    except BaseException:
        engine.dispose()
        raise
    return engine


def writing(engine: Engine) -> Engine:
    """The same engine, with transactions that write."""
    return engine.execution_options(write=True)


@contextmanager
def explained(path: Path, timeout_s: float) -> Iterator[None]:
    """SQLAlchemy's and SQLite's errors as `LogError`."""
    try:
        yield
    except DBAPIError as err:
        raise connection.explain(err.orig or err, path, timeout_s) from None
    except sqlite3.Error as err:
        raise connection.explain(err, path, timeout_s) from None


def _prepare(con: Connection, path: Path, timeout_s: float) -> None:
    """Create or upgrade the schema where there is need; of two processes one does it."""
    raw = cast(sqlite3.Connection, con.connection.dbapi_connection)
    state = connection.inspect(raw, path)  # before anything is changed: the file may not be ours
    connection.use_wal(raw, path, timeout_s)
    if state != "current":
        with con.begin():
            if connection.inspect(raw, path) != "current":
                migrate.upgrade(con)


def _engine(connect: Callable[[], sqlite3.Connection], pool: type[Pool]) -> Engine:
    engine = create_engine("sqlite://", creator=connect, poolclass=pool)

    @event.listens_for(engine, "begin")
    def begin(con: Connection) -> None:
        # A write transaction takes the lock at once and waits for it; one that began as a read would
        # fail at its first write if another process had written in between.
        con.exec_driver_sql("BEGIN IMMEDIATE" if con.get_execution_options().get("write") else "BEGIN")

    return engine
