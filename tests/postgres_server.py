"""A PostgreSQL server of the tests' own, in a directory of their own, on a socket in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

DISTRIBUTIONS = Path("/usr/lib/postgresql")  # where Debian keeps the programs of each version


def program(name: str) -> str | None:
    """The path of one of PostgreSQL's programs, of the newest version there is."""
    versions = sorted(DISTRIBUTIONS.glob(f"*/bin/{name}"), key=lambda p: float(p.parts[-3]))
    return str(versions[-1]) if versions else shutil.which(name)


@dataclass(frozen=True)
class Server:
    """``folder`` holds the socket; every `database` is new and empty."""

    folder: Path
    as_user: tuple[str, ...]

    def run(self, *words: str) -> None:
        done = subprocess.run([*self.as_user, *words], capture_output=True, text=True, cwd="/", timeout=60)
        assert done.returncode == 0, f"{words[0]}: {done.stderr}{done.stdout}"

    def database(self) -> str:
        """The URL of a new database."""
        name = f"d{uuid.uuid4().hex}"
        self.query("postgres", f"CREATE DATABASE {name}")
        return f"postgresql+psycopg://postgres@/{name}?host={self.folder}"

    def query(self, database: str, sql: str) -> list[tuple[object, ...]]:
        """What a statement gives in a database, named or by its URL."""
        import psycopg

        where = f"postgresql://postgres@/{database}?host={self.folder}" if "://" not in database else database
        with psycopg.connect(where.replace("+psycopg", ""), autocommit=True) as con:
            cursor = con.execute(sql)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []


@contextmanager
def started() -> Iterator[Server]:
    """A server for as long as the block takes. Where there is none, the test is skipped, or fails where
    ``AUTOTUNE_TESTS_NEED`` names postgresql."""
    initdb, pg_ctl = program("initdb"), program("pg_ctl")
    try:
        import psycopg  # noqa: F401
    except ImportError:
        initdb = None
    if initdb is None or pg_ctl is None:
        if "postgresql" in os.environ.get("AUTOTUNE_TESTS_NEED", "").split():
            pytest.fail("PostgreSQL or psycopg is not usable here, and AUTOTUNE_TESTS_NEED names it")
        pytest.skip("needs PostgreSQL and psycopg")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:  # it refuses to run as root
        as_user = ("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups")
        shutil.chown(folder, "postgres", "postgres")
    server = Server(folder, as_user)
    data = str(folder / "data")
    try:
        server.run(initdb, "--pgdata", data, "-U", "postgres", "--auth=trust", "--no-sync", "--encoding=UTF8")
        options = f"-k {folder} -c listen_addresses='' -c max_connections=60"
        server.run(pg_ctl, "start", "--wait", "--pgdata", data, "-l", f"{folder}/log", "--options", options)
        try:
            yield server
        finally:
            server.run(pg_ctl, "stop", "--mode=immediate", "--pgdata", data)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
