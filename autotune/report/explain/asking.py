"""`explain`: finds what it is asked about, in the log or in what it is given."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from autotune import backends
from autotune.models.model import Model
from autotune.report.data import Limit
from autotune.report.explain.kernel import of_schedule
from autotune.results.explanation import Explanation
from autotune.results.tuned import TuneResult
from autotune.run.workloads import Program, as_workload
from autotune.settings import database
from kernels_db.records import Hit
from schedules.model import Target, Workload
from schedules.schedule import Schedule
from schedules.te.flops import count_flops
from schedules.te.strided import Strides
from schedules.trace_names import to_named


def explain(
    program: Program | Schedule | Model,
    *,
    dtype: str | None = None,
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    strides: Strides | None = None,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    **params: Any,
) -> Explanation:
    """Why a kernel takes the time that it takes. Nothing is measured for it.

    ``program``: an operator (``"matmul", m=512, n=512, k=512``) or a list of tensors, whose best record of
    the log ``db`` is explained; a `Schedule` written by hand; or a `Model`, of whose groups it says which
    take the time. Other parameters as of `load`. ``threads=None`` takes the fastest record; for a schedule,
    the CPUs usable here.

    Bytes (decimal KB and MB) and cycles are estimated from the loop nest, not measured; each row tells its
    source. See `schedules.space.estimate.traffic` for how bytes between levels follow from the loops.

    Raises `KernelNotFound` where nothing is tuned, `WorkloadError`, `TargetError` or `LogError`.

        >>> schedule = at.Schedule(at.ops.workload("matmul", {"m": 64, "n": 64, "k": 64}).dag)
        >>> at.explain(schedule)
        <Explanation of ...>
    """
    if isinstance(program, Schedule):
        goal = program.target or backends.parse(target, threads)
        return of_schedule(Workload(program.dag, flops=count_flops(program.dag)), program, goal)
    if isinstance(program, Model):
        from autotune.report.explain.model import of_model

        return of_model(program, backends.parse(target, threads), database(db))
    workload = as_workload(program, params, dtype, layout, constant_weights, explain, strides)
    return of_workload(workload, target=target, threads=threads, db=db)


def of_workload(
    workload: Workload,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
) -> Explanation:
    """The explanation of a workload's best record. Raises `KernelNotFound`."""
    from autotune.run.asked import Asked
    from autotune.run.loading import find

    asked = Asked.of(target, threads, db)
    return of_hit(workload, find(workload, asked), asked.where)


def of_hit(workload: Workload, hit: Hit, where: str) -> Explanation:
    """The explanation of a record of the log ``where``."""
    schedule = Schedule.replay(workload.dag, to_named(workload, hit.record.trace), hit.target)
    return of_schedule(workload, schedule, hit.target, hit.time_s, limit_of(hit, where))


def limit_of(hit: Hit, where: str) -> Limit | None:
    """The shortest limit that runs of the record's task kept on its machine. None where none did."""
    from kernels_db.store import Log

    with Log(where, read_only=True) as log:
        records = log.records(workload=hit.record.workload, target=hit.target)
        return Limit.shortest(records, hit.record.machine)


def of_result(result: TuneResult) -> Explanation:
    """Why the best schedule of a result is as fast as it is. Raises `ScheduleError` where there is none."""
    schedule, best = result.schedule(), result.best
    assert best is not None, "else there is no schedule"
    share = best.share_of_peak
    limit = None if share is None else Limit(share * best.time_s, peak_of=best.peak_of)
    return of_schedule(result.workload, schedule, result.target, best.time_s, limit)
