"""The contract of the place of a log: a SQLite file or a PostgreSQL database.

Loading a kernel uses it, so nothing here imports SQLAlchemy, and psycopg is imported only for its URLs.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from kernels_db.errors import LogError

Row = Mapping[str, Any]


class Reader(Protocol):
    """One snapshot of a log, read by SQL text that both databases understand. ``?`` marks a parameter."""

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Every row of a query, by column name."""

    def close(self) -> None: ...


class LogPlace(Protocol):
    """Where a log is. Its text is for messages and hides a password."""

    def exists(self) -> bool:
        """Whether a file is there. True for a server."""

    def version(self) -> Hashable:
        """What differs after each write to the log, and is quick to tell; None where nothing is."""

    def reader(self, timeout_s: float) -> Reader | None:
        """A snapshot; None for an empty log. ``timeout_s``: longest wait (seconds). Raises `LogError` if
        there is no log, or it is something else or has another schema."""

    def explain(self, err: BaseException, timeout_s: float | None = None) -> LogError:
        """The `LogError` for an error of the database or the operating system: which log, why, and the
        remedy."""


def locate(path_or_url: str | os.PathLike[str] | LogPlace) -> LogPlace:
    """The place that a path, a ``sqlite:///PATH`` or a ``postgresql+psycopg://…`` URL names. Raises
    `LogError`."""
    from kernels_db.sqlite import SqliteFile

    if not isinstance(path_or_url, (str, os.PathLike)):
        if not hasattr(path_or_url, "reader"):
            raise LogError(f"the database is {path_or_url!r}; give a path or a database URL")
        return path_or_url
    text = os.fspath(path_or_url)
    if text.startswith(("postgresql://", "postgresql+psycopg://", "postgres://")):
        from kernels_db.postgresql import PostgresDatabase

        return PostgresDatabase(text)
    return SqliteFile.named(text)
