"""The options, progress and results of a tune."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.measure.inputs import Tolerance
from autotune.search import llm_client, policies
from autotune.settings import LlmSettings, SettingsError
from cost_model.base import CostModelError
from cost_model.models import LEARNED, chosen
from cost_model.saved import SavedModel
from kernels_db.records import Record
from schedules.errors import ScheduleError, suggest
from schedules.model import Target, Trace, Workload
from schedules.trace_names import to_named

if TYPE_CHECKING:
    from autotune.report import Written
    from autotune.report.explain.explanation import Explanation
    from kernels_db.place import Place
    from schedules.schedule import Schedule

# Budgets below this load no model (seconds): loading takes two seconds of a CPU, on a busy machine more by
# far.
SHORT_S = 8.0
# A task's share of the budget below which time may end before much is known (seconds): then the machine's
# limit is measured after the first pick, and a number of trials begins with one too.
AT_ONCE_S = 10.0
# Fields of results that are numbers of trials, and those that have such numbers by a name.
COUNTS, COUNTS_BY_NAME = ("measured", "resumed", "stopped_early"), ("failed", "throttled")


@dataclass(frozen=True)
class TuneOptions:
    """What the user chooses.

    ``trials``: most new trials (None: no limit; 0: no search, only the few candidates of a first pick, where
    nothing is known). ``budget_s``: seconds from ``started`` (`time.monotonic`; None: from the call of what
    tunes): loading and reading before it is time that a user waits too. ``search``, ``model``, ``seed``: the
    policy, its cost model, and the seed of all its choices; a model is a name, or what ``autotune train``
    made, as a path or read. ``batch``: trials a round (None: chosen by their
    duration). ``rtol``, ``atol``: an output is right within ``atol + rtol * |reference|`` (both None: within
    rounding; one None: 0). ``share_s``: of the budget, where several tasks share it (seconds): the task's
    part if all had the same (None: all of it). Raises `SettingsError` for a value out of range."""

    trials: int | None = None
    budget_s: float = 60.0
    search: str = "evolutionary"
    model: str | os.PathLike[str] | SavedModel = "xgb"
    seed: int = 0
    batch: int | None = None
    rtol: float | None = None
    atol: float | None = None
    share_s: float | None = None
    started: float | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("batch", self.batch)):
            least = int(name == "batch")
            if value is not None and (not _is(int, value) or value < least):
                raise SettingsError(f"{name} is {value!r}; it must be an integer from {least} on, or None")
        budget = self.budget_s
        if not _is((int, float), budget) or not (budget > 0 and math.isfinite(budget)):
            raise SettingsError(f"the budget is {budget!r}; it must be a positive, finite number of seconds")
        for name, part in (("rtol", self.rtol), ("atol", self.atol)):
            if part is not None and not (_is((int, float), part) and 0 <= part < math.inf):
                raise SettingsError(f"{name} is {part!r}; it must be a finite number of at least 0, or None")
        if not _is(int, self.seed) or not 0 <= self.seed < 2**63:
            raise SettingsError(f"the seed is {self.seed!r}; it must be an integer from 0 to 2^63 - 1")
        known, name = policies.POLICIES, self.search
        if name not in known:
            raise SettingsError(
                f"unknown search {name!r}{suggest(name, known)}; choose from {', '.join(known)}"
            )
        if self.search == "llm":
            LlmSettings.from_environment()  # before any work is done
            llm_client.library()
        try:
            object.__setattr__(self, "model", chosen(self.model))  # a file is read once
        except CostModelError as err:
            raise SettingsError(str(err)) from None
        if isinstance(self.model, SavedModel) and self.search not in policies.GUIDED:
            named = self.model.origin or "the one given"
            raise SettingsError(
                f"search {self.search} asks no cost model, so that {named} would do nothing; leave it out, "
                f"or choose search {policies.GUIDED[0]}"
            )

    def check(self, target: Target) -> None:
        """Raises `SettingsError` for a trained model of other targets."""
        if isinstance(self.model, SavedModel) and self.model.serves != ("gpus" if target.grid else "cpus"):
            raise SettingsError(
                f"the cost model {self.model.origin} is for {self.model.serves}, and {target.kind} is none "
                "of them; train one of a log of that kind with autotune train, or leave it out"
            )

    def begin(self) -> float:
        """When the budget began to count (`time.monotonic`)."""
        return time.monotonic() if self.started is None else self.started

    @property
    def tolerance(self) -> Tolerance | None:
        """The user's bounds on errors, None for those of rounding."""
        if self.rtol is None and self.atol is None:
            return None
        return Tolerance(self.rtol or 0.0, self.atol or 0.0)

    @property
    def guide(self) -> str | SavedModel:
        """The model of the search. A short budget gets one that loads fast."""
        model = chosen(self.model)
        return "analytic" if _learns(model) and self.budget_s < SHORT_S else model

    @property
    def short(self) -> bool:
        """Whether the task's share of the budget is short."""
        return (self.budget_s if self.share_s is None else self.share_s) < AT_ONCE_S

    @property
    def begins_at_once(self) -> bool:
        """Whether the candidates of a first pick come before the search. Not so where the user gave a number
        of trials, for which there is time: they are the search's."""
        return not self.trials or self.short

    @property
    def needs_xgboost(self) -> bool:
        """Whether the search uses a model that needs xgboost."""
        return self.trials != 0 and self.search in policies.GUIDED and _learns(self.guide)


