"""Processes of a fleet on this machine: whole runs, and kill -9 of a worker, the scheduler and the client."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from graph_meaning import evaluate
from model_cases import layers, model_of
from needs import imported
from waiting import LIMIT_S, wait_until

import autotune as at
from autotune.fleet import client, local
from kernels_db.records import Record

imported("distributed")
SHAPE = "m=64,n=64,k=64"


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Processes:
    """A scheduler, workers and clients, each in a process of its own."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.environment = os.environ | {"AUTOTUNE_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder)}
        self.all: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        log = self.stack.enter_context(open(self.folder / f"out{len(self.all)}", "w+", encoding="utf-8"))
        found = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            start_new_session=True,
        )
        found.log = log  # type: ignore[attr-defined]
        self.all.append(found)
        return found

    def scheduler(self) -> subprocess.Popen[str]:
        found = self.start(
            *("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--no-dashboard", "--dashboard-address", "127.0.0.1:0"),
        )
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            with closing(socket.socket()) as sock:
                if sock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return found
            time.sleep(0.1)
        raise AssertionError(said(found))

    def worker(self, *options: str) -> subprocess.Popen[str]:
        return self.start("autotune", "worker", self.address, "--threads", "1", *options)

    def client(self, db: Path, budget: str = "60s", *options: str) -> subprocess.Popen[str]:
        return self.start(
            *("autotune", "tune", "matmul", "--shape", SHAPE, "--fleet", self.address),
            *("--db", str(db), "--budget", budget, "--json", *options),
        )

    def kill(self, process: subprocess.Popen[str]) -> None:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def said(process: subprocess.Popen[str]) -> str:
    log = process.log  # type: ignore[attr-defined]
    log.flush()
    log.seek(0)
    return str(log.read())


