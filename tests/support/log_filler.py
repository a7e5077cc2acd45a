"""A log with records of this machine, made without tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import targets
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import ops
from schedules.model import Target, Trace, Workload
from schedules.schedule import Schedule

Entry = tuple[str, Mapping[str, Any], float]  # operator, parameters, seconds of its one valid record


def host(threads: int = 1) -> Target:
    """This machine."""
    return targets.detect(threads)


def split_schedule(workload: Workload) -> Trace:
    """A schedule that differs from the default one, as a log has it: its last stage's first loop split."""
    s = Schedule(workload.canonical)
    block = s.blocks()[-1]
    s.split(s.loops(block)[0], [None, 4])
    return s.trace


def fill(db: Path, entries: Sequence[Entry], target: Target | None = None) -> list[str]:
    """Logs one valid record and one failure for every entry; gives the uids of the valid ones."""
    return fill_workloads(db, [(ops.workload(op, params), time_s) for op, params, time_s in entries], target)


def fill_workloads(
    db: Path, entries: Sequence[tuple[Workload, float]], target: Target | None = None
) -> list[str]:
    """`fill` of workloads."""
    goal = host() if target is None else target
    uids = []
    with Log(db) as log:
        for workload, time_s in entries:
            trace = split_schedule(workload)
            run = log.start_run(workload, goal, {"cpu": "a test"}, seed=0)
            uids.append(log.add(NewRecord(run.uid, 0, "s", trace, "ok", times_s=(time_s,) * 3)).uid)
            log.add(NewRecord(run.uid, 1, "s", Trace(), "timeout", "too slow"))
            log.finish_run(run)
    return uids
