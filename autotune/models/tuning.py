"""Tuning all that a model runs, under one budget."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from autotune import backends
from autotune.models import graph_search, graph_tuning, in_place
from autotune.models.graph_choices import Rewrites, choices_of, looking, policy
from autotune.models.graph_search import Tried
from autotune.models.in_place import InPlace
from autotune.models.kept_states import refuse_states
from autotune.models.model import Model, shown_sizes
from autotune.models.preparation import PreparedModel, prepared_programs
from autotune.models.tasks import had_share_s, had_trials, tasks_of_programs
from autotune.results.following import Tell
from autotune.results.tuned import SuiteProgress, SuiteResult, SuiteTask, TaskResult, by_name, merged_results
from autotune.run.asked import Asked
from autotune.settings import seconds_of
from autotune.tuning.frozen import frozen
from autotune.tuning.goal import Known, whole
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job, Whole
from autotune.tuning.options import TuneOptions
from autotune.tuning.request import Run, TuneRequest, tuned
from autotune.tuning.run_records import searched
from autotune.tuning.site import HERE
from cost_model.saved import SavedModel
from kernels_db.store import Log
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from autotune.results.written import Written

# Seconds of budget for a task: where none is given, and least, until each has a kernel.
EACH_S, LEAST_S = 10.0, 2.0
# Share of the budget in which finalists are timed inside the model, and its least length (seconds).
IN_PLACE_SHARE, IN_PLACE_S = 0.1, 2.0
# Share of the budget by which these seconds may pass its end.
OVER_SHARE = 0.1
# A share of a task within this much of what it had counts as had (rounding).
SAME = 0.999


@dataclass(frozen=True, repr=False)
class ModelTuneResult(SuiteResult):
    """The result of tuning a model. ``tasks``: of each task its result, in the order of the model; their
    weight is how often a call runs them, their group names their nodes. Tasks of sizes with programs of their
    own come last, and say the size; their weight is that of as many calls as make one of the largest. Where a
    part of the model can run in two ways, both are tasks. ``weighted_s``: seconds of all kernels that a call
    runs, each alone, None while one is missing or is the plain loops alone. ``skipped``: tasks that had their
    share of the budget, or of trials, in earlier runs. ``budget_s``: what the others had together.
    ``stopped``: as of `SuiteResult`, or "tuned" where all were skipped. ``in_place``: of tasks whose
    finalists were timed inside the model, what was found. ``own_s``: of each size with a program of its own,
    what ``weighted_s`` is of all sizes, where that is of the largest. ``model``: what was tuned. ``target``:
    for what, None for several. ``rewrites``: what became of each rewrite that this run tried;
    ``rewrites_needed_s``: a budget in which there is time for all, None where there was. ``by_target``: on a
    fleet the results of the targets, by the names of their processors; then ``tasks`` and numbers are of all
    together. ``needed_s``: a budget in which each task gets a kernel, as foretold by those that did; None
    where each has had its turn.

    Example: ``[task.result.best.time_s for task in at.tune_model(model).tasks]``.
    """

    shown_as = "model"
    name: str = ""
    skipped: int = 0
    in_place: tuple[InPlace, ...] = ()
    own_s: Mapping[str, float | None] = field(default_factory=dict)
    model: Model | None = field(default=None, repr=False, compare=False)
    target: Target | None = None
    rewrites: tuple[Tried, ...] = ()
    rewrites_needed_s: float | None = None
    by_target: Mapping[str, ModelTuneResult] = field(default_factory=dict)

    def report(self, path: str | os.PathLike[str]) -> Written:
        """Write one page of HTML about this model: its graph before and after each rewrite, the time of its
        groups, and its tasks. See `TuneResult.report`."""
        return super().report(path)


def tune_model(
    model: Model,
    *,
    threads: int | None = None,
    target: str | Target | Sequence[str | Target] | None = None,
    budget_s: float | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    until: str | float | None = None,
    search: str = "evolutionary",
    cost_model: str | os.PathLike[str] | SavedModel = "xgb",
    db: str | os.PathLike[str] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    fleet: str | None = None,
    rewrites: Rewrites = "measured",
    exact: bool = False,
    progress: Callable[[SuiteProgress], None] | Literal["auto"] | None = "auto",
) -> ModelTuneResult:
    """Tune every kernel that a model runs, each expression once, however often the model has it.

    ``budget_s``, or ``budget`` as text such as "3m": seconds for all of the model's tasks together, shared so
    that the time of a call falls fastest, the heaviest tasks first (default: 10 s a task). Each task has a
    first pick before any is searched. ``trials``: most trials of each task. Both count what the log has: a
    task that had its share in an earlier run, of this model or of another, is skipped, so that a second call
    takes no trials. For more, give a larger budget. A call whose budget was too small for all goes on when it
    is made again, with the tasks that have no kernel first, then with those that only had a first pick.
    Ctrl-C keeps everything, and the next call goes on; `compile_model` works as soon as each task has a
    kernel. Sizes with programs of their own (`Model.with_own_sizes`) are tuned in the same run.

    ``until``: ends the run early once a call's kernels reach it, each timed again: their time together, as
    text ("2ms"), or the share of the machine's limit, a number from 0 to 1. The result's ``aimed`` says how
    far they were. A run that ends so times nothing inside the model.

    The last tenth of the budget times the best schedules of each task inside the model, where arrays are as
    cold as in use (not on a GPU), and `compile_model` takes those that are the fastest there.

    ``fleet``: as of `autotune.tune`; ``target`` may then be several. Each target has the whole budget.
    A second call without it, on the machine that is to run the model, times schedules inside it.

    ``rewrites``: of those that may lose, such as three products as one. "measured": a quarter of the budget,
    at most, tunes both ways; the log keeps which is faster. "always": each where it usually is applied;
    "none": none. ``exact=True`` leaves out those whose results are less exact, such as Winograd's
    convolutions. On fleets, GPUs and with ``until`` nothing is tried, and what the log has is used.

    All else is as of `autotune.tune`; a function is told each `SuiteProgress`. Warns below 2 s a task.

    Example: ``at.tune_model(at.import_onnx("net.onnx"), threads=1, budget_s=180)``.

    Raises `ModelError`, `TargetError`, `WorkloadError`, `SettingsError`, `FleetError` or `LogError` for input
    that cannot be used. A task that cannot be tuned has an ``error`` in its result."""
    given_s = seconds_of(budget, budget_s, None)
    options = TuneOptions(
        trials=trials, budget_s=EACH_S if given_s is None else given_s, search=search, model=cost_model,
        seed=seed, rtol=rtol, atol=atol, until=until,
    )  # fmt: skip
    asked = TuneRequest.of(options, target, threads, db, fleet)
    one = _as_one if asked.goal is None else itemgetter(asked.goal)
    return tuned(asked, tuning_of_model(model, asked, given_s, rewrites, exact), one, progress)


def tuning_of_model(
    model: Model,
    asked: TuneRequest,
    given_s: float | None,
    rewrites: Rewrites = "measured",
    exact: bool = False,
) -> Run[ModelTuneResult]:
    """What tunes a model. ``given_s``: the budget that the user gave, None for one by the number of tasks.
    Raises and warns as `tune_model`."""
    started, goal = time.monotonic(), asked.goal
    if goal is not None and goal.grid:
        backends.check_here(goal)
    wanted = Asked.of("cpu" if goal is None else goal, None, asked.where)
    here = goal is not None and not goal.grid and asked.options.aim is None
    tries = policy(rewrites) == "measured" and here
    ready = prepared_programs(model, looking if tries else choices_of(rewrites, wanted, exact))
    refuse_states(ready[0].graph.states, goal is not None and bool(goal.grid))
    tasks = tasks_of_programs(ready)
    whole_s = EACH_S * max(len(tasks), 1) if given_s is None else given_s
    options = replace(asked.options, budget_s=whole_s, started=None)
    if whole_s < LEAST_S * len(tasks):
        warnings.warn(
            f"{model.name} has {len(tasks)} tasks, and {whole_s:g} s are less than {LEAST_S:g} s for each: "
            f"give budget_s={LEAST_S * len(tasks):g} for kernels of all; the heaviest are tuned first",
            stacklevel=3,
        )
    return partial(_tune, ready, replace(asked, options=options), started, tries, exact)


def _tune(
    ready: Sequence[PreparedModel],
    asked: TuneRequest,
    started: float,
    tries: bool,
    exact: bool,
    log: Log,
    progress: Tell | None,
    interrupts: Interrupts | None,
) -> Mapping[Target, ModelTuneResult]:
    """Tune the tasks of a model, then time their finalists inside it. ``tries``: whether rewrites that may
    lose are tried first; ``exact``: only those that are exact."""
    if tries and asked.goal is not None:
        return _tune_graphs(ready, asked, asked.goal, started, exact, log, progress, interrupts)
    return _tune_tasks(ready, asked, started, log, progress, interrupts)


def _tune_graphs(
    bases: Sequence[PreparedModel],
    asked: TuneRequest,
    goal: Target,
    started: float,
    exact: bool,
    log: Log,
    progress: Tell | None,
    interrupts: Interrupts | None,
) -> Mapping[Target, ModelTuneResult]:
    """Tune both sides of rewrites that may lose, then the graph that is faster, and keep which it is."""
    part_s = graph_search.SHARE * asked.options.budget_s
    last = [graph_tuning.Before.of(base, exact, goal, asked.where) for base in bases]
    running = [base if before is None else before.ready for base, before in zip(bases, last, strict=True)]
    if all(before is not None and before.looked_s >= SAME * part_s for before in last):
        return _tune_tasks(running, asked, started, log, progress, interrupts)
    space = graph_tuning.GraphSpace.of(bases, exact, part_s, goal)
    if not space.tasks:
        found = _tune_tasks(running, asked, started, log, progress, interrupts)[goal]
        return {goal: replace(found, rewrites_needed_s=space.needed_s)}
    options = replace(asked.options, budget_s=min(part_s, EACH_S * len(space.tasks)))
    jobs = ModelJobs(bases, space.tasks, options, log, time.monotonic(), always=True)
    compared = asked.tuning(jobs)(log, progress, interrupts)
    chosen, tried = space.decided(goal, log)
    if compared[goal].stopped == "interrupted":
        return {goal: replace(compared[goal], rewrites=tuple(x for each in tried for x in each))}
    found = _tune_tasks(chosen, asked, started, log, progress, interrupts)[goal]
    told: list[Tried] = []
    for base, one, before, each in zip(bases, chosen, last, tried, strict=True):
        kept = one
        whole_s: Mapping[str, float] = {}
        try:
            if found.stopped != "interrupted":
                kept, whole_s = graph_tuning.confirmed(base, one, goal, log, asked.where)
        except KeyboardInterrupt:
            found = replace(found, stopped="interrupted")
        ended = found.stopped == "interrupted"
        if ended:
            kept = graph_tuning.running(base, one, goal, log) if before is None else before.ready
        if before is None or not ended:
            looked_s = 0.0 if ended else part_s
            graph_tuning.record(base, kept, each, whole_s, goal, log, looked_s, exact)
        told += [x.under(kept.choices) for x in each]
    return {goal: replace(found, rewrites=tuple(told), rewrites_needed_s=space.needed_s)}


def _tune_tasks(
    ready: Sequence[PreparedModel],
    asked: TuneRequest,
    started: float,
    log: Log,
    progress: Tell | None,
    interrupts: Interrupts | None,
) -> Mapping[Target, ModelTuneResult]:
    """Tune the tasks of a model, then time their finalists inside it."""
    tasks = tasks_of_programs(ready)
    goal, whole_s = asked.goal, asked.options.budget_s
    # on a GPU, arrays are cold when kernels are tuned; on a fleet, this machine may be another one
    inside_share = 0.0 if goal is None or goal.grid else IN_PLACE_SHARE
    options = replace(asked.options, budget_s=(1 - inside_share) * whole_s)
    found = asked.tuning(ModelJobs(ready, tasks, options, log, started))(log, progress, interrupts)
    if goal is None:
        return found
    of_all = found[goal]
    if of_all.stopped not in ("interrupted", "reached") and inside_share:
        now, end = time.monotonic(), started + whole_s
        until = min(end, now + inside_share * whole_s)
        until = max(until, min(now + IN_PLACE_S, end + OVER_SHARE * whole_s))
        try:
            anew = of_all.skipped < len(tasks)
            for n, one in enumerate(ready):
                now = time.monotonic()
                ends = now + (until - now) / (len(ready) - n)
                inside = _in_place(one, of_all.tasks, goal, log, asked.where, anew, ends)
                sizes = shown_sizes(one.sizes)
                of_all = replace(
                    of_all, in_place=(*of_all.in_place, *(replace(x, own=sizes) for x in inside))
                )
        except KeyboardInterrupt:
            of_all = replace(of_all, stopped="interrupted")
    return {goal: replace(of_all, elapsed_s=time.monotonic() - started)}


@dataclass
class ModelJobs:
    """What a model runs, at all sizes and at single ones, and what is to tune of it (`makers.JobMaker`).
    ``options``: their budget is that of
    all tasks, the trials that of each. ``started``: `time.monotonic`. ``always``: whether all tasks are begun
    however short the budget is."""

    ready: Sequence[PreparedModel]
    tasks: Sequence[SuiteTask]
    options: TuneOptions
    log: Log
    started: float
    always: bool = False
    left: dict[Target, dict[int, SuiteTask]] = field(default_factory=dict)

    def job(self, target: Target) -> Job:
        """The tasks that have not had their share, and the shares of these."""
        share_s = self.options.budget_s / max(len(self.tasks), 1)
        left = _unfinished(self.tasks, target, self.log, share_s, self.options.trials)
        self.left[target] = left
        budget_s = min(max(share_s, LEAST_S) * len(left), self.options.budget_s)
        # what came before is part of the budget, but for tasks that need only a part of it
        begun = min(time.monotonic(), self.started + self.options.budget_s - budget_s)
        if not left:
            return Job([], self.options, whole=self._whole([t.workload for t in self.tasks], target))
        # one task that is left is a part of the model too
        share_s = budget_s / len(left)
        options = replace(self.options, budget_s=budget_s, share_s=share_s, started=begun)
        skipped = [t.workload for i, t in enumerate(self.tasks) if i not in left]
        always = len(left) if self.always else 0
        return Job([*left.values()], options, always, self._whole(skipped, target))

    def _whole(self, skipped: Sequence[Workload], target: Target) -> Whole:
        """What a call takes and the share of the limit that it reaches, both at the largest sizes, where all
        that runs has a kernel. ``skipped``: tasks that had their share."""
        known = {w.digest: Known.of(w, target, self.log) for w in skipped}

        def of(times: Mapping[str, float], limits: Mapping[str, float]) -> tuple[float | None, float | None]:
            best = {d: k.time_s for d, k in known.items() if k.time_s is not None} | dict(times)
            least = {d: k.limit_s for d, k in known.items() if k.limit_s is not None} | dict(limits)
            each = [one.outline(lambda w: best.get(w.digest)) for one in self.ready]
            if any(w.digest not in best for one in each for w in one.tasks):
                return None, None
            counts = {w.digest: each[0].count(i) for i, w in enumerate(each[0].tasks)}
            return whole(counts, best, least)

        return of

    def _needed_s(self, found: SuiteResult) -> float | None:
        """The budget of the model in which all its tasks get a kernel."""
        if found.needed_s is None:
            return None
        each_s = found.needed_s / len(found.tasks)
        return math.ceil(each_s * len(self.tasks) / (1 - IN_PLACE_SHARE))

    def result(self, target: Target, found: SuiteResult) -> ModelTuneResult:
        """``found``: of the tasks of `job`."""
        left = self.left[target]
        tuned = dict(zip(left, found.tasks, strict=True))
        results = tuple(
            tuned[i] if i in tuned else TaskResult(t, frozen(t.workload, target, self.log), 0.0)
            for i, t in enumerate(self.tasks)
        )
        best = _seconds(results)
        model = self.ready[0].model
        each_s = [graph_search.total(one, lambda w: best.get(w.digest)) for one in self.ready]
        return ModelTuneResult(
            name=model.name,
            tasks=results,
            weighted_s=each_s[0],
            measured=sum(r.result.measured for r in results),
            skipped=len(self.tasks) - len(left),
            elapsed_s=time.monotonic() - self.started,
            budget_s=found.budget_s if left else 0.0,
            seed=self.options.seed,
            stopped=found.stopped if left else "tuned",
            needed_s=self._needed_s(found),
            own_s={shown_sizes(one.sizes): s for one, s in zip(self.ready[1:], each_s[1:], strict=True)},
            model=model,
            target=target,
            aimed=found.aimed,
        )


def _as_one(results: Mapping[Target, ModelTuneResult]) -> ModelTuneResult:
    """Of several targets: the tasks of the first, then of the next."""
    each = [*results.values()]
    return replace(
        merged_results(results, max(r.budget_s for r in each)),
        skipped=sum(r.skipped for r in each),
        target=each[0].target if len(each) == 1 else None,
        by_target=by_name(results),
    )


def _in_place(
    ready: PreparedModel,
    results: Sequence[TaskResult],
    target: Target,
    log: Log,
    where: str,
    tuned: bool,
    until: float,
) -> tuple[InPlace, ...]:
    """Time finalists inside the model, where each task that it runs has a kernel. Not again if nothing was
    ``tuned`` since. ``where``: the log's place."""
    best = _seconds(results)
    outline = ready.outline(lambda w: best.get(w.digest))
    if not tuned and in_place.known(outline, target, where):
        return ()
    ready_to_run = all(w.digest in best for w in outline.tasks)
    program = graph_tuning.best_program(ready, outline, target, where) if ready_to_run else None
    if program is None:
        return ()
    return tuple(in_place.choose(program, ready.graph.values.__getitem__, log, HERE.machine(), until))


def _seconds(results: Sequence[TaskResult]) -> dict[str, float]:
    """Of each task that has a kernel, but for plain loops alone: its time, by the digest of the workload."""
    ready = (r.result for r in results if r.result.ready)
    return {r.workload.digest: r.best.time_s for r in ready if r.best is not None}


def _unfinished(
    tasks: Sequence[SuiteTask], target: Target, log: Log, share_s: float, trials: int | None
) -> dict[int, SuiteTask]:
    """By number, the tasks that have not had their share of seconds, or of trials where these are given, or
    have no kernel but the plain loops. Each with the trials that are left."""
    left = {}
    for i, task in enumerate(tasks):
        done = had_share_s(log, task.workload, target) >= SAME * share_s
        more = None
        if trials is not None:
            more = trials - had_trials(log, task.workload, target, trials)
            done = done or more == 0
        if not done or not searched(task.workload, target, log):
            left[i] = replace(task, trials=more or trials)
    return left
