"""Opening: what is a log, what is not, and what the message says then."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from log_cases import (
    MACHINE,
    TARGETS,
    add,
    anywhere,
    copy_of,
    every_way_in,
    exported,
    fill,
    measured,
    refused,
)

from kernels_db import Log, LogError, compat, exchange, lookup, sqlite
from kernels_db.records import MAX_REASON

W = copy_of(8)


def test_a_new_log_and_its_directory_are_created(tmp_path: Path) -> None:
    path = tmp_path / "some" / "where" / "tuning.db"
    assert lookup.best(path, W.digest, anywhere) is None
    refused(path, "there is no tuning log at", slice(1, 2))
    with Log(str(path)) as log:
        fill(log, 1)
    with Log(f"sqlite:///{path}", read_only=True) as log:
        assert log.stats()["records"] == 2
    assert lookup.best(f"sqlite:///{path}", W.digest, anywhere) is not None
    con = sqlite3.connect(path)
    assert con.execute("PRAGMA application_id").fetchone() == (compat.APPLICATION_ID,)
    assert con.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    con.close()


def test_a_directory_that_is_made_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It may be a slip of the pen. Where it is there already, nothing is said."""
    with Log(tmp_path / "t.db") as log:
        log.export(tmp_path / "a.jsonl")
        assert caplog.messages == []
        log.export(tmp_path / "elsewhere" / "a.jsonl")
    with Log(tmp_path / "some" / "where" / "t.db"):
        pass
    with Log(tmp_path / "some" / "where" / "t.db"):
        pass
    assert caplog.messages == [
        f"made the directory {tmp_path / 'elsewhere'} for a.jsonl",
        f"made the directory {tmp_path / 'some' / 'where'} for t.db",
    ]


def test_a_zero_byte_file_is_a_new_log(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    assert lookup.best(path, W.digest, anywhere) is None
    with Log(path, read_only=True) as log:
        assert log.stats()["records"] == 0 and log.best(W, TARGETS[0]) is None
        assert exported(log) == '{"format":"autotune-log","version":2}\n'
    assert path.stat().st_size == 0
    with Log(path) as log:
        fill(log, 1)
        assert log.stats()["records"] == 2


def test_a_database_without_tables_is_a_new_log(tmp_path: Path) -> None:
    """What a process leaves that is killed between creating the file and the schema."""
    con = sqlite3.connect(tmp_path / "a.db")
    con.execute("PRAGMA journal_mode = WAL")
    con.close()
    assert (tmp_path / "a.db").stat().st_size > 0
    assert lookup.best(tmp_path / "a.db", W.digest, anywhere) is None
    with Log(tmp_path / "a.db") as log:
        assert len(fill(log, 1)) == 2


@pytest.mark.parametrize(
    "url", ["", "a\0b", ":memory:", "sqlite://", "sqlite:///:memory:", "mysql://h/db"]
)
def test_names_that_are_no_file(url: str) -> None:
    refused(url, "is not a file", slice(0, 3))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg2://u:s3cret@h/db",
        "mysql://u:s3cret@h/db",
        "POSTGRESQL://u:s3cret@h/db",
        "mysql://u:s3cret/s3cret@h/db",
        "mysql://u:s3cret@s3cret@h/db",
        "mysql://u:s3c:s3cret@h/db",
        "mysql://u@x:s3cret@h/db",
        "mysql://h/db?user=u&PASSWORD=s3cret",
        "mysql://h/db?sslpassword=s3cret",
    ],
)
def test_a_password_is_not_shown(url: str) -> None:
    for way in every_way_in(url)[:3]:
        with pytest.raises(LogError, match="is not a file") as caught:
            way()
        assert "s3c" not in str(caught.value) and "***" in str(caught.value)


def test_a_directory_is_not_a_log(tmp_path: Path) -> None:
    refused(tmp_path, "is a directory")
    refused(tmp_path / ".." / tmp_path.name, "is a directory")


def test_something_that_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "not a regular file", slice(0, 3))


@pytest.mark.parametrize("suffix", sqlite.COMPANIONS)
def test_a_pipe_beside_a_log_is_not_waited_for(log_file: Path, suffix: str, tmp_path: Path) -> None:
    """SQLite reads what has the log's name and a suffix, of the file that a link names."""
    os.mkfifo(f"{log_file}{suffix}")
    (tmp_path / "link.db").symlink_to(log_file)
    for path in (log_file, tmp_path / "link.db"):
        refused(path, f"{suffix}, which SQLite would read too, is not a regular file; remove it", slice(0, 4))


def test_a_file_in_the_way_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogError, match="cannot"):
        Log(tmp_path / "file" / "tuning.db")
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize(
    "content", [b"hello\n", b'{"format":"autotune-log","version":1}\n', b"\0" * 5000, b"SQLite"]
)
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(content)
    refused(path, "not a SQLite database|is damaged", slice(0, 3))
    assert path.read_bytes() == content


