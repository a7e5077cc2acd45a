"""The contract of a log, held by each kind of database: what is written is there, once, and exchanged."""

from __future__ import annotations

import multiprocessing as mp
import sqlite3
import sys
from pathlib import Path

import pytest
from log_cases import MACHINE, TARGETS, add, anywhere, copy_of, exported, fill, measured, moment, trace
from postgres_server import Server

from kernels_db import Log, LogError, MergeResult, compat, lookup, migrate
from kernels_db.pins import Pin
from kernels_db.place import locate
from kernels_db.schema import METADATA

W = copy_of(8)
DATA = Path(__file__).with_name("data")


@pytest.mark.fast("sqlite")
def test_what_is_added_is_found(database: str) -> None:
    assert not isinstance(locate(database), Path)
    with Log(database) as log:
        made = fill(log, 6)
        fill(log, 3, copy_of(9), TARGETS[1])
        assert log.seen(W, TARGETS[0]) == made
        assert log.stats()["records"] == 11 and log.stats()["by_status"] == {"crash": 1, "ok": 10}
        best = log.best(W, TARGETS[0])
        assert best is not None and log.get(best.uid) == best == log.top_k(W, TARGETS[0], 3)[0]
        assert log.by_status(W, TARGETS[0]) == {"crash": 1, "ok": 6}
        run = log.start_run(W, TARGETS[0], MACHINE, seed=2**62).uid  # more than 32 bits
        assert log.run(run).seed == 2**62
        found = lookup.best(database, W.digest, anywhere)
        assert found is not None and found.record == best
        assert found.origin is not None and found.origin.imported is None
    with Log(database, read_only=True) as reader:
        assert reader.best(W, TARGETS[0]) == best
        with pytest.raises(LogError, match="for reading only"):
            add(reader, TARGETS[2])
    assert lookup.best(database, copy_of(99).digest, anywhere) is None


def test_an_empty_place_reads_as_an_empty_log(database: str) -> None:
    assert lookup.best(database, W.digest, anywhere) is None
    with Log(database) as log:
        assert log.tasks() == [] and log.stats()["records"] == 0
    assert lookup.best(database, W.digest, anywhere) is None


def test_exports_and_merges_are_the_same_everywhere(database: str, tmp_path: Path) -> None:
    with Log(database) as log, Log(tmp_path / "other.db") as other:
        fill(log, 6)
        fill(other, 6, copy_of(9))
        assert other.merge(database) == MergeResult(7, 0, {})
        assert log.merge(tmp_path / "other.db") == MergeResult(7, 7, {})
        assert exported(log) == exported(other)
        log.export(tmp_path / "a.jsonl")
        log.export(tmp_path / "a.json", form="t4")
        for name in ("a.jsonl", "a.json"):
            assert log.merge(tmp_path / name) == MergeResult(0, 14, {})
            with Log(tmp_path / f"{name}.db") as again:
                assert again.merge(tmp_path / name) == MergeResult(14, 0, {})
                assert exported(again) == exported(log)
        assert log.merge(database) == MergeResult(0, 14, {})


def test_records_are_added_all_or_none(database: str) -> None:
    with Log(database) as log:
        run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        made = log.add_all(measured(run, i) for i in range(50))
        assert log.seen(W, TARGETS[0]) == made
        assert log.add_all([measured(run, 3)]) == made[3:4]  # the same record
        assert log.add_all([]) == []
        with pytest.raises(LogError, match="cannot be logged"):
            log.add_all([measured(run, 60), measured(run, 61, times_s=())])
        assert log.stats()["records"] == 50


