"""Progress and results of a run: of a task, and of many."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.results.aim import Aimed
from autotune.results.rendering import Shown
from autotune.run.describing import describe
from autotune.run.dynamic_workload import Sizes
from autotune.settings.hooks import hook
from kernels_db.records import Record
from schedules.errors import AutotuneError, ScheduleError
from schedules.model import Target, Trace, Workload
from schedules.trace_names import to_named
from schedules.units import visible

if TYPE_CHECKING:
    from autotune.results.explanation import Explanation
    from autotune.results.written import Written
    from kernels_db.place import LogPlace
    from schedules.schedule import Schedule

R = TypeVar("R")
S = TypeVar("S", bound="SuiteResult")

# Fields of results that are numbers of trials, and those that have such numbers by a name.
COUNTS, COUNTS_BY_NAME = ("measured", "resumed", "stopped_early"), ("failed", "throttled")
LONGEST = 60  # characters of a task's name


@dataclass(frozen=True)
class SuiteTask:
    """A workload of a suite. ``weight``: how often it runs; ``group``: its name in the suite. ``trials``:
    most new trials of it, if it has a limit of its own. ``later``: whether the others have a kernel first."""

    workload: Workload
    weight: float = 1.0
    group: str = ""
    trials: int | None = None
    later: bool = False

    @property
    def about(self) -> str:
        """What people know it by: its name in a suite or a model, else what it computes."""
        return visible(self.group or describe(self.workload))[:LONGEST]

    def __repr__(self) -> str:
        group = f", {self.group[:80]}" if self.group else ""
        return f"<SuiteTask {self.workload.op[:80]} x {self.weight:g}{group}>"


@dataclass(frozen=True)
class Progress:
    """Where a run stands. Given to the caller after every trial. ``failed``: failed trials by status;
    ``stopped_early``: trials that were right so far, but too slow to be timed to the end. ``provisional``:
    whether the best was timed once only; the luckiest of many trials looks too good. ``pairwise``: share of
    pairs that the model ordered rightly in the last round. ``peak_of``: as of `Best`. ``aimed``: how
    far the run is from what ``until`` asks for, None where that was not given."""

    phase: str  # "preparing", "searching", "measuring", "finalists", "done"
    measured: int
    failed: Mapping[str, int]
    resumed: int
    best_time_s: float | None
    best_gflops: float | None
    share_of_peak: float | None
    elapsed_s: float
    budget_s: float
    trials: int | None
    pairwise: float | None = None
    stopped_early: int = 0
    place: LogPlace | None = field(default=None, repr=False, compare=False)
    provisional: bool = False
    peak_of: str | None = None
    aimed: Aimed | None = None

    def __repr__(self) -> str:
        best = "no best" if self.best_time_s is None else f"best {self.best_time_s:.3g} s"
        best += " (provisional)" if self.provisional else ""
        return f"<Progress {self.phase}: {best}, {self.measured} trials, {self.elapsed_s:.1f} s>"


@dataclass(frozen=True)
class Best:
    """The best record of the task; ``share_of_peak`` is None where the peak is not known, ``trace`` has the
    names of the workload's DAG. ``peak_of``: the instruction whose peak it is a share of; None: multiply-adds
    of floats or memory."""

    time_s: float
    gflops: float
    share_of_peak: float | None
    trace: Trace = field(repr=False)
    record_id: str
    peak_of: str | None = None

    @classmethod
    def of(
        cls, workload: Workload, record: Record, peak_s: float | None = None, peak_of: str | None = None
    ) -> Best:
        """From a record with status "ok". ``peak_s``: the machine's limit (seconds). ``peak_of``: the
        instruction that it is the peak of."""
        assert record.time_s is not None, "only ok records, which have a time, are ranked and pinned"
        share = None if peak_s is None else peak_s / record.time_s
        trace = to_named(workload, record.trace)
        return cls(record.time_s, workload.flops / record.time_s / 1e9, share, trace, record.uid, peak_of)


@dataclass(frozen=True)
class Trials:
    """Numbers of trials: new ones, failed new ones by status, those of earlier runs, and new ones that were
    too slow to be timed to the end."""

    measured: int
    failed: Mapping[str, int]
    resumed: int
    stopped_early: int = 0


@dataclass(frozen=True, repr=False)
class TuneResult(Shown):
    """The result of a run. ``best``: the best of the whole log, None if nothing valid is known. ``stopped``:
    "trials", "budget", "exhausted", "converged" (no gain expected), "reached" (what ``until`` asks for),
    "interrupted" or "frozen"; of a task
    among others also "failed" (it could not be measured) or "not begun".
    ``spent_s``: seconds by phase: prepare, plain loops, search, measure (of which build, check and run, which
    overlap), finalists. ``throttled``: new trials by the reason why the device ran slower beside them.
    ``notes``: sentences on what to expect of more time (`autotune.tuning.notes`). ``error``: why there is no
    best, None if there is one. ``stopped_early``: new trials that were too slow to be timed to the end; they
    are no failures. ``place``: the log that has it. ``only_plain``: whether the plain loops are all that is
    known to be right, so that ``best`` was compared with nothing. ``aimed``: as of `Progress`.

    >>> result = at.tune("matmul", m=64, n=64, k=64, threads=1, trials=0, progress=None)
    >>> result.stopped
    'trials'
    >>> result.schedule().blocks()[0].startswith("c")
    True
    """

    shown_as = "task"
    workload: Workload = field(repr=False)
    target: Target = field(repr=False)
    best: Best | None
    measured: int
    failed: Mapping[str, int]
    resumed: int
    elapsed_s: float
    seed: int
    stopped: str
    spent_s: Mapping[str, float] = field(default_factory=dict)
    throttled: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None
    stopped_early: int = 0
    place: LogPlace | None = field(default=None, compare=False)
    only_plain: bool = False
    aimed: Aimed | None = None

    def schedule(self) -> Schedule:
        """The best schedule, to look at, to change or to `build`: ``print(result.schedule())``. Raises
        `ScheduleError` where nothing valid was found."""
        from schedules.schedule import Schedule

        if self.best is None:
            why = f": {self.error}" if self.error else ""
            raise ScheduleError(
                f"no valid schedule of {self.workload.op} was found{why}; give the tuning a larger budget"
            )
        return Schedule.replay(self.workload.dag, self.best.trace, self.target)

    @property
    def about(self) -> str:
        """What was tuned, in words: ``matmul m=512 n=512 k=512 float32, 2 threads``."""
        return describe(self.workload, self.target.threads)

    @property
    def ready(self) -> bool:
        """Whether there is a kernel, and not the plain loops alone."""
        return self.best is not None and not self.only_plain

    @property
    def parts(self) -> tuple[TuneResult, ...]:
        """The results that this one is of: itself; of several sizes or targets, those of each."""
        return (self,)

    def report(self, path: str | os.PathLike[str]) -> Written:
        """Write one page of HTML about this task, all its sizes and targets: how the search went, the winner,
        what bounds it (`autotune.report`). An existing file is replaced. Raises `ReportError` where none can
        be written.

        Example: ``at.tune("matmul", m=512, n=512, k=512).report("report.html")``."""
        written: Written = hook("report")(self, path)
        return written

    def explain(self) -> Explanation:
        """Why the best schedule is as fast as it is: ``print(result.explain())``. Raises `ScheduleError`
        where nothing valid was found."""
        explanation: Explanation = hook("explain")(self)
        return explanation

    @property
    def trials(self) -> Trials:
        """The numbers of trials."""
        return Trials(self.measured, self.failed, self.resumed, self.stopped_early)


@dataclass(frozen=True, repr=False)
class DynamicResult(TuneResult):
    """The result for the largest sizes, and ``by_size``: of all that were tuned or got a first pick, by the
    values of the sizes that vary. Numbers of trials and ``elapsed_s`` are of all together.

    Example: ``at.tune("matmul", m=at.dim(1, 512), n=64, k=64).by_size[(512,)].best.time_s``.
    """

    shown_as = "sizes"
    by_size: Mapping[Sizes, TuneResult] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[TuneResult, ...]:
        return (*self.by_size.values(),)


@dataclass(frozen=True, repr=False)
class FleetResult(TuneResult):
    """The result for the first of several targets, and ``by_target``: of all, by the name of the processor,
    with its threads where several targets have that name. Numbers of trials and ``elapsed_s`` are of all
    together.

    Example: ``at.tune("matmul", m=64, n=64, k=64, fleet="tcp://host:8786").by_target["znver4"].best.time_s``.
    """

    shown_as = "targets"
    by_target: Mapping[str, TuneResult] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[TuneResult, ...]:
        return tuple(part for r in self.by_target.values() for part in r.parts)


@dataclass(frozen=True, repr=False)
class TaskResult(Shown):
    """``seconds``: time of the budget that the task took; ``error``: why it could not be tuned or has no
    kernel, else None; ``cause``: what was raised, where it could not be tuned."""

    shown_as = "one of tasks"
    task: SuiteTask
    result: TuneResult
    seconds: float
    error: str | None = None
    cause: AutotuneError | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SuiteProgress:
    """Where a suite stands. ``number``, ``task``: the task of this turn and its progress. ``weighted_s``: Σ
    weight · best time (seconds), None while a task has no kernel. ``provisional``: whether a time in it was
    not measured again yet. ``ready``: tasks that have a kernel which is not the plain loops alone.
    ``machine``: of a fleet, which measures. ``aimed``: as of `Progress`."""

    number: int
    tasks: int
    workload: Workload
    task: Progress
    weighted_s: float | None
    ready: int
    measured: int
    elapsed_s: float
    budget_s: float
    provisional: bool = False
    machine: str = ""
    aimed: Aimed | None = None

    @property
    def about(self) -> str:
        """What the task of this turn computes, in words."""
        return describe(self.workload)

    def __repr__(self) -> str:
        return f"<SuiteProgress {self.ready} of {self.tasks} tasks ready, {self.measured} trials>"


@dataclass(frozen=True, repr=False)
class SuiteResult(Shown):
    """Results in the order of the tasks. ``weighted_s``: Σ weight · best time (seconds), None if a task has
    no kernel, or its plain loops alone. ``stopped``: "budget", "trials", "exhausted", "converged" (no gain
    expected of any task), "reached" (what ``until`` asks for), "interrupted", or "no machine" (the last one
    of a fleet left). ``needed_s``: a budget in which each task gets a kernel, as foretold by those that did;
    None where each has had its turn. ``aimed``: as of `Progress`.

    Example: ``[task.result.best for task in result.tasks]``.
    """

    shown_as = "tasks"
    tasks: tuple[TaskResult, ...]
    weighted_s: float | None
    measured: int
    elapsed_s: float
    budget_s: float
    seed: int
    stopped: str
    needed_s: float | None = None
    aimed: Aimed | None = None

    @property
    def parts(self) -> tuple[TuneResult, ...]:
        """The results of the tasks."""
        return tuple(t.result for t in self.tasks)

    @property
    def late(self) -> tuple[TaskResult, ...]:
        """The tasks that had no turn and have no kernel, or the plain loops alone."""
        return tuple(t for t in self.tasks if t.result.stopped == "not begun" and not t.result.ready)

    def report(self, path: str | os.PathLike[str]) -> Written:
        """Write one page of HTML about the tasks of this suite. See `TuneResult.report`."""
        written: Written = hook("report")(self, path)
        return written


def totals(results: Iterable[TuneResult]) -> dict[str, Any]:
    """The fields of a result that are numbers of trials, each of all ``results`` together."""
    each = [*results]
    counted: dict[str, Any] = {n: sum(getattr(r, n) for r in each) for n in COUNTS}
    for name in COUNTS_BY_NAME:
        found: Counter[str] = Counter()
        for r in each:
            found.update(getattr(r, name))
        counted[name] = dict(sorted(found.items()))
    return counted


def by_name(results: Mapping[Target, R]) -> dict[str, R]:
    """Results by the names of processors, with threads where several targets have one name."""
    archs = Counter(t.arch for t in results)
    return {
        t.arch if archs[t.arch] == 1 else f"{t.arch}, threads: {t.threads}": r for t, r in results.items()
    }


def as_one(results: Mapping[Target, TuneResult]) -> TuneResult:
    """The results of a task, or of a range of sizes, for each target, as one."""
    each = [*results.values()]
    if len(each) == 1:
        return each[0]
    told = {f.name: getattr(each[0], f.name) for f in fields(TuneResult)}
    told |= totals(each) | {"elapsed_s": max(r.elapsed_s for r in each)}
    return FleetResult(**told, by_target=by_name(results))


def merged_results(found: Mapping[Target, S], budget_s: float) -> S:
    """The results of suites for several targets as one: the tasks of the first target, then of the next."""
    each = [*found.values()]
    if len(each) == 1:
        return each[0]
    weighted = [r.weighted_s for r in each if r.weighted_s is not None]
    ends = [r.stopped for r in each if r.stopped != "tuned"] or ["tuned"]
    aimed = [r.aimed for r in each if r.aimed is not None]
    return replace(
        each[0],
        tasks=tuple(t for r in each for t in r.tasks),
        weighted_s=sum(weighted) if len(weighted) == len(each) else None,
        measured=sum(r.measured for r in each),
        elapsed_s=max(r.elapsed_s for r in each),
        budget_s=budget_s,
        needed_s=max((r.needed_s for r in each if r.needed_s is not None), default=None),
        stopped="interrupted" if "interrupted" in ends else ends[0],
        aimed=next((a for a in aimed if not a.reached), aimed[0] if aimed else None),
    )
