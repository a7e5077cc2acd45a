"""Tunes one task: ask the search, measure, log, tell; then time the finalists against each other.

`tune` reads top to bottom. The space, the measurer and the machine's limit are passed in or made on demand.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from autotune.measure.starting import shared_start
from autotune.tuning import preparation
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.options import TuneOptions
from autotune.tuning.results import Best, Progress, TuneResult
from autotune.tuning.session import RESERVE_SHARE, ROUND_SHARE, Session
from autotune.tuning.site import HERE, Measuring, Site
from schedules.model import Target, Workload
from schedules.space.base import Space

if TYPE_CHECKING:
    from kernels_db.store import Log

__all__ = ["Best", "Progress", "TuneOptions", "TuneResult", "tune"]


def tune(
    workload: Workload,
    target: Target,
    log: Log,
    options: TuneOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
    *,
    space: Space | None = None,
    measurer: Measuring | None = None,
    peak: Callable[[], float] | None = None,
    interrupts: Interrupts | None = None,
    site: Site = HERE,
) -> TuneResult:
    """Tune a workload for a target until the trials, the budget or the space are used up, or no gain is
    expected.

    Every trial is committed to ``log`` as it happens, and those of earlier runs are learnt from and
    not repeated, but for what another version of the code generator failed at. Ctrl-C ends the run, keeps
    everything and returns "interrupted". ``peak`` measures the least seconds that the machine needs for the
    workload. ``site``: the machine that measures.

    Raises `MeasureError` if measuring itself does not work, `LogError`, and `ScheduleError` if the expression
    gives no space.
    """
    options = options or TuneOptions()
    started = options.begin()
    budget = options.budget_s
    options.check(target)
    if measurer is None:
        site.check(target)
        preparation.check_feasible(workload, budget)
    with contextlib.ExitStack() as stack:
        stack.enter_context(shared_start())  # finalists are timed in new processes
        interrupts = interrupts or stack.enter_context(Interrupts())
        session = Session(
            *(workload, target, log, options, progress, interrupts),
            started=started,
            until=started + budget,
            round_s=ROUND_SHARE * budget,
            site=site,
        )
        stack.enter_context(session)
        try:
            with session.timed("prepare"):
                session.report("preparing")
                if options.needs_xgboost:
                    stack.enter_context(preparation.xgboost_on_its_way())
                if measurer is None:
                    measurer = stack.enter_context(
                        site.measurer(workload, target, budget, tolerance=options.tolerance)
                    )
                session.prepare(space, peak)

            def until() -> float:
                """When the last trial may begin: early enough for it and for the finalists."""
                if not session.measured and session.best_s is None:
                    return session.until
                needed = session.finals.cost_s()
                reserve = max(RESERVE_SHARE * budget, min(needed, 2.5 * RESERVE_SHARE * budget))
                return session.until - reserve - min(session.each_s or 0.0, RESERVE_SHARE * budget)

            stopped = session.search(measurer, until) or "budget"
            with session.timed("finalists"):
                session.limit.sample()  # next to the finalists, whose records keep it
                session.finals.time(measurer)
        except KeyboardInterrupt:
            stopped = session.stopped = "interrupted"
        with contextlib.suppress(KeyboardInterrupt):  # nothing is left to be interrupted
            session.report("done")
        return session.result(stopped)
