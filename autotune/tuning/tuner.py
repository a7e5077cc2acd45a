"""Tunes jobs, for one target or several, on this machine or on those of a fleet.

`tune_jobs` reads top to bottom. One task is a suite of its own. Every measurement is in the log at once, so
that the best of every task can be loaded at any moment, also after Ctrl-C or a kill. A new call goes on from
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from autotune.measure.starting import shared_start
from autotune.results.tuned import SuiteProgress, SuiteResult
from autotune.run import in_place
from autotune.tuning import preparation
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.makers import JobMaker
from autotune.tuning.options import TuneOptions
from autotune.tuning.site import HERE, Site
from autotune.tuning.suite import Suite
from schedules.model import Target

if TYPE_CHECKING:
    from kernels_db.store import Log

R = TypeVar("R")


class Crew(Protocol):
    """The machines of a run: this one, or those of a fleet. ``targets``: what they run code for. ``turn``:
    held by who works on what they share."""

    @property
    def targets(self) -> Sequence[Target]: ...

    @property
    def turn(self) -> AbstractContextManager[object]: ...

    def started(self, options: TuneOptions) -> float:
        """When a budget began to count (`time.monotonic`)."""

    def check(self, target: Target, job: Job) -> None:
        """Raises `TargetError`, `WorkloadError` or `SettingsError` for what cannot be tuned."""

    def interrupts(self, given: Interrupts) -> Interrupts:
        """Those that hold where turns are taken. ``given``: of the calling thread."""

    def work(self, suites: Sequence[Suite], interrupts: Interrupts) -> None:
        """Give machines to suites until all have ended. After it none is at work. What it raises ends them;
        after Ctrl-C that is KeyboardInterrupt."""


class Place(Protocol):
    """Where to tune."""

    def reached(self) -> AbstractContextManager[Crew]: ...


@dataclass(frozen=True)
class OneMachine:
    """One machine, which takes turns of tasks in the calling thread."""

    target: Target
    site: Site = HERE

    @property
    def targets(self) -> Sequence[Target]:
        return (self.target,)

    @property
    def turn(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    def reached(self) -> AbstractContextManager[Crew]:
        return contextlib.nullcontext(self)

    def started(self, options: TuneOptions) -> float:
        return options.begin()

    def check(self, target: Target, job: Job) -> None:
        self.site.check(target)
        for task in job.tasks:
            preparation.check_feasible(task.workload, job.options.budget_s)
            if job.options.in_place:
                in_place.check(task.workload, target, job.options.in_place)

    def interrupts(self, given: Interrupts) -> Interrupts:
        return given

    def work(self, suites: Sequence[Suite], interrupts: Interrupts) -> None:
        with shared_start():  # finalists are timed in new processes
            for suite in suites:
                with contextlib.closing(suite.lane(self.site)) as lane:
                    suite.serve(lane)


def tune_jobs(
    maker: JobMaker[R],
    place: Place,
    log: Log,
    progress: Callable[[SuiteProgress], None] | None = None,
    *,
    interrupts: Interrupts | None = None,
) -> dict[Target, R]:
    """Tune what a maker makes jobs of, for each target of a place: until a job's budget is used up, each of
    its tasks has its trials, or no gain is expected. A task that cannot be tuned is reported and costs the
    others nothing. Every trial is committed to ``log`` as it happens; those of earlier runs are learnt from
    and not repeated, but for what another version of the code generator failed at. Ctrl-C ends the run and
    keeps everything.

    Raises `TargetError`, `LogError`, `WorkloadError` for arrays that do not fit in memory, `SettingsError`
    for a budget too short to compute even a reference, and `FleetError` where a fleet is lost.
    """
    with place.reached() as crew:
        jobs = {t: maker.job(t) for t in crew.targets}
        started = {t: crew.started(job.options) for t, job in jobs.items()}
        for target, job in jobs.items():
            job.options.check(target)
            crew.check(target, job)
        interrupted = False
        with contextlib.ExitStack() as stack:
            interrupts = interrupts or stack.enter_context(Interrupts())
            theirs = crew.interrupts(interrupts)
            suites = {t: Suite(job, t, log, progress, theirs, started[t]) for t, job in jobs.items()}
            try:
                with contextlib.ExitStack() as inside:
                    for suite in suites.values():
                        inside.push(suite.leave)
                    if any(job.tasks and job.options.needs_xgboost for job in jobs.values()):
                        inside.enter_context(preparation.xgboost_on_its_way())
                    crew.work([*suites.values()], interrupts)
            except KeyboardInterrupt:
                interrupted = True
            found: dict[Target, SuiteResult] | None = None
            while found is None:
                try:
                    with interrupts.hold(), crew.turn:  # it closes the runs of all tasks
                        end = "interrupted" if interrupted else None
                        found = {t: s.result(end or s.ended) for t, s in suites.items()}
                except KeyboardInterrupt:  # it acts once; it may come before it is held
                    if found is not None:
                        raise
                    interrupted = True
        return {t: maker.result(t, r) for t, r in found.items()}
