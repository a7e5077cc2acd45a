"""A full disk, a quota and other limits are told as what they are, and where."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from log_cases import fill

from kernels_db import Log, LogError, refusals, sqlite

REASONS = [
    (errno.ENOSPC, "the disk is full; free some space"),
    (errno.EDQUOT, "the quota of this user on the disk is used up"),
    (errno.EMFILE, "too many files open"),
    (errno.ENFILE, "too many files open"),
    (errno.EROFS, "the file system is read-only"),
]


def fault(name: str) -> sqlite3.OperationalError:
    """As SQLite raises it."""
    err = sqlite3.OperationalError("disk I/O error")
    err.sqlite_errorcode, err.sqlite_errorname = getattr(sqlite3, name), name
    return err


FAULTS = [
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_FULL",
    "SQLITE_CANTOPEN",
]


@pytest.mark.parametrize(("number", "said"), REASONS)
@pytest.mark.parametrize("name", FAULTS)
def test_what_the_system_says_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str, name: str
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    text = str(sqlite.explain(fault(name), tmp_path / "t.db"))
    assert said in text and str(tmp_path / "t.db") in text and "network" not in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("SQLITE_IOERR_SHMLOCK", "not a network share"),
        ("SQLITE_IOERR_LOCK", "not a network share"),
        ("SQLITE_PROTOCOL", "not a network share"),
        ("SQLITE_IOERR_WRITE", "the disk may be failing, or was full"),
        ("SQLITE_IOERR_READ", "the disk may be failing, or was full"),
        ("SQLITE_FULL", "the disk is full"),  # it is free again
    ],
)
def test_where_there_is_room_the_kind_of_the_error_tells(tmp_path: Path, name: str, said: str) -> None:
    assert said in str(sqlite.explain(fault(name), tmp_path / "t.db"))


@pytest.mark.parametrize(("number", "said"), REASONS)
def test_errors_of_the_system_itself_are_told_too(tmp_path: Path, number: int, said: str) -> None:
    text = str(sqlite.explain(OSError(number, os.strerror(number)), tmp_path / "t.db"))
    assert said in text and str(tmp_path / "t.db") in text


LIMITED = """
import resource, sys
from kernels_db import Log, LogError
sys.path.insert(0, {support!r})
from log_cases import fill
with Log("first.db") as log:  # what is imported is open and closed again
    fill(log, 1)
resource.setrlimit(resource.{limit}, ({value}, {value}))
try:
    with Log("t.db") as log:
        for n in range(1000):
            fill(log, 1)
except LogError as err:
    print(err)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [
        ("RLIMIT_FSIZE", 200_000, "larger than this process may write; raise the limit (ulimit -f)"),
        (
            "RLIMIT_NOFILE",
            4,
            "this process has too many files open; close some, or raise the limit (ulimit -n)",
        ),
        (
            "RLIMIT_NOFILE",
            5,
            "this process has too many files open; close some, or raise the limit (ulimit -n)",
        ),
    ],
)
def test_limits_of_a_process_are_told(tmp_path: Path, limit: str, value: int, said: str) -> None:
    support = str(Path(__file__).parents[1] / "support")
    code = LIMITED.format(support=support, limit=limit, value=value)
    here = os.environ | {"PYTHONPATH": str(Path(refusals.__file__).parents[1])}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=here,
        preexec_fn=lambda: signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    assert said in ran.stdout and "t.db" in ran.stdout, ran.stdout + ran.stderr


def test_a_log_is_read_where_there_is_no_room_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite wants a file beside it for those who read at the same time."""
    db = tmp_path / "t.db"
    with Log(db) as log:
        fill(log, 3)
    first = sqlite._open
    calls = []

    class Refusing:
        """A connection of which the first query fails."""

        def __init__(self, con: sqlite3.Connection) -> None:
            self.con = con

        def execute(self, text: str) -> Any:
            raise fault("SQLITE_IOERR_SHMSIZE")

        def close(self) -> None:
            self.con.close()

    def opened(path: Path, uri: str, timeout_s: float) -> Any:
        con = first(path, uri, timeout_s)
        calls.append(uri)
        return con if uri.endswith("immutable=1") else Refusing(con)

    monkeypatch.setattr(sqlite, "_open", opened)
    with Log(db, read_only=True) as log:
        assert log.stats()["records"] == 4
    assert any(c.endswith("immutable=1") for c in calls)


def test_the_limit_of_a_file_counts_what_is_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = tmp_path / "t.db"
    db.write_bytes(b"1")
    (tmp_path / "t.db-wal").write_bytes(bytes(10_000))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (refusals.ROOM + 9_999, -1))
    assert refusals.found(db) is not None
    monkeypatch.setattr(resource, "getrlimit", lambda _: (refusals.ROOM + 10_000, -1))
    assert refusals.found(db) is None


def test_a_log_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "t.db") as log:
        fill(log, 1)
        (pages,) = log._engine.raw_connection().execute("PRAGMA page_count").fetchone()  # type: ignore[union-attr]
    connect = sqlite._ready

    def small(con: sqlite3.Connection, *args: Any, **options: Any) -> sqlite3.Connection:
        con = connect(con, *args, **options)
        con.execute(f"PRAGMA max_page_count = {pages + 2}")  # SQLite's own disk
        return con

    monkeypatch.setattr(sqlite, "_ready", small)
    with pytest.raises(LogError, match=r"t\.db: the disk is full; free some space"):
        with Log(tmp_path / "t.db") as log:
            for _ in range(100):
                fill(log, 8)
