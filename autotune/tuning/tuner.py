"""Tunes jobs: the tasks of a suite, or one task, which is a suite of its own.

`run` reads top to bottom. Every measurement is in the log at once, so that the best of every task can be
loaded at any moment, also after Ctrl-C or a kill. A new call goes on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autotune.measure.starting import shared_start
from autotune.tuning import preparation
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job, SuiteTask
from autotune.tuning.options import TuneOptions
from autotune.tuning.results import Progress, SuiteProgress, SuiteResult, TuneResult
from autotune.tuning.site import HERE, Site
from autotune.tuning.suite import Suite
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from kernels_db.store import Log


def tune(
    workload: Workload,
    target: Target,
    log: Log,
    options: TuneOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    interrupts: Interrupts | None = None,
    site: Site = HERE,
) -> TuneResult:
    """Tune a workload for a target until the trials, the budget or the space are used up, or no gain is
    expected.

    Every trial is committed to ``log`` as it happens, and those of earlier runs are learnt from and
    not repeated, but for what another version of the code generator failed at. Ctrl-C ends the run, keeps
    everything and returns "interrupted". ``site``: the machine that measures.

    Raises `MeasureError` if measuring itself does not work, `LogError`, and `ScheduleError` if the expression
    gives no space.
    """
    tell = None if progress is None else lambda p: progress(p.task)
    found = tune_suite([SuiteTask(workload)], target, log, options, tell, interrupts=interrupts, site=site)
    (task,) = found.tasks
    if task.cause is not None:
        raise task.cause
    return task.result


def tune_suite(
    tasks: Sequence[SuiteTask],
    target: Target,
    log: Log,
    options: TuneOptions | None = None,
    progress: Callable[[SuiteProgress], None] | None = None,
    *,
    interrupts: Interrupts | None = None,
    site: Site = HERE,
) -> SuiteResult:
    """Tune tasks until ``options.budget_s`` is used up, each has ``options.trials`` new trials, or no gain is
    expected. A task that cannot be tuned is reported and costs the others nothing.

    Raises `TargetError`, `LogError`, `WorkloadError` for arrays that do not fit in memory, and
    `SettingsError` for a budget too short to compute even a reference.
    """
    options = options or TuneOptions()
    started = options.begin()
    options.check(target)
    site.check(target)
    for task in tasks:
        preparation.check_feasible(task.workload, options.budget_s)
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_start())
        interrupts = interrupts or stack.enter_context(Interrupts())
        suite = Suite(Job(tasks, options), target, log, progress, interrupts, started)
        try:
            with contextlib.ExitStack() as inside:
                inside.push(suite.leave)
                if options.needs_xgboost:
                    inside.enter_context(preparation.xgboost_on_its_way())
                suite.serve(suite.lane(site))
                stopped = suite.ended
        except KeyboardInterrupt:
            stopped = "interrupted"
        with interrupts.hold():  # it closes the runs of all tasks
            return suite.result(stopped)
