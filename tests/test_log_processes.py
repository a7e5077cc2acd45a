"""Several processes on one log, and processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from log_cases import MACHINE, TARGETS, copy_of, exported, measured

from kernels_db import Log, lookup

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
