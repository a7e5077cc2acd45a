"""Where a log is: a SQLite file or a PostgreSQL database, behind one contract.

Loading a kernel goes this way too, so nothing here imports SQLAlchemy, and psycopg only for its URLs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kernels_db.errors import LogError

Row = Mapping[str, Any]


class Reader(Protocol):
    """One snapshot of a log, read with SQL text that both backends understand; ``?`` marks a parameter."""

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Every row of a query, by column name."""

    def close(self) -> None: ...


class Place(Protocol):
    """Where a log is; its text is for messages and hides a password."""

    def exists(self) -> bool:
        """Whether something is there; a server is taken to be."""

    def reader(self, timeout_s: float) -> Reader | None:
        """A snapshot; None for a log without anything in it. Raises `LogError` for what is not a log, is of
        another schema, or is not there."""

    def explain(self, err: BaseException, timeout_s: float | None = None) -> LogError:
        """An error of the database or of the operating system: which log, why, and the remedy."""


def locate(path_or_url: str | os.PathLike[str] | Place) -> Place:
    """The place that a path, a ``sqlite:///PATH`` or a ``postgresql+psycopg://…`` URL names. Raises
    `LogError`."""
    from kernels_db.sqlite import SqliteFile

    if not isinstance(path_or_url, (str, os.PathLike)):
        return path_or_url
    text = os.fspath(path_or_url)
    if text.startswith(("postgresql://", "postgresql+psycopg://", "postgres://")):
        from kernels_db.postgresql import PostgresDatabase

        return PostgresDatabase(text)
    return SqliteFile.named(text)
