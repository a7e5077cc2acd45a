"""Tunes a program on the machines of a fleet: of one size, or some sizes of a range as tasks of a suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from autotune.fleet.tuning import There
from autotune.results.tuned import SuiteProgress, TuneResult
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.tuning.dynamic_tuner import Range
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.makers import OneTask
from autotune.tuning.options import TuneOptions
from autotune.tuning.tuner import tune_jobs
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
    first called. A size that takes more than the budget has an error of its own. Raises as
    `tuner.tune_jobs`, and as `preparation.check_feasible` where no size can be tuned."""
    if isinstance(program, Workload):
        return tune_jobs(OneTask(program, options), there, log, progress, interrupts=interrupts)
    sizes = Range(program, log, options, options.budget_s, here=False)
    return dict(tune_jobs(sizes, there, log, progress, interrupts=interrupts))
