"""A log in a PostgreSQL database: connections to it, and errors in plain words.

The tables lie in a schema ``autotune``, so that the database may hold other things too. psycopg is imported
when a connection is made.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from kernels_db.compat import APPLICATION_ID, check_schema, older
from kernels_db.errors import LogError
from kernels_db.passwords import masked
from schedules.distribution import install

if TYPE_CHECKING:
    from psycopg import Connection

# Schema of the tables.
SCHEMA = "autotune"
# Number of the advisory lock of migrations and of writers that look before they insert.
WRITERS = 0x61744C67
# A URL whose password has characters that libpq takes for other parts.
_UNESCAPED = re.compile(r"://[^:]*:.*[/@?#].*@", re.DOTALL)
# The server's message for a missing right.
_DENIED = re.compile(r"permission denied for (\w+)")
# {kind of object: SQL that grants the missing right}.
_RIGHTS = {
    "database": "GRANT CREATE ON DATABASE",
    "schema": f"GRANT USAGE ON SCHEMA {SCHEMA}",
    "table": f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA}, and INSERT, UPDATE, DELETE to write",
}


@dataclass(frozen=True)
class PostgresDatabase:
    """The `kernels_db.place.LogPlace` of a database on a server."""

    url: str

    def __str__(self) -> str:
        """The URL without its password."""
        return masked(self.url)

    def __repr__(self) -> str:
        return f"PostgresDatabase({str(self)!r})"

    def exists(self) -> bool:
        return True

    def version(self) -> None:
        """Not known without asking the server."""

    def driver(self) -> ModuleType:
        """psycopg. Raises `LogError` if it is not installed."""
        try:
            import psycopg
        except ImportError:
            raise LogError(
                f"{self} is a PostgreSQL database, and psycopg is not installed; {install('postgresql')}"
            ) from None
        return psycopg

    def connect(self, timeout_s: float) -> Connection[Any]:
        """A connection in autocommit mode with the schema in its search path. Raises `LogError`."""
        psycopg = self.driver()
        conninfo = "postgresql://" + self.url.split("://", 1)[1]
        try:
            con = psycopg.connect(
                conninfo, autocommit=True, connect_timeout=max(2, int(timeout_s)), application_name="autotune"
            )
            con.execute("SELECT set_config('search_path', %s, false)", (SCHEMA,))
            con.execute("SELECT set_config('lock_timeout', %s, false)", (f"{int(timeout_s * 1000)}ms",))
        except psycopg.Error as err:
            if err.sqlstate is None and _UNESCAPED.search(self.url):  # err quotes parts of it
                raise LogError(
                    f"cannot use the log {self}: its URL cannot be taken apart; write / @ ? # in a password "
                    f"as %2F %40 %3F %23"
                ) from None
            raise self.explain(err, timeout_s) from None
        return con

    def inspect(self, con: Connection[Any]) -> Literal["new", "current", "older"]:
        """Whose tables the schema has: `compat.check_schema`. Raises `LogError`."""
        every, version = "SELECT tablename FROM pg_tables WHERE schemaname = %s", None
        try:
            tables = {name for (name,) in con.execute(every, (SCHEMA,))}
            if {"alembic_version", "record"} <= tables:
                version = con.execute(f"SELECT version_num FROM {SCHEMA}.alembic_version").fetchone()
        except self.driver().Error as err:
            raise self.explain(err) from None
        if version is None:
            return check_schema(str(self), 0, 0, not tables)
        return check_schema(str(self), APPLICATION_ID, int(version[0]), False)

    def reader(self, timeout_s: float) -> PostgresReader | None:
        with ExitStack() as opened:
            con = self.connect(timeout_s)
            opened.callback(con.close)
            state = self.inspect(con)
            try:
                reader = PostgresReader(con) if state == "current" else None
            except self.driver().Error as err:
                raise self.explain(err, timeout_s) from None
            if reader is not None:
                opened.pop_all()
            if state == "older":
                raise older(self)
            return reader

    def explain(self, err: BaseException, timeout_s: float | None = None) -> LogError:
        """Explain an error by its SQLSTATE:
        https://www.postgresql.org/docs/current/errcodes-appendix.html."""
        code = getattr(err, "sqlstate", None) or ""
        said = str(err).strip().split("\n")[0]
        if code in ("55P03", "57014", "40P01", "40001"):
            waited = "" if timeout_s is None else f" for {timeout_s:g} s"
            return LogError(
                f"{self} is locked by another session{waited}; end that session and try again. Committed "
                f"records are kept"
            )
        if code == "53100":
            return LogError(
                f"cannot write the log {self}: its disk is full; free some space. Committed records are kept"
            )
        if code == "42501":
            denied = _DENIED.search(said)
            right = _RIGHTS.get(denied[1]) if denied else None
            remedy = f"its owner can give this user the right to: {right}" if right else "use it as its owner"
            return LogError(f"cannot use the log {self}: {said}; {remedy}")
        if code == "25006":
            return LogError(f"cannot write the log {self}: {said}; use the primary server, not its copy")
        if code.startswith("42"):
            return LogError(f"{self} is damaged: {said}. Restore it from a copy or an export")
        return LogError(f"cannot use the log {self}: {said}; check the URL, and whether the server runs")


class PostgresReader:
    """The `kernels_db.place.Reader` of a database."""

    def __init__(self, con: Connection[Any]) -> None:
        from psycopg.rows import dict_row

        con.row_factory = dict_row
        self._con = con
        con.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")  # one snapshot for all queries

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self._con.execute(sql.replace("?", "%s"), parameters).fetchall()
        return found

    def close(self) -> None:
        self._con.close()
