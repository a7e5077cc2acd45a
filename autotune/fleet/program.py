"""Tunes a program on the machines of a fleet: of one size, or some sizes of a range as tasks of a suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.fleet.tuning import There, tune_there
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.tuning.dynamic_tuner import failed, feasible, result_of, sizes_for, task_of
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job, SuiteTask
from autotune.tuning.options import TuneOptions
from autotune.tuning.results import SuiteProgress, TaskResult, TuneResult
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from kernels_db.store import Log


def tune_program_there(
    there: There,
    program: Workload | DynamicWorkload,
    log: Log,
    options: TuneOptions,
    progress: Callable[[SuiteProgress], None] | None = None,
    *,
    interrupts: Interrupts | None = None,
) -> dict[Target, TuneResult]:
    """Tune a program for each target. Of a range: the sizes that `tune_dynamic` chooses for the budget; the
    results are `DynamicResult`s. Sizes between them get no first picks here: each takes its own when it is
    first called. A size that takes more than the budget has an error of its own. Raises as `tune_there`, and
    as `preparation.check_feasible` where no size can be tuned."""
    if isinstance(program, Workload):
        job = Job([SuiteTask(program)], options)
        found = tune_there(there, lambda _: job, log, progress, interrupts=interrupts)
        return {t: _with_error(r.tasks[0]) for t, r in found.items()}
    sizes, others = feasible(program, sizes_for(program.dims, options), options.budget_s, memory=False)
    if not sizes:
        raise next(iter(others.values()))
    job = Job([task_of(program, s) for s in sizes], options)
    found = tune_there(there, lambda _: job, log, progress, interrupts=interrupts)
    results: dict[Target, TuneResult] = {}
    for target, r in found.items():
        by_size = dict(zip(sizes, map(_with_error, r.tasks), strict=True))
        by_size |= {s: failed(program.at(s), target, log, options.seed, e) for s, e in others.items()}
        results[target] = result_of(program, target, log, by_size, r.stopped, r.elapsed_s, options.seed)
    return results


def _with_error(task: TaskResult) -> TuneResult:
    """The result of a task, with why it has no kernel, or why it got less time than it had."""
    result = task.result
    if task.error is None or result.best is None:
        return replace(result, error=task.error or result.error)
    return replace(result, notes=(*result.notes, f"it ended early: {task.error}"))