def test_a_foreign_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "photos.db"
    con = sqlite3.connect(path)
    con.execute("CREATE TABLE photo (id INTEGER)")
    con.close()
    before = path.read_bytes()
    refused(path, "another application")
    con = sqlite3.connect(path)
    con.execute("PRAGMA application_id = 7")
    con.close()
    refused(path, "another application")
    assert path.read_bytes()[100:] == before[100:]
    assert not path.with_name("photos.db-wal").exists()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.05, 0.3, 0.5, 0.6, 0.95, 0.999])
def test_a_truncated_log(log_file: Path, share: float) -> None:
    data = log_file.read_bytes()
    log_file.write_bytes(data[: max(17, int(len(data) * share))])
    refused(log_file, r"tuning\.db is damaged.*Restore it")


def test_overwritten_pages(log_file: Path) -> None:
    data = bytearray(log_file.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    log_file.write_bytes(data)

    def use() -> None:
        with Log(log_file) as log:
            exported(log)

    for way in (use, lambda: lookup.best(log_file, W.digest, anywhere)):
        with pytest.raises(LogError, match="is damaged"):
            way()


def test_missing_tables(log_file: Path) -> None:
    con = sqlite3.connect(log_file)
    con.execute("DROP TABLE record")
    con.close()

    def use() -> None:
        with Log(log_file) as log:
            log.stats()

    for way in (use, lambda: lookup.best(log_file, W.digest, anywhere)):
        with pytest.raises(LogError, match="no such table: record"):
            way()


@pytest.mark.parametrize(
    ("table", "column"), [("record", "times_s"), ("record", "environment"), ("target", "json")]
)
def test_damaged_rows_are_named(log_file: Path, table: str, column: str) -> None:
    con = sqlite3.connect(log_file)
    con.execute(f"UPDATE {table} SET {column} = '{{'")
    con.commit()
    con.close()
    with pytest.raises(LogError, match=f"{table} [0-9a-f]+ is damaged"):
        lookup.best(log_file, W.digest, anywhere)


def test_a_locked_log(log_file: Path) -> None:
    con = sqlite3.connect(log_file, isolation_level=None)
    con.execute("BEGIN IMMEDIATE")
    try:
        with Log(log_file, timeout_s=0.05) as log:
            assert log.stats()["records"] == 5  # readers do not wait
            with pytest.raises(LogError, match=r"is locked by another process.*0\.05 s"):
                add(log, TARGETS[2])
            assert lookup.best(log_file, W.digest, anywhere) is not None
            con.execute("ROLLBACK")
            add(log, TARGETS[2])
    finally:
        con.close()


def test_a_log_locked_against_readers(log_file: Path) -> None:
    con = sqlite3.connect(log_file, isolation_level=None)
    con.execute("PRAGMA locking_mode = EXCLUSIVE")
    con.execute("BEGIN IMMEDIATE")
    con.execute("DELETE FROM record")
    try:
        with pytest.raises(LogError, match="is locked"):
            Log(log_file, timeout_s=0.05)
        with pytest.raises(LogError, match="is locked"):
            lookup.best(log_file, W.digest, anywhere, timeout_s=0.05)
    finally:
        con.close()


# -- permissions ----------------------------------------------------------------------------------


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that any user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="log"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def unprivileged() -> Iterator[Callable[[], None]]:
    """Gives up root's right to ignore permissions, if the tests have it."""
    yield lambda: os.seteuid(65534) if os.geteuid() == 0 else None
    if os.getuid() == 0:
        os.seteuid(0)


def test_a_read_only_directory(public: Path, unprivileged: Callable[[], None]) -> None:
    folder = public / "shelf"
    folder.mkdir()
    with Log(folder / "a.db") as log:
        made = fill(log, 3)
    (folder / "a.db").chmod(0o444)
    folder.chmod(0o555)
    unprivileged()
    try:
        for path in (folder / "a.db", folder / "new.db"):
            with pytest.raises(
                LogError, match=r"read-only or out of reach; make it writable, or choose another"
            ):
                Log(path)
        with pytest.raises(LogError, match="cannot create the directory"):
            Log(folder / "deeper" / "new.db")
        with Log(folder / "a.db", read_only=True) as log:
            assert len(log.seen(W, TARGETS[0])) == len(made)
            with pytest.raises(LogError, match="cannot write"):
                log.export(folder / "out.jsonl")
        assert lookup.best(folder / "a.db", W.digest, anywhere) is not None
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)


def test_an_unreadable_file(public: Path, unprivileged: Callable[[], None]) -> None:
    with Log(public / "a.db") as log:
        fill(log, 1)
    (public / "a.db").chmod(0)
    public.chmod(0o777)
    unprivileged()
    for way in every_way_in(public / "a.db")[:3]:
        with pytest.raises(LogError, match=r"cannot read .*[Pp]ermission"):
            way()