def test_a_clock_that_is_set_back_does_not_make_news_old(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(database) as log:
        run = log.start_run(W, TARGETS[0], MACHINE, seed=0).uid
        future = "2031-01-01T00:00:00.999999Z"
        log.add(measured(run, 0, kind="final", created=future))
        monkeypatch.setattr("kernels_db.records.now", lambda: moment(0))
        same = {"trace": trace(0), "kind": "final", "created": None}
        first = log.add(measured(run, 1, **same, times_s=[9.0]))
        assert first.created == "2031-01-01T00:00:01.000000Z"
        assert log.best(W, TARGETS[0]) == first  # the newest final counts
        both = log.add_all([measured(run, i, **same, times_s=[float(i)]) for i in (2, 3)])
        assert [r.created[-7:] for r in both] == ["000001Z", "000002Z"]
        assert log.best(W, TARGETS[0]) == both[1]
        wrong = log.add(measured(run, 4, trace=trace(0), created=None, status="wrong_result", times_s=()))
        assert log.best(W, TARGETS[0]) is None
        assert log.add(measured(run, 5, created=None)).created == moment(0)  # of another trace
        assert wrong.created > both[1].created


def test_pins_hold_and_are_removed(database: str) -> None:
    with Log(database) as log:
        made = fill(log, 4)
        best = log.best(W, TARGETS[0])
        assert best is not None
        assert log.pin() == [Pin(W.digest, TARGETS[0].digest, best.uid)]
        run = log.start_run(W, TARGETS[0], MACHINE, seed=1).uid
        faster = log.add(measured(run, 9, times_s=[1e-9]))
        assert log.best(W, TARGETS[0]) == faster
        found = lookup.best(database, W.digest, anywhere)
        assert found is not None and found.pinned and found.record == best
        assert log.pinned(W, TARGETS[0]) == best and log.pinned(W, TARGETS[1]) is None
        assert log.pin([Pin(W.digest, TARGETS[0].digest, made[1].uid)])[0].record == made[1].uid
        assert [p.record for p in log.pins()] == [made[1].uid]
        for bad in ("0" * 32, faster.uid):
            wrong = Pin(copy_of(9).digest, TARGETS[0].digest, bad, "copy n=9")
            with pytest.raises(LogError, match=r"lacks 1 of the records.*copy n=9.*autotune log import"):
                log.pin([wrong])
        assert [p.record for p in log.pins()] == [made[1].uid]
        assert (log.unpin(), log.unpin()) == (1, 0)
        assert lookup.best(database, W.digest, anywhere).record == faster  # type: ignore[union-attr]


def test_pruning_keeps_the_best_the_pinned_and_what_is_wrong(database: str) -> None:
    with Log(database) as log:
        made = fill(log, 10)
        fill(log, 4, copy_of(9), TARGETS[1])
        run = log.start_run(W, TARGETS[0], MACHINE, seed=1).uid
        wrong = log.add(measured(run, 2, status="wrong_result", times_s=()))
        log.finish_run(run)
        log.pin([Pin(W.digest, TARGETS[0].digest, made[6].uid)])
        log.verified(made[7], MACHINE, "slower", 1.0)
        before, best = exported(log), log.top_k(W, TARGETS[0], 2)
        planned = log.prune(2)
        assert exported(log) == before
        assert log.prune(2, apply=True) == planned
        assert {r.uid for r in log.records(workload=W)} == {*(r.uid for r in best), made[6].uid, wrong.uid}
        assert log.top_k(W, TARGETS[0], 2) == best
        assert (planned.kept, planned.removed) == (6, 11)
        assert log.prune(2, apply=True).removed == 0
        log.unpin()
        assert log.prune(1, apply=True).removed == 3
        add(log, copy_of(77))
        assert log.prune(1, apply=True).removed == 0 and copy_of(77).digest not in log.workloads()


def test_pruning_keeps_what_verifying_found_wrong(database: str, tmp_path: Path) -> None:
    """Else merging a log that still believes in it would bring it back."""
    with Log(database) as log:
        made = fill(log, 4)
        log.export(tmp_path / "before.jsonl")
        wrong = log.best(W, TARGETS[0])
        assert wrong is not None and not log.doubts(wrong)
        log.pin()
        log.verified(wrong, MACHINE, "wrong")
        assert log.doubts(wrong) and log.pinned(W, TARGETS[0]) == wrong
        hit = lookup.best(database, W.digest, anywhere)
        assert hit is not None and (hit.record, hit.pinned, hit.doubted) == (wrong, True, True)
        log.unpin()
        log.prune(1, apply=True)
        assert log.merge(tmp_path / "before.jsonl").new > 0
        best = log.best(W, TARGETS[0])
        assert best is not None and best.trace_digest != wrong.trace_digest and best in made
        assert lookup.best(database, W.digest, anywhere).record == best  # type: ignore[union-attr]


@pytest.mark.slow
def test_pruning_gives_space_back(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    with Log(db) as log:
        fill(log, 2000)
    before = db.stat().st_size
    with Log(db) as log:
        assert log.prune(1, apply=True).removed > 1000
    assert db.stat().st_size < before / 4


def test_a_record_from_elsewhere_is_marked_until_verified_here(database: str, tmp_path: Path) -> None:
    here = {"cpu": "ours", "cpus": 2, "architecture": "x86_64", "system": "Linux", "kernel": "6.1"}
    updated = {**here, "kernel": "6.2", "numpy": "9"}
    there = {**here, "cpus": 8}
    with Log(tmp_path / "theirs.db") as log:
        run = log.start_run(W, TARGETS[0], there, seed=0).uid
        log.add(measured(run, 0))
    with Log(database) as log:
        run = log.start_run(W, TARGETS[1], here, seed=0).uid
        own = log.add(measured(run, 0))
        log.merge(tmp_path / "theirs.db")
        theirs = log.best(W, TARGETS[0])
        assert theirs is not None
        assert not log.origin(own).elsewhere(updated)  # type: ignore[union-attr]
        assert log.origin(own).elsewhere({**here, "cpu": "another"})  # type: ignore[union-attr]
        origin = log.origin(theirs)
        assert origin is not None and origin.imported is not None and origin.elsewhere(here)
        log.verified(theirs, updated, "ok", 1e-3)
        found = lookup.best(log.place, W.digest, lambda t: t == TARGETS[0])
        assert found is not None and found.origin is not None
        assert not found.origin.elsewhere(here) and found.origin.elsewhere({**here, "cpus": 4})
        assert found.origin.document(here)["verified"] is not None
        # What is found wrong is taken no longer, until it is found good.
        log.verified(theirs, here, "wrong")
        assert log.best(W, TARGETS[0]) is None and log.doubted(W, TARGETS[0], here) == [theirs]
        assert lookup.best(database, W.digest, lambda t: t == TARGETS[0]) is None
        assert log.origin(theirs).elsewhere(here)  # type: ignore[union-attr]
        log.verified(theirs, here, "ok")
        assert log.best(W, TARGETS[0]) == theirs
        # It stays here: an export says nothing of it, and merging again does not bring the mark back.
        with Log(tmp_path / "theirs.db") as other:
            assert other.merge(database).refused == {}
            assert exported(other) == exported(log)
        log.merge(tmp_path / "theirs.db")
        assert not log.origin(theirs).elsewhere(here)  # type: ignore[union-attr]
        with Log(tmp_path / "back.db") as back:  # at the machine that it is of
            back.merge(database)
            origin = back.origin(theirs)
            assert origin is not None and origin.imported is not None
            assert not origin.elsewhere({**there, "kernel": "6.3"}) and origin.elsewhere(here)
        with pytest.raises(LogError, match="no record"):
            log.verified("0" * 32, here, "ok")
        assert log.origin("0" * 32) is None


# -- many writers ---------------------------------------------------------------------------------


def write(where: str, number: int, batches: int, size: int) -> None:
    with Log(where) as log:
        run = log.start_run(W, TARGETS[0], MACHINE, seed=number).uid
        for b in range(batches):
            log.add_all([measured(run, b * size + i) for i in range(size)])
        log.add(measured(run, 10_000))
        log.finish_run(run)


def merge(where: str, source: str) -> None:
    with Log(where) as log:
        log.merge(source)


def at_once(work: list[tuple[object, ...]]) -> list[int | None]:
    context = mp.get_context("spawn")
    started = [context.Process(target=globals()[str(name)], args=args) for name, *args in work]
    for p in started:
        p.start()
    for p in started:
        p.join()
    return [p.exitcode for p in started]


def all_are_there(database: str, tmp_path: Path, processes: int, batches: int, size: int) -> None:
    """Writers and a merge on a log that all of them create at once."""
    with Log(tmp_path / "other.db") as other:
        fill(other, 30, copy_of(9))
    work: list[tuple[object, ...]] = [("write", database, i, batches, size) for i in range(processes)]
    work += [("merge", database, str(tmp_path / "other.db"))] * 2
    assert at_once(work) == [0] * len(work)
    with Log(database) as log:
        n = processes * (batches * size + 1)
        uids = [r.uid for r in log.records(workload=W)]
        assert len(uids) == len(set(uids)) == n
        assert log.stats()["records"] == n + 31
        assert {r.state for r in log.runs()} == {"done"} and len(log.runs()) == processes + 1
        for run in log.runs(workload=W):
            assert sorted(r.trial for r in log.records(run=run)) == [*range(batches * size), 10_000]


@pytest.mark.slow
def test_many_processes_write_at_once(database: str, tmp_path: Path) -> None:
    all_are_there(database, tmp_path, 3, 4, 10)


@pytest.mark.soak
def test_eight_processes_write_16000_records(database: str, tmp_path: Path) -> None:
    all_are_there(database, tmp_path, 8, 19, 105)
    if "://" not in database:
        con = sqlite3.connect(database)
        assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        con.close()


# -- PostgreSQL alone -----------------------------------------------------------------------------


def test_the_migrations_make_the_declared_schema_on_postgresql(postgres: Server) -> None:
    from sqlalchemy import create_engine

    migrated, declared = postgres.database(), postgres.database()
    Log(migrated).close()
    postgres.query(declared, "CREATE SCHEMA autotune")
    engine = create_engine(declared, connect_args={"options": "-c search_path=autotune"})
    METADATA.create_all(engine)
    engine.dispose()
    columns = (
        "SELECT table_name, column_name, data_type, is_nullable, collation_name "
        "FROM information_schema.columns "
        "WHERE table_schema = 'autotune' AND table_name <> 'alembic_version' ORDER BY 1, 2"
    )
    indexes = (
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'autotune' "
        "AND tablename <> 'alembic_version' ORDER BY 1"
    )
    for sql in (columns, indexes):
        assert postgres.query(migrated, sql) == postgres.query(declared, sql) != []
    collations = {row[4] for row in postgres.query(migrated, columns) if row[2] == "text"}
    assert collations == {"C"}  # the order of texts is SQLite's, whatever the server's language


def test_a_newer_older_or_foreign_schema_of_postgresql(postgres: Server, tmp_path: Path) -> None:
    url = postgres.database()
    with Log(url) as log:
        fill(log, 2)
    newer = compat.SCHEMA_VERSION + 1
    postgres.query(url, f"UPDATE autotune.alembic_version SET version_num = '{newer:04d}'")
    for read_only in (True, False):
        with pytest.raises(LogError, match=f"schema version {newer}.*--upgrade autotune-compiler"):
            Log(url, read_only=read_only)
    with pytest.raises(LogError, match=f"schema version {newer}"):
        lookup.best(url, W.digest, anywhere)
    foreign = postgres.database()
    postgres.query(foreign, "CREATE SCHEMA autotune")
    postgres.query(foreign, "CREATE TABLE autotune.record (x int)")
    with pytest.raises(LogError, match="another application"):
        Log(foreign)
    shared = postgres.database()  # other tables of the same names, in a schema of their own
    postgres.query(shared, "CREATE TABLE public.record (x int)")
    with Log(shared) as log:
        assert len(fill(log, 2)) == 3
    assert postgres.query(shared, "SELECT count(*) FROM public.record") == [(0,)]


def test_an_old_schema_of_postgresql_is_upgraded(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.database()
    latest = migrate.upgrade
    with monkeypatch.context() as old:
        old.setattr(compat, "SCHEMA_VERSION", 1)
        old.setattr(migrate, "upgrade", lambda con: latest(con, 1))
        Log(url).close()
    assert postgres.query(url, "SELECT version_num FROM autotune.alembic_version") == [("0001",)]
    with pytest.raises(LogError, match="older schema.*autotune log stats --db"):
        lookup.best(url, W.digest, anywhere)
    with Log(url) as log:
        fill(log, 2)
        assert log.pin() != []


def test_what_postgresql_refuses_is_explained(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres.database()
    with Log(url) as log:
        fill(log, 2)
    secret = f"postgresql+psycopg://nobody:s3cret@/{url.split('/')[-1].split('?')[0]}?host={postgres.folder}"
    with pytest.raises(LogError, match="nobody.*does not exist") as caught:
        Log(secret)
    assert "s3cret" not in str(caught.value) and "s3cret" not in repr(locate(secret))
    assert "***" in str(locate(secret))
    with pytest.raises(LogError, match="cannot use the log .*check the URL"):
        lookup.best(f"postgresql://postgres@/x?host={postgres.folder}/nowhere", W.digest, anywhere)
    postgres.query(url, "CREATE ROLE reader LOGIN")
    postgres.query(url, "GRANT USAGE ON SCHEMA autotune TO reader")
    postgres.query(url, "GRANT SELECT ON ALL TABLES IN SCHEMA autotune TO reader")
    weak = url.replace("postgres@", "reader@")
    assert lookup.best(weak, W.digest, anywhere) is not None
    with Log(weak) as log, pytest.raises(LogError, match="permission denied.*can give this user the right"):
        add(log, TARGETS[2])
    with Log(url, timeout_s=0.2) as log:
        import psycopg

        holder = psycopg.connect(url.replace("+psycopg", ""))
        holder.execute("LOCK TABLE autotune.target IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LogError, match="locked by another session"):
            add(log, TARGETS[2])
        holder.close()
        add(log, TARGETS[2])
        pid = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'autotune'"
        postgres.query(url, pid)  # as when the server was restarted: the next use connects again
        assert log.stats()["targets"] == 2
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LogError, match=r"pip install 'autotune-compiler\[postgresql\]'"):
        Log(url)


def test_a_right_that_is_missing_on_postgresql_is_named(postgres: Server, tmp_path: Path) -> None:
    url = postgres.database()
    postgres.query(url, "CREATE ROLE guest LOGIN")
    guest = url.replace("postgres@", "guest@")

    def into(source: str) -> None:
        with Log(tmp_path / "x.db") as log:
            log.merge(source)

    def denied(right: str) -> None:
        ways = (
            lambda: lookup.best(guest, W.digest, anywhere),
            lambda: Log(guest, read_only=True),
            lambda: Log(guest),
            lambda: into(guest),
        )
        for way in ways:
            with pytest.raises(LogError, match=f"permission denied.*its owner can give.*{right}"):
                way()

    with pytest.raises(LogError, match="permission denied for database.*GRANT CREATE ON DATABASE"):
        Log(guest)
    with Log(url) as log:
        fill(log, 2)
    denied("GRANT USAGE ON SCHEMA autotune")
    postgres.query(url, "GRANT USAGE ON SCHEMA autotune TO guest")
    denied("GRANT SELECT ON ALL TABLES IN SCHEMA autotune")
    postgres.query(url, "GRANT SELECT ON autotune.alembic_version TO guest")

    def stats() -> None:
        with Log(guest) as log:
            log.stats()

    for ask in (lambda: lookup.best(guest, W.digest, anywhere), stats, lambda: into(guest)):
        with pytest.raises(LogError, match="permission denied for table.*GRANT SELECT ON ALL TABLES"):
            ask()
    postgres.query(url, "GRANT SELECT ON ALL TABLES IN SCHEMA autotune TO guest")
    into(guest)


@pytest.mark.parametrize("secret", ["s3/cret", "se@cr3t", "s#3cret", "s?3@/cret", "s:3cr"])
def test_a_password_of_postgresql_is_not_shown(postgres: Server, secret: str) -> None:
    url = f"postgresql+psycopg://nobody:{secret}@/none?host={postgres.folder}"
    for way in (lambda: Log(url, timeout_s=1), lambda: lookup.best(url, W.digest, anywhere, timeout_s=1)):
        with pytest.raises(LogError) as caught:
            way()
        said = str(caught.value).replace(str(postgres.folder), "")  # a name drawn at random
        assert "***@" in said and "s3" not in said and "3c" not in said and "cr3t" not in said
