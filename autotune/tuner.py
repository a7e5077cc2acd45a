"""The tuning loop: ask the search, measure, log, tell; then time the finalists against each other.

`tune` reads top to bottom. What it waits for is passed in or made on demand: the space that the
expression gives, a measurer with its worker processes, and the machine's limit.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from autotune import preparation, resume, targets
from autotune.interrupts import Interrupts
from autotune.search import policies
from autotune.search.ahead import AskAhead
from autotune.search.base import Result, SearchPolicy
from autotune.search.seeded import Seeded
from autotune.settings import SettingsError
from cost_model.models import MODELS
from kernels_db.records import NewRecord, Record
from schedules.model import Target, Trace, TraceError, Workload
from schedules.space.base import Candidate, Space

if TYPE_CHECKING:
    from autotune.measure.results import Measurement
    from kernels_db.store import Log

FIRST_BATCH, SMALLEST_BATCH, LARGEST_BATCH = 16, 4, 128
SEARCH_SHARE = 0.1  # of the time: batches grow while choosing them costs more
ROUND_SHARE = 0.1  # of the budget: batches shrink so that results come back sooner
RESERVE_SHARE = 0.1  # of the budget, for the finalists
FINALISTS = 8
PASSES = 3  # over finalists, until the best of the log is one of them
NEAR = 1.1  # a trial slower than this times the best will not win
MARGIN_S = 0.25  # before the deadline


@dataclass(frozen=True)
class TuneOptions:
    """What the user chooses. ``trials``: new trials at most (None: no limit); ``budget_s``: seconds
    from the call of `tune`; ``batch``: trials a round (None: as many as suit their duration).
    Raises `SettingsError` for what cannot be."""

    trials: int | None = None
    budget_s: float = 60.0
    search: str = "evolutionary"
    model: str = "xgb"
    seed: int = 0
    batch: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("trials", self.trials), ("batch", self.batch)):
            if value is not None and (not _is(int, value) or value < 1):
                raise SettingsError(f"{name} is {value!r}; it must be an integer of at least 1, or None")
        budget = self.budget_s
        if not _is((int, float), budget) or not (budget > 0 and math.isfinite(budget)):
            raise SettingsError(f"the budget is {budget!r}; it must be a positive, finite number of seconds")
        if not _is(int, self.seed) or not 0 <= self.seed < 2**63:
            raise SettingsError(f"the seed is {self.seed!r}; it must be an integer from 0 to 2^63 - 1")
        for what, name, known in (("search", self.search, policies.POLICIES), ("model", self.model, MODELS)):
            if name not in known:
                raise SettingsError(f"unknown {what} {name!r}; choose from {', '.join(known)}")


@dataclass(frozen=True)
class Progress:
    """Where a run stands; given to the caller after every trial. ``failed`` counts by status."""

    phase: str  # "preparing", "searching", "measuring", "finalists"
    measured: int
    failed: Mapping[str, int]
    resumed: int
    best_time_s: float | None
    best_gflops: float | None
    share_of_peak: float | None
    elapsed_s: float
    budget_s: float
    trials: int | None


@dataclass(frozen=True)
class Best:
    """The best record of the task; ``share_of_peak`` is None where the peak is not known."""

    time_s: float
    gflops: float
    share_of_peak: float | None
    trace: Trace
    record_id: str


@dataclass(frozen=True)
class Trials:
    """New trials, those of them that failed by status, and trials of earlier runs."""

    measured: int
    failed: Mapping[str, int]
    resumed: int


@dataclass(frozen=True)
class TuneResult:
    """``best`` is the best of the whole log, None if nothing valid is known. ``stopped`` is "trials",
    "budget", "interrupted", "exhausted" or "frozen". ``spent_s`` splits the time: prepare, search, measure
    (of which build, check and run, which overlap), finalists."""

    workload: Workload
    target: Target
    best: Best | None
    measured: int
    failed: Mapping[str, int]
    resumed: int
    elapsed_s: float
    seed: int
    stopped: str
    spent_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def trials(self) -> Trials:
        return Trials(self.measured, self.failed, self.resumed)


class Measuring(Protocol):
    """What `tune` needs of a measurer: see `autotune.measure.Measurer`."""

    def measure(
        self, traces: Sequence[Trace], best_s: float | None = None, deadline: float | None = None
    ) -> Iterator[Measurement]:
        """Measurements in order, each as it stands; none for what the deadline cut off."""

    def finalists(self, traces: Sequence[Trace], rounds: int = 3, repeats: int = 5) -> list[Measurement]:
        """Interleaved measurements, one a trace."""


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
) -> TuneResult:
    """Tune a workload for a target until the trials, the budget or the space are used up.

    Every trial is committed to ``log`` as it happens, and those of earlier runs are learnt from and
    not repeated. Ctrl-C ends the run, keeps everything and returns "interrupted". ``peak`` measures
    the least seconds that the machine needs for the workload.

    Raises `MeasureError` where measuring itself does not work, `LogError`, or `ScheduleError` where
    the expression gives no space.
    """
    started = time.monotonic()
    options = options or TuneOptions()
    if measurer is None:
        targets.check_here(target)
        preparation.check_feasible(workload, options.budget_s)
    with contextlib.ExitStack() as stack:
        interrupts = interrupts or stack.enter_context(Interrupts())
        run = log.start_run(
            workload, target, targets.machine(), seed=options.seed, options=_run_options(options)
        )
        tuning = _Tuning(workload, target, log, run.uid, options, progress, started, interrupts)
        try:
            with tuning.timed("prepare"):
                tuning.report("preparing")
                if (options.search, options.model) == ("evolutionary", "xgb"):
                    stack.enter_context(preparation.xgboost_on_its_way())
                if space is None:
                    from schedules.space import derive

                    space = derive(workload.dag, target)
                if measurer is None:
                    measurer = stack.enter_context(preparation.measurer(workload, target, options.budget_s))
                if peak is None:
                    from autotune.limits import limit_of

                    peak = limit_of(workload, target)
                tuning.peak_s = min(peak() for _ in range(5)) if peak is not None else None
                policy = policies.create(options.search, space, options.model, options.seed)
                policy = Seeded(policy, space, resume.elsewhere(log, workload, target, space))
                tuning.resume(space, policy)
            stopped = tuning.search(space, policy, measurer)
            with tuning.timed("finalists"):
                tuning.finalists(measurer)
                # again, now next to the finalists: a disturbed sample makes the peak look low
                if peak is not None and tuning.peak_s is not None:
                    tuning.peak_s = min(tuning.peak_s, *(peak() for _ in range(5)))
        except KeyboardInterrupt:
            stopped = "interrupted"
        except BaseException:
            log.finish_run(run, "failed")
            raise
        log.finish_run(run, "interrupted" if stopped == "interrupted" else "done")
        return tuning.result(stopped)


class _Tuning:
    """The state of one run, and its phases."""

    def __init__(
        self,
        workload: Workload,
        target: Target,
        log: Log,
        run: str,
        options: TuneOptions,
        progress: Callable[[Progress], None] | None,
        started: float,
        interrupts: Interrupts,
    ) -> None:
        self.workload, self.target, self.log, self.run = workload, target, log, run
        self.options, self.progress = options, progress
        self.interrupts = interrupts
        self.started, self.deadline = started, started + options.budget_s
        self.spare = targets.usable_cpus() > target.threads
        self.peak_s: float | None = None
        self.best_s: float | None = None
        self.measured, self.resumed = 0, 0
        self.failed: Counter[str] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.here: set[str] = set()  # digests of the traces that this run found ok
        self.finals: set[str] = set()  # uids of this run's finals

    # -- phases ------------------------------------------------------------------------------

    def resume(self, space: Space, policy: SearchPolicy) -> None:
        """Tell the search what earlier runs of this task found."""
        earlier = resume.read(self.log.records(workload=self.workload, target=self.target), space)
        policy.exclude(earlier.digests)
        policy.tell(earlier.results)
        self.resumed = earlier.trials
        best = self.log.best(self.workload, self.target)
        self.best_s = None if best is None else best.time_s

    def search(self, space: Space, policy: SearchPolicy, measurer: Measuring) -> str:
        """Rounds of trials until something is used up; says what."""
        batch = max(FIRST_BATCH, min(len(space.sketches), LARGEST_BATCH))
        with AskAhead(policy) as search:
            while True:
                n = self._batch(batch)
                if n < 1:
                    return "trials"
                if time.monotonic() >= self._search_until():
                    return "budget"
                self.report("searching")
                with self.timed("search"):
                    asked = search.ask(n)
                if not asked:
                    return "exhausted"
                took = self._measure(space, measurer, asked, search, batch)
                if search.seconds > SEARCH_SHARE * took:
                    batch = min(LARGEST_BATCH, batch + batch // 2)

    def _measure(
        self, space: Space, measurer: Measuring, asked: list[Candidate], search: AskAhead, batch: int
    ) -> float:
        """Measure a round and tell the policy; the seconds it took. Where a CPU is left over, the next round
        is begun meanwhile, but not where the user gives the size of rounds: then a seed repeats a run."""
        import numpy as np

        ahead = self.spare and self.options.batch is None
        traces = [space.trace(c.sketch, np.array(c.row, dtype=np.int64)) for c in asked]
        results: list[Result] = []
        measurements = measurer.measure(traces, self.best_s, self._search_until())
        started = last = time.monotonic()
        for number, (candidate, trace, m) in enumerate(zip(asked, traces, measurements), 1):
            name, decisions = space.sketches[candidate.sketch], list(candidate.row)
            self._add(self.measured, name, trace, m, {resume.DECISIONS: decisions})
            self.measured += 1
            for phase, seconds in (("build", m.build_s), ("check", m.check_s), ("run", m.run_s)):
                self.spent[phase] += seconds
            if m.status == "ok" and m.time_s is not None:
                self.here.add(trace.digest)
                self.best_s = m.time_s if self.best_s is None else min(self.best_s, m.time_s)
            else:
                self.failed[m.status] += 1
            results.append(Result(candidate, resume.throughput(m.status, m.time_s)))
            self.report("measuring")
            now = time.monotonic()
            self.spent["measure"] += now - last
            last = now
            left = (len(asked) - number) * (now - started) / number
            if ahead and search.due(left) and now + left < self._search_until():
                following = self._batch(batch, len(asked) - number)
                if following:
                    search.tell(results)
                    results = []
                    search.begin(following)
        search.tell(results)
        return last - started

    def finalists(self, measurer: Measuring) -> None:
        """Time the best of the log again in turns, until the best is one of these: of thousands of
        trials the luckiest leads, and its time is too good."""
        for _ in range(PASSES):
            top = [r for r in self.log.top_k(self.workload, self.target, FINALISTS) if _trace(r)]
            if not top or top[0].uid in self.finals or (not self.measured and top[0].kind == "final"):
                return
            fastest = top[0].time_s or 0.0
            near = [r for r in top if (r.time_s or 0.0) <= NEAR * fastest or r.uid in self.finals]
            plan = self._plan(near)
            if plan is None:
                return
            chosen, rounds, repeats = plan
            self.report("finalists")
            traces = [r.trace for r in chosen]
            for r, trace, m in zip(chosen, traces, measurer.finalists(traces, rounds, repeats)):
                if m.status != "error":  # nothing was found out
                    kept = {k: v for k, v in r.environment.items() if k == resume.DECISIONS}
                    self.finals.add(self._add(r.trial, r.sketch, trace, m, kept, "final").uid)
            self.report("finalists")

    # -- how much ----------------------------------------------------------------------------

    def _batch(self, batch: int, under_way: int = 0) -> int:
        """Trials of the next round, with so many of this one to come; 0 when all are done."""
        if self.options.batch is not None:
            batch = self.options.batch
        elif self.measured:
            each = self.spent["measure"] / self.measured
            fitting = ROUND_SHARE * self.options.budget_s / max(each, 1e-9)
            batch = max(SMALLEST_BATCH, min(batch, int(min(fitting, LARGEST_BATCH))))
        if self.options.trials is not None:
            batch = min(batch, self.options.trials - self.measured - under_way)
        return batch

    def _search_until(self) -> float:
        """When the last trial may begin: it takes its time, and the finalists take theirs."""
        needed = _finals_s(self.best_s or 0.0, FINALISTS, 3, 5)
        budget = self.options.budget_s
        reserve = max(RESERVE_SHARE * budget, min(needed, 2.5 * RESERVE_SHARE * budget))
        each = self.spent["measure"] / self.measured if self.measured else 0.0
        return self.deadline - reserve - min(each, RESERVE_SHARE * budget)

    def _plan(self, records: list[Record]) -> tuple[list[Record], int, int] | None:
        """Which finalists, rounds and repeats fit into what is left of the budget."""
        left = self.deadline - MARGIN_S - time.monotonic()
        each = self.spent["measure"] / self.measured if self.measured else 1.0
        for k, rounds, repeats in ((FINALISTS, 3, 5), (FINALISTS, 3, 3), (5, 3, 3), (3, 2, 3), (2, 2, 2)):
            chosen = records[:k]
            missing = sum(r.trace_digest not in self.here for r in chosen)  # built and checked again
            slowest = max(r.time_s or 0.0 for r in chosen)
            if _finals_s(slowest, len(chosen), rounds, repeats) + missing * each <= left:
                return chosen, rounds, repeats
        return None

    # -- keeping account ---------------------------------------------------------------------

    def _add(
        self,
        trial: int,
        sketch: str,
        trace: Trace,
        m: Measurement,
        environment: Mapping[str, object],
        kind: str = "trial",
    ) -> Record:
        seconds = {"build": m.build_s, "check": m.check_s, "run": m.run_s}
        record = NewRecord(
            run=self.run,
            trial=trial,
            sketch=sketch,
            trace=trace,
            status=m.status,
            reason=m.reason,
            times_s=m.times_s,
            time_s=m.time_s,
            error=m.error,
            environment={
                **environment,
                "reference_rate": m.reference_rate,
                "seconds": {k: round(v, 6) for k, v in seconds.items()},
                **({"device": m.facts} if m.facts else {}),
            },
            kind=kind,
        )
        with self.interrupts.hold():
            return self.log.add(record)

    def timed(self, phase: str) -> _Timer:
        return _Timer(self.spent, phase)

    def report(self, phase: str) -> None:
        if self.progress is None:
            return
        self.progress(
            Progress(
                phase=phase,
                measured=self.measured,
                failed=dict(self.failed),
                resumed=self.resumed,
                best_time_s=self.best_s,
                best_gflops=None if self.best_s is None else self._gflops(self.best_s),
                share_of_peak=self._share(self.best_s),
                elapsed_s=time.monotonic() - self.started,
                budget_s=self.options.budget_s,
                trials=self.options.trials,
            )
        )

    def result(self, stopped: str) -> TuneResult:
        return TuneResult(
            workload=self.workload,
            target=self.target,
            best=_best(self.workload, self.target, self.log, self.peak_s),
            measured=self.measured,
            failed=dict(sorted(self.failed.items())),
            resumed=self.resumed,
            elapsed_s=time.monotonic() - self.started,
            seed=self.options.seed,
            stopped=stopped,
            spent_s=dict(self.spent),
        )

    def _gflops(self, time_s: float) -> float:
        return self.workload.flops / time_s / 1e9

    def _share(self, time_s: float | None) -> float | None:
        return None if time_s is None or self.peak_s is None else self.peak_s / time_s


def _best(workload: Workload, target: Target, log: Log, peak_s: float | None) -> Best | None:
    """The best record of a task whose trace this version can read; ``peak_s``: the machine's limit."""
    top = log.top_k(workload, target, FINALISTS)
    record = next((r for r in top if r.time_s is not None and _trace(r)), None)
    if record is None or record.time_s is None:
        return None
    share = None if peak_s is None else peak_s / record.time_s
    return Best(record.time_s, workload.flops / record.time_s / 1e9, share, record.trace, record.uid)


def _is(kind: type | tuple[type, ...], value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


class _Timer:
    """Adds the wall time of a ``with`` block to a phase; ``seconds`` afterwards is this block's."""

    def __init__(self, spent: defaultdict[str, float], phase: str) -> None:
        self._spent, self._phase = spent, phase
        self.seconds = 0.0

    def __enter__(self) -> _Timer:
        self._begin = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.monotonic() - self._begin
        self._spent[self._phase] += self.seconds


def _finals_s(time_s: float, k: int, rounds: int, repeats: int) -> float:
    """Seconds that finalists take at most: on an unsteady machine twice the rounds, of a warm-up and
    repeats, which last a millisecond at least, with a reference loop between."""
    return 0.2 + 1.3 * k * 2 * rounds * (repeats + 1) * (max(time_s, 1e-3) + 1.5e-3)


def _trace(record: Record) -> Trace | None:
    """The schedule of a record, None where this version cannot read it."""
    try:
        return record.trace
    except TraceError:
        return None


def _run_options(options: TuneOptions) -> dict[str, object]:
    return {
        "trials": options.trials,
        "budget_s": options.budget_s,
        "search": options.search,
        "model": options.model,
        "batch": options.batch,
    }