@dataclass(frozen=True)
class Progress:
    """Where a run stands. Given to the caller after every trial. ``failed``: failed trials by status;
    ``stopped_early``: trials that were right so far, but too slow to be timed to the end. ``provisional``:
    whether the best was timed once only; the luckiest of many trials looks too good. ``pairwise``: share of
    pairs that the model ordered rightly in the last round."""

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
    place: Place | None = field(default=None, repr=False, compare=False)
    provisional: bool = False

    def __repr__(self) -> str:
        best = "no best" if self.best_time_s is None else f"best {self.best_time_s:.3g} s"
        best += " (provisional)" if self.provisional else ""
        return f"<Progress {self.phase}: {best}, {self.measured} trials, {self.elapsed_s:.1f} s>"


@dataclass(frozen=True)
class Best:
    """The best record of the task; ``share_of_peak`` is None where the peak is not known, ``trace`` has the
    names of the workload's DAG."""

    time_s: float
    gflops: float
    share_of_peak: float | None
    trace: Trace = field(repr=False)
    record_id: str

    @classmethod
    def of(cls, workload: Workload, record: Record, peak_s: float | None = None) -> Best:
        """From a record with status "ok". ``peak_s``: the machine's limit (seconds)."""
        assert record.time_s is not None, "only ok records, which have a time, are ranked and pinned"
        share = None if peak_s is None else peak_s / record.time_s
        trace = to_named(workload, record.trace)
        return cls(record.time_s, workload.flops / record.time_s / 1e9, share, trace, record.uid)


@dataclass(frozen=True)
class Trials:
    """Numbers of trials: new ones, failed new ones by status, those of earlier runs, and new ones that were
    too slow to be timed to the end."""

    measured: int
    failed: Mapping[str, int]
    resumed: int
    stopped_early: int = 0


@dataclass(frozen=True)
class TuneResult:
    """The result of a run. ``best``: the best of the whole log, None if nothing valid is known. ``stopped``:
    "trials", "budget", "exhausted", "converged" (no gain expected), "interrupted" or "frozen"; of a task
    among others also "failed" (it could not be measured) or "not begun".
    ``spent_s``: seconds by phase: prepare, plain loops, search, measure (of which build, check and run, which
    overlap), finalists. ``throttled``: new trials by the reason why the device ran slower beside them.
    ``notes``: sentences on what to expect of more time (`autotune.tuning.notes`). ``error``: why there is no
    best, None if there is one. ``stopped_early``: new trials that were too slow to be timed to the end; they
    are no failures. ``place``: the log that has it. ``only_plain``: whether the plain loops are all that is
    known to be right, so that ``best`` was compared with nothing.

    >>> result = at.tune("matmul", m=64, n=64, k=64, threads=1, trials=0, progress=None)
    >>> result.stopped
    'trials'
    >>> result.schedule().blocks()[0].startswith("c")
    True
    """

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
    place: Place | None = field(default=None, compare=False)
    only_plain: bool = False

    def __repr__(self) -> str:
        from autotune.progress import text

        return f"<{type(self).__name__} {text.short(self)}>"

    def _repr_html_(self) -> str:
        from autotune.progress import html

        return html.of_result(self)

    def __str__(self) -> str:
        """One line: the task, the best, how many trials and how long."""
        from autotune.progress import text

        return text.of_result(self)

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
        from autotune import report

        return report.of_results(path, self.parts)

    def explain(self) -> Explanation:
        """Why the best schedule is as fast as it is: ``print(result.explain())``. Raises `ScheduleError`
        where nothing valid was found."""
        from autotune.report.data import Limit
        from autotune.report.explain.kernel import of_schedule

        schedule = self.schedule()
        best = self.best
        assert best is not None, "else there is no schedule"
        limit = None if best.share_of_peak is None else Limit(best.share_of_peak * best.time_s)
        return of_schedule(self.workload, schedule, self.target, best.time_s, limit)

    @property
    def trials(self) -> Trials:
        """The numbers of trials."""
        return Trials(self.measured, self.failed, self.resumed, self.stopped_early)


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


def _learns(model: str | SavedModel) -> bool:
    return isinstance(model, SavedModel) or model in LEARNED


def _is(kind: type | tuple[type, ...], value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
