"""Logs that reports are made of, written without tuning."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import ops
from schedules.model import Target, Trace, Workload
from schedules.schedule import Schedule

HOST = Target("cpu", "x86-64-v3", threads=2, triple="x86_64-unknown-linux-gnu")
MACHINE = {"cpu": "A CPU of a test", "usable_cpus": 2, "memory_gib": 8, "system": "Linux"}
LIMIT = {"seconds": 2e-4, "flops_a_second": 1e11, "bytes_a_second": 1e10}


def after(begin: datetime, second: float) -> str:
    """A moment of the log."""
    return (begin + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def traces_of(workload: Workload, count: int) -> list[Trace]:
    """Schedules that can be replayed: the first loop of the last stage split by 1, 2, …"""
    found = []
    for n in range(count):
        s = Schedule(workload.canonical)
        outer, _ = s.split(s.loops(s.blocks()[-1])[0], [None, n + 1])
        s.parallel(outer)
        found.append(s.trace)
    return found


def add_task(
    log: Log,
    workload: Workload,
    trials: int,
    *,
    seed: int = 0,
    target: Target = HOST,
    machine: dict[str, Any] = MACHINE,
    statuses: tuple[str, ...] = ("ok", "ok", "ok", "slow", "ok", "timeout", "ok", "wrong_result"),
    reason: str = "as a test has it",
    sketch: str = "C.pack=none",
    memory: bool = True,
    limit: bool = True,
    finals: bool = True,
    traces: int = 16,
) -> None:
    """A run of a search: times fall, some trials fail, the best are timed once more."""
    draw = random.Random(seed)
    known = traces_of(workload, traces)
    run = log.start_run(workload, target, machine, seed=seed, options={"trials": trials, "budget_s": None})
    begin = datetime.now(UTC)  # runs begin when they are logged
    news, ok = [], []
    for n in range(trials):
        status = statuses[n % len(statuses)]
        time_s = 1e-3 * (1.0 + 3.0 * math.exp(-n / 40.0) * draw.random() + 0.2 * draw.random())
        environment: dict[str, Any] = {
            "decisions": [4, 8],
            "predicted": {"model": 1e-3 / time_s * (0.9 + 0.2 * draw.random()), "analytic": 1.0 / time_s},
            "seconds": {"search": 0.01, "build": 0.05, "check": 0.02, "run": 0.03},
        }
        if memory:
            environment["memory_bytes"] = 100_000 + 50_000 * (n % 7)
        if limit and n == 0:
            environment["limit"] = LIMIT
        timed = status in ("ok", "slow")
        news.append(
            NewRecord(
                run.uid, n, sketch, known[n % traces], status, "" if status == "ok" else reason,
                times_s=(time_s,) * 3 if timed else (), environment=environment,
                created=after(begin, n / 4 + n * 1e-5),
            )
        )  # fmt: skip
        if status == "ok":
            ok.append((time_s, n))
    if finals:
        for k, (time_s, n) in enumerate(sorted(ok)[:4]):
            where = after(begin, trials / 4 + 1 + k)
            news.append(
                NewRecord(
                    run.uid,
                    n,
                    sketch,
                    known[n % traces],
                    "ok",
                    times_s=(time_s,),
                    kind="final",
                    created=where,
                )
            )
    log.add_all(news)
    log.finish_run(run)


def small_log(path: Path, **more: Any) -> Path:
    """Two tasks: a matrix product with failures, and a sum of rows, which is bound by memory."""
    with Log(path) as log:
        add_task(log, ops.workload("matmul", {"m": 64, "n": 48, "k": 32}), 60, **more)
        add_task(log, ops.workload("reduce_sum", {"m": 128, "n": 64}), 24, seed=1, **more)
    return path
