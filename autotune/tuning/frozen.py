"""The result of a run that measures nothing and only reads the log: ``autotune tune --frozen``."""

from __future__ import annotations

import time

from autotune.backends.building.from_trace import check_legal
from autotune.results.tuned import Best, TuneResult
from autotune.tuning import no_kernel
from autotune.tuning.run_records import searched
from kernels_db.records import Record
from kernels_db.store import Log
from schedules.errors import ScheduleError
from schedules.model import Target, TraceError, Workload

# Records that are looked at to find a legal one.
CANDIDATES = 32


def frozen(workload: Workload, target: Target, log: Log, seed: int = 0) -> TuneResult:
    """The pinned record, else the best one whose schedule is legal. ``best`` is None if there is none, or if
    the pinned one was found wrong since. Raises `LogError`."""
    started = time.monotonic()
    known = sum(log.by_status(workload, target).values())
    pinned = log.pinned(workload, target)
    if pinned is None:
        records = log.top_k(workload, target, CANDIDATES)
    else:
        records = [] if log.doubts(pinned) else [pinned]
    best = next((b for r in records if (b := _best(workload, target, r)) is not None), None)
    took = time.monotonic() - started
    error = (
        None
        if best is not None
        else no_kernel.why({}, {}, "frozen", prepared_s=0.0, elapsed_s=took, budget_s=0.0)
    )
    return TuneResult(
        *(workload, target, best, 0, {}, known, took, seed, "frozen"), error=error, place=log.place,
        only_plain=best is not None and pinned is None and not searched(workload, target, log),
    )


def _best(workload: Workload, target: Target, record: Record) -> Best | None:
    try:
        check_legal(workload.canonical, record.trace, target)
    except (TraceError, ScheduleError):
        return None
    return Best.of(workload, record)