def document(process: subprocess.Popen[str]) -> Any:
    """What ``--json`` printed, after notices on stderr."""
    text = said(process)
    return json.loads(text[text.index("{") :])


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Ends all, and sees that nothing is left of what they started."""
    with ExitStack() as stack:
        made = Processes(stack, folder)
        try:
            yield made
        finally:
            for x in made.all:
                if x.poll() is None:
                    x.kill()
                    x.wait()
        wait_until(lambda: not orphans(folder))


def orphans(folder: Path) -> list[str]:
    """Command lines of processes with the environment of a test that are not among ours."""
    found = []
    for p in psutil.process_iter():
        try:
            if p.pid != os.getpid() and p.environ().get("TMPDIR") == str(folder):
                found.append(" ".join(p.cmdline()) or p.status())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return [x for x in found if x != "zombie"]


def trials(db: Path) -> list[Record]:
    if not db.exists():
        return []
    try:
        with at.Log(db, read_only=True) as log:
            return [r for r in log.records() if r.kind == "trial"]
    except at.LogError:  # it is being made
        return []


def once(records: Sequence[Record]) -> bool:
    """Whether no trial of a run was stored twice."""
    keys = [(r.run, r.trace_digest) for r in records]
    return len(keys) == len(set(keys))


@pytest.mark.slow
def test_a_local_fleet_tunes_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    db = tmp_path / "t.db"
    result = at.tune(
        "matmul", m=64, n=64, k=64, threads=1, target="cpu", fleet="local:2", trials=12, budget_s=60, db=db,
        progress=None,
    )  # fmt: skip
    assert result.measured == 12 and result.best is not None and not result.failed
    best = at.best("matmul", m=64, n=64, k=64, threads=1, db=db)
    assert best is not None and best.record.uid == result.best.record_id
    with at.Log(db) as log:
        facts = {r.machine for r in log.records()}
        assert len(facts) == 1 and log.machine(facts.pop()).info["cpu"]
    wait_until(lambda: not orphans(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_local_fleet_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    db = tmp_path / "t.db"
    with processes(tmp_path) as here:
        here.address = "local:2"
        user = here.client(db, "60s", "--threads", "1", "--target", "cpu")
        wait_until(lambda: len(trials(db)) >= 3)
        user.send_signal(number)
        assert user.wait(60) == (0 if number == signal.SIGINT else 128 + number), said(user)
        told = document(user)
        assert told["stopped"] == "interrupted" and told["best"]["time_s"] > 0
        assert "Traceback" not in said(user) and "CRITICAL" not in said(user)
        with at.Log(db, read_only=True) as log:
            assert {r.state for r in log.runs()} == {"interrupted"}


@pytest.mark.slow
def test_a_model_that_a_local_fleet_tuned_runs_here(tmp_path: Path) -> None:
    graph, x = layers(2)
    model, db = model_of(graph), tmp_path / "t.db"
    kwargs: dict[str, Any] = {"threads": 1, "db": db, "trials": 2, "budget_s": 60, "progress": None}
    there = at.tune_model(model, fleet="local:1", target="cpu", **kwargs)
    assert there.measured == 2 * len(there.tasks) and there.in_place == ()
    net = at.compile_model(model, threads=1, db=db)
    np.testing.assert_array_equal(net(x), evaluate(graph, [x])[0])
    here = at.tune_model(model, **kwargs)  # the schedules are timed inside the model, and nothing else is
    assert (here.measured, here.skipped) == (0, len(here.tasks)) and here.in_place


def test_a_worker_may_say_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a pipe takes while nobody reads it."""
    script = tmp_path / "worker"
    says = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo >&2; echo last >&2; exit 3"
    script.write_text(f"#!/bin/sh\n{says}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with local.workers("tcp://127.0.0.1:1", 1) as (one,):
        assert one.process.wait(20) == 3 and one.last_words() == "last"


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(at.FleetError, match="a worker could not start: .*no-such"):
        with local.reached("local:1", ["no-such-target"]):
            pass


@pytest.mark.slow
def test_kill_9_of_a_worker_and_of_the_scheduler(tmp_path: Path) -> None:
    """A worker's candidates are measured by its successor. Without a scheduler the run ends with a reason,
    and the next one goes on with what was stored."""
    db = tmp_path / "t.db"
    with processes(tmp_path) as here:
        scheduler = here.scheduler()
        worker = here.worker("--name", "box")
        user = here.client(db)
        wait_until(lambda: len(trials(db)) >= 5)
        here.kill(worker)
        before = len(trials(db))
        here.worker("--name", "box")
        wait_until(lambda: len(trials(db)) >= before + 5)
        assert user.poll() is None
        here.kill(scheduler)
        assert user.wait(40) == 2
        told = document(user)
        assert "does not answer" in told["error"]["message"] and "is kept" in told["error"]["message"]
        kept = trials(db)
        assert once(kept) and not [r for r in kept if r.status == "crash"]
        here.scheduler()  # the worker comes back to it by itself
        again = here.client(db, "20s", "--trials", "5")
        assert again.wait(60) == 0, said(again)
        told = document(again)
        # the successor measured the best once more
        known = {r.trace_digest for r in kept if r.status != "error"}
        assert told["trials"]["measured"] == 5 and told["trials"]["resumed"] == len(known)


@pytest.mark.slow
def test_kill_9_and_ctrl_c_of_the_client(tmp_path: Path) -> None:
    """Its worker ends what it began, and serves the next one."""
    db = tmp_path / "t.db"
    with processes(tmp_path) as here:
        here.scheduler()
        worker = psutil.Process(here.worker().pid)
        user = here.client(db)
        wait_until(lambda: len(trials(db)) >= 3)
        here.kill(user)
        kept = {r.uid for r in trials(db)}
        second = here.client(db)
        wait_until(lambda: len(trials(db)) >= len(kept) + 3)
        os.killpg(second.pid, signal.SIGINT)
        assert second.wait(30) == 0, said(second)
        told = document(second)
        assert told["stopped"] == "interrupted" and told["best"]["time_s"] > 0
        assert kept <= {r.uid for r in trials(db)} and once(trials(db))
        wait_until(lambda: not worker.children(recursive=True))
        assert worker.is_running()


@pytest.mark.slow
def test_a_worker_that_hangs_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one of the machine goes on. (It has locks of its own: a lock of who hangs is not given up.)"""
    monkeypatch.setattr(client, "SILENT_S", 3.0)
    db = tmp_path / "t.db"
    with processes(tmp_path) as here:
        here.scheduler()
        first = here.worker("--name", "box")
        seen: list[int] = []

        def during(progress: Any) -> None:
            seen.append(progress.measured)
            if progress.measured == 5 and len(here.all) == 2:
                os.kill(first.pid, signal.SIGSTOP)
                (tmp_path / "locks").mkdir()
                here.environment |= {"TMPDIR": str(tmp_path / "locks")}
                here.worker("--name", "box")

        result = at.tune(
            "matmul", m=64, n=64, k=64, fleet=here.address, trials=12, budget_s=90, db=db, progress=during
        )  # fmt: skip
        here.environment |= {"TMPDIR": str(tmp_path)}
        assert result.measured == 12 and once(trials(db)) and result.best is not None
        os.kill(first.pid, signal.SIGCONT)


@pytest.mark.soak
def test_fifty_kills(tmp_path: Path) -> None:
    """Of workers, the scheduler and the client in turn: no record is lost, none is stored twice."""
    db, rng = tmp_path / "t.db", random.Random(int(os.environ.get("SEED", "0")))
    with processes(tmp_path) as here:
        scheduler = here.scheduler()
        workers = [here.worker("--name", "box") for _ in range(2)]
        user = here.client(db, "20m", "--seed", "0")
        kept: set[str] = set()
        for number in range(50):
            time.sleep(rng.uniform(1.0, 6.0))
            seen = {r.uid for r in trials(db)}
            assert kept <= seen
            kept = seen
            match number % 3:
                case 0:
                    here.kill(workers.pop(0))
                    workers.append(here.worker("--name", "box"))
                case 1:
                    here.kill(user)
                case _:
                    here.kill(scheduler)
                    if user.poll() is None:
                        assert user.wait(60) in (0, 2)
                    scheduler = here.scheduler()
            if user.poll() is not None:
                user = here.client(db, "20m", "--seed", str(number))
        final = wait_until(lambda: len(trials(db)) > len(kept) and trials(db), 90)
        assert kept <= {r.uid for r in final} and once(final)
        print(len(final), "trials,", sum(r.status == "crash" for r in final), "of them crashes")
