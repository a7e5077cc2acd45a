"""Several processes on one log, and processes that are killed."""

from __future__ import annotations

import os
import random
import select
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from log_cases import MACHINE, TARGETS, copy_of, exported, measured

from kernels_db import Log, lookup, sqlite
from kernels_db.errors import LogError

W = copy_of(8)


def child(work: Callable[[int], None]) -> tuple[int, int]:
    """Run ``work`` in a fork, with the writing end of a pipe; gives (pid, reading end)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    status = 1
    try:
        os.close(read)
        work(write)
        status = 0
    finally:
        os._exit(status)


def uids(fd: int) -> list[str]:
    """The whole lines that a child wrote before its end."""
    with os.fdopen(fd, "rb") as f:
        data = f.read()
    return data[: data.rfind(b"\n") + 1].decode().split()


def writer(path: Path, target: int, n: int) -> Callable[[int], None]:
    def work(out: int) -> None:
        with Log(path) as log:
            run = log.start_run(W, TARGETS[target], MACHINE, seed=os.getpid())
            for i in range(n):
                record = log.add(measured(run.uid, i))
                os.write(out, record.uid.encode() + b"\n")
            log.finish_run(run)

    return work


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_two_processes_write_while_others_read(tmp_path: Path) -> None:
    path = tmp_path / "tuning.db"  # that both create at once
    n = 40

    def read(out: int) -> None:
        seen = 0
        while seen < 2 * n:
            found = lookup.best(path, W.digest, lambda t: True)
            assert found is None or found.record.status == "ok"
            if path.exists() and path.stat().st_size:
                with Log(path, read_only=True) as log:
                    now = log.stats()["records"]
                    assert (
                        seen <= now == len(log.seen(W, TARGETS[0])) + len(log.seen(W, TARGETS[1]))
                        or seen <= now
                    )
                    seen = now
            os.write(out, b"read\n")

    started = [child(writer(path, 0, n)), child(writer(path, 1, n)), child(read)]
    said = [uids(fd) for _, fd in started]
    assert [wait(pid) for pid, _ in started] == [0, 0, 0]
    with Log(path, read_only=True) as log:
        assert [r.uid for r in log.seen(W, TARGETS[0])] == said[0] and len(said[0]) == n
        assert [r.uid for r in log.seen(W, TARGETS[1])] == said[1] and len(said[1]) == n
        assert {r.state for r in log.runs()} == {"done"}


@pytest.mark.slow
def test_a_merge_and_a_writer_do_not_hinder_each_other(tmp_path: Path) -> None:
    with Log(tmp_path / "other.db") as log:
        run = log.start_run(W, TARGETS[2], MACHINE, seed=1)
        for i in range(60):
            log.add(measured(run.uid, i))

    def merge(_: int) -> None:
        with Log(tmp_path / "tuning.db") as log:
            for _ in range(5):
                log.merge(tmp_path / "other.db")

    started = [child(writer(tmp_path / "tuning.db", 0, 40)), child(merge)]
    said = uids(started[0][1])
    assert [wait(pid) for pid, _ in started] == [0, 0]
    os.close(started[1][1])
    with Log(tmp_path / "tuning.db") as log:
        assert log.stats()["records"] == 100 and len(said) == 40


@pytest.mark.fast("9")
@pytest.mark.parametrize("moment", range(10))
def test_kill_9_loses_no_committed_record(tmp_path: Path, moment: int) -> None:
    """Killed at a random moment: while the log is created, between trials, or amid a commit."""
    path = tmp_path / "tuning.db"
    rng = random.Random(moment)
    committed: list[str] = []
    for again in range(2):  # the second process goes on with what the first left
        pid, fd = child(writer(path, 0, 100_000))
        time.sleep(rng.uniform(0.0, 0.06 if again == 0 and moment < 3 else 0.25))
        os.kill(pid, signal.SIGKILL)
        assert wait(pid) == -signal.SIGKILL
        committed += uids(fd)
        with Log(path) as log:
            kept = {r.uid for r in log.records()}
            assert set(committed) <= kept
            assert len(kept) <= len(committed) + again + 1  # a kill may fall between commit and report
            assert all(r.state == "running" for r in log.runs())
            exported(log)
            assert (log.best(W, TARGETS[0]) is None) == (not kept)


def merger(path: Path, sources: list[Path]) -> Callable[[int], None]:
    def work(out: int) -> None:
        with Log(path) as log:
            while True:
                for source in sources:
                    os.write(out, f"{log.merge(source).new}\n".encode())

    return work


def batches(path: Path) -> Callable[[int], None]:
    """Batches of ten, reported once each is committed."""

    def work(out: int) -> None:
        with Log(path) as log:
            run = log.start_run(W, TARGETS[1], MACHINE, seed=os.getpid())
            for i in range(0, 1_000_000, 10):
                made = log.add_all(measured(run.uid, i + j) for j in range(10))
                os.write(out, "".join(f"{r.uid}\n" for r in made).encode())

    return work


@pytest.mark.soak
def test_200_kills_amid_writes_and_merges_lose_nothing(tmp_path: Path) -> None:
    """A writer of trials, a writer of batches and a merge on one log, all killed at once, 200 times."""
    path, rng = tmp_path / "tuning.db", random.Random(200)
    sources = []
    for n in range(30):  # something new to merge for a while
        with Log(tmp_path / f"{n}.db") as log:
            run = log.start_run(copy_of(20 + n), TARGETS[2], MACHINE, seed=n).uid
            log.add_all(measured(run, i) for i in range(300))
            log.export(tmp_path / f"{n}.jsonl")
        sources.append(tmp_path / f"{n}.jsonl" if n % 2 else tmp_path / f"{n}.db")
    committed: set[str] = set()
    for kill in range(200):
        rng.shuffle(sources)
        started = [child(writer(path, 0, 10**6)), child(batches(path)), child(merger(path, list(sources)))]
        if kill % 4:  # of four, one dies anywhere on the way, the others once something was committed
            select.select([fd for _, fd in started[: 1 + kill % 2]], [], [], 20)
        time.sleep(rng.uniform(0.0, 0.2))
        for pid, _ in started:
            os.kill(pid, signal.SIGKILL)
        for pid, _ in started:
            assert wait(pid) == -signal.SIGKILL, f"kill {kill}: it had ended"
        said = [uids(fd) for _, fd in started]
        committed |= {*said[0], *said[1]}
        con = sqlite3.connect(path)
        try:
            assert con.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            tables = {name for (name,) in con.execute("SELECT name FROM sqlite_master")}
            kept = {u for (u,) in con.execute("SELECT uid FROM record")} if "record" in tables else set()
            assert committed <= kept, f"kill {kill} lost {len(committed - kept)} records"
            if tables:
                assert con.execute("PRAGMA foreign_key_check").fetchall() == []
                task = "SELECT count(*) FROM record WHERE workload = ? AND target = ?"
                (n,) = con.execute(task, (W.digest, TARGETS[1].digest)).fetchone()
                assert n % 10 == 0, "a part of a batch was committed"
        finally:
            con.close()
    assert len(committed) > 1000
    with Log(path) as log, Log(tmp_path / "again.db") as again:
        for source in sources:
            log.merge(source)
        assert log.stats()["targets"] == 3
        log.export(tmp_path / "a.jsonl")
        assert again.merge(tmp_path / "a.jsonl").refused == {}
        assert exported(again) == (tmp_path / "a.jsonl").read_text()


def test_marks_of_a_log_are_of_one_moment(tmp_path: Path) -> None:
    """Another process makes the log while its marks are read: it is new, and not another application's."""
    path, made = tmp_path / "tuning.db", []
    with closing(sqlite.connect(path, read_only=False, timeout_s=5.0)) as con:

        def make(statement: str) -> None:
            if "user_version" in statement and not made:
                made.append(statement)
                with suppress(LogError):
                    Log(path, timeout_s=0.1).close()

        con.set_trace_callback(make)
        assert sqlite.inspect(con, path) == "new" and made
    Log(path).close()
    with closing(sqlite.connect(path, read_only=False, timeout_s=5.0)) as con:
        assert sqlite.inspect(con, path) == "current"