# -- faults ---------------------------------------------------------------------------------------


def fill_until_refused(path: Path, n: int = 5000) -> tuple[list[str], str]:
    """The uids of what was committed, and why there was no more."""
    kept = []
    with Log(path) as log:
        run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        for i in range(n):
            try:
                kept.append(log.add(measured(run, i)).uid)
            except LogError as err:
                return kept, str(err)
    raise AssertionError("the disk did not fill")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, connect = tmp_path / "tuning.db", sqlite.connect

    def small(path: Path, **options: Any) -> sqlite3.Connection:
        con = connect(path, **options)
        con.execute("PRAGMA max_page_count = 60")
        return con

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "connect", small)
        kept, why = fill_until_refused(path)
        assert "the disk is full; free some space" in why and len(kept) > 5
        with Log(path) as log:
            log.export(tmp_path / "a.jsonl")
            with pytest.raises(LogError, match="the disk is full"):
                log.add_all(measured(log.runs()[0].uid, 9000 + i) for i in range(100))
            assert {r.uid for r in log.records()} == set(kept)
    with Log(path) as log:  # there is space again
        assert {r.uid for r in log.records()} == set(kept)
        fill(log, 50)
    assert whole(path)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A quota: the operating system refuses a write, wherever it falls."""
    path = tmp_path / "tuning.db"
    with Log(path) as log:
        fill(log, 2)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
            kept, why = fill_until_refused(path)
            os.write(write, " ".join([*kept, why]).encode()[-60_000:])
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as f:
        said = f.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert f"cannot use {path}" in said or f"cannot write the log {path}" in said
    committed = {word for word in said.split() if len(word) == 32}
    with Log(path) as log:
        assert committed <= {r.uid for r in log.records()} and len(committed) > 3
    assert whole(path)


def whole(path: Path) -> bool:
    con = sqlite3.connect(path)
    try:
        return con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        con.close()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE VIEW spy AS SELECT * FROM record",
        "CREATE TRIGGER spy AFTER INSERT ON record BEGIN DELETE FROM record; END",
        "CREATE VIRTUAL TABLE spy USING fts5(x)",
        "ALTER TABLE record RENAME TO r; CREATE VIEW record AS WITH RECURSIVE x(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT r.* FROM r, x",
    ],
)
def test_a_database_that_does_something_when_it_is_read(log_file: Path, sql: str) -> None:
    con = sqlite3.connect(log_file)
    con.executescript(sql)
    con.close()
    refused(log_file, "views, triggers or virtual tables.*do not trust it")


COMPUTED = "GENERATED ALWAYS AS (hex(zeroblob(100000000)))"


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_columns_that_are_computed(log_file: Path, kind: str) -> None:
    con = sqlite3.connect(log_file)
    (sql,) = con.execute("SELECT sql FROM sqlite_master WHERE name = 'record'").fetchone()
    bomb = sql.replace("reason TEXT NOT NULL", f"reason TEXT {COMPUTED} {kind}", 1)
    assert bomb != sql
    con.executescript(f"PRAGMA foreign_keys = OFF; DROP TABLE record; {bomb}")
    con.close()
    refused(log_file, "columns or indexes that are computed.*do not trust it")


@pytest.mark.parametrize("what", ["record (upper(reason))", "run (uid, seed + 1)"])
def test_indexes_of_what_is_computed(log_file: Path, what: str) -> None:
    con = sqlite3.connect(log_file)
    con.execute(f"CREATE INDEX spy ON {what}")
    con.close()
    refused(log_file, "columns or indexes that are computed.*do not trust it")


def test_an_index_of_columns_does_no_harm(log_file: Path) -> None:
    con = sqlite3.connect(log_file)
    con.execute("CREATE INDEX own ON record (sketch)")
    con.close()
    with Log(log_file) as log:
        assert log.stats()["records"] == 5


def test_a_row_larger_than_any_of_a_log(log_file: Path) -> None:
    con = sqlite3.connect(log_file)
    con.execute("UPDATE record SET reason = hex(zeroblob(?))", (sqlite.MAX_VALUE // 2 + 1,))
    con.commit()
    con.close()

    def export() -> None:
        with Log(log_file) as log:
            exported(log)

    for way in (export, every_way_in(log_file)[3], lambda: lookup.best(log_file, W.digest, anywhere)):
        with pytest.raises(LogError, match=r"not to be trusted: a row has more than 2 MB"):
            way()


def test_every_row_that_is_taken_is_smaller_than_the_limit() -> None:
    record = exchange.MAX_TRACE + exchange.MAX_OBJECT + 4 * MAX_REASON + 30 * exchange.MAX_TIMES
    workload = exchange.MAX_DEFINITION + exchange.MAX_OBJECT
    assert 1.5 * max(record, workload) < sqlite.MAX_VALUE


