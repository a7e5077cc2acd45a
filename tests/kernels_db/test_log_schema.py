"""Versions of the schema: migrations, upgrades of logs in use, and what is too new."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from pathlib import Path

import pytest
from log_cases import MACHINE, TARGETS, anywhere, copy_of, measured, refused
from sqlalchemy import create_engine

from kernels_db import Log, LogError, compat, engine, lookup, migrate
from kernels_db.schema import METADATA

W = copy_of(8)


def schema(con: sqlite3.Connection) -> list[tuple[str, ...]]:
    """What every table has, its columns and constraints in no order: a migration adds columns at the end."""
    rows = con.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE tbl_name <> 'alembic_version'"
    )
    found = []
    for kind, name, table, sql in rows:
        words = [part.strip(" ()") for part in " ".join((sql or "").split()).split(",")]
        found.append((kind, name, table, *sorted(words)))
    return sorted(found)


def test_the_migrations_make_the_declared_schema(tmp_path: Path, log_file: Path) -> None:
    declared = create_engine(f"sqlite:///{tmp_path / 'declared.db'}")
    METADATA.create_all(declared)
    declared.dispose()
    a, b = sqlite3.connect(tmp_path / "declared.db"), sqlite3.connect(log_file)
    try:
        assert schema(a) == schema(b)
        assert len(schema(a)) > 8
        assert b.execute("SELECT version_num FROM alembic_version").fetchall() == [
            (f"{compat.SCHEMA_VERSION:04d}",)
        ]
        assert b.execute("PRAGMA user_version").fetchone() == (compat.SCHEMA_VERSION,)
        assert b.execute("PRAGMA foreign_key_check").fetchall() == []
    finally:
        a.close()
        b.close()


def test_every_schema_version_has_one_migration() -> None:
    files = sorted(p.name[:4] for p in (migrate.SCRIPTS / "versions").glob("[0-9]*.py"))
    assert files == [f"{i + 1:04d}" for i in range(compat.SCHEMA_VERSION)]


def test_a_newer_schema_is_refused(log_file: Path) -> None:
    con = sqlite3.connect(log_file)
    con.execute(f"PRAGMA user_version = {compat.SCHEMA_VERSION + 3}")
    con.close()
    newer = (
        rf"schema version {compat.SCHEMA_VERSION + 3}.*up to version {compat.SCHEMA_VERSION}; update "
        rf"autotune: pip install --upgrade autotune-compiler.*autotune log export log.jsonl --db"
    )
    refused(log_file, newer)


NEXT = """
from alembic import op
import sqlalchemy as sa

revision = "{to}"
down_revision = "{of}"


def upgrade():
    op.add_column("run", sa.Column("note{to}", sa.Text(), nullable=True))
    {then}
"""


@pytest.fixture
def future(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An autotune of the next schema version, in which the log of today is old."""
    scripts = tmp_path / "migrations %d"
    shutil.copytree(migrate.SCRIPTS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / f"{TO}_note.py").write_text(NEXT.format(to=TO, of=OF, then="pass"))
    monkeypatch.setattr(compat, "SCHEMA_VERSION", int(TO))
    monkeypatch.setattr(engine.migrate, "upgrade", lambda con: upgrade(con, int(TO), scripts))
    return scripts


upgrade = migrate.upgrade
OF, TO = f"{compat.SCHEMA_VERSION:04d}", f"{compat.SCHEMA_VERSION + 1:04d}"


def columns(path: Path) -> tuple[list[str], int]:
    con = sqlite3.connect(path)
    try:
        (version,) = con.execute("PRAGMA user_version").fetchone()
        return [r[1] for r in con.execute("PRAGMA table_info(run)")], version
    finally:
        con.close()


def test_an_older_schema_is_upgraded_when_opened_for_writing(log_file: Path, future: Path) -> None:
    refused(log_file, "older schema.*autotune log stats --db", slice(1, 3))
    assert columns(log_file)[1] == int(OF)
    with Log(log_file) as log:
        assert log.stats()["records"] == 5
        run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        log.add(measured(run, 9))
    names, version = columns(log_file)
    assert version == int(TO) and f"note{TO}" in names
    assert lookup.best(log_file, W.digest, anywhere) is not None


def test_a_log_is_upgraded_under_a_process_that_has_it_open(
    log_file: Path, request: pytest.FixtureRequest
) -> None:
    """Two versions of the library on one file: the older goes on with what it knows, and comes in no more."""
    with Log(log_file) as older:
        run = older.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        with request.getfixturevalue("monkeypatch").context():
            request.getfixturevalue("future")
            with Log(log_file) as newer:
                before = newer.stats()["records"]
                made = older.add(measured(run, 9))
                assert newer.get(made.uid) == made and newer.stats()["records"] == before + 1
        assert older.add(measured(run, 10)) in older.seen(W, TARGETS[0])
    request.getfixturevalue("monkeypatch").undo()
    refused(log_file, "update autotune")


def test_a_failing_upgrade_leaves_the_log_as_it_was(log_file: Path, future: Path) -> None:
    text = NEXT.format(to=TO, of=OF, then='op.execute("INSERT INTO missing VALUES (1)")')
    (future / "versions" / f"{TO}_note.py").write_text(text)
    before = columns(log_file)
    with pytest.raises(LogError, match="no such table: missing"):
        Log(log_file)
    assert columns(log_file) == before and before[1] == int(OF)


def test_headers_hold_the_marks(log_file: Path) -> None:
    """``file`` and other tools find the application id at byte 68."""
    head = log_file.read_bytes()[:100]
    assert struct.unpack(">I", head[68:72]) == (compat.APPLICATION_ID,)
    assert struct.unpack(">I", head[60:64]) == (compat.SCHEMA_VERSION,)
