"""What a run tunes of a model, and what it gives back."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.models import graph_search
from autotune.models.graph_search import Tried
from autotune.models.graph_tuning import SAME
from autotune.models.in_place import InPlace
from autotune.models.model import Model, shown_sizes
from autotune.models.preparation import PreparedModel
from autotune.models.tasks import had_share_s, had_trials
from autotune.results.tuned import SuiteResult, SuiteTask, TaskResult
from autotune.tuning.frozen import frozen
from autotune.tuning.goal import Known, whole
from autotune.tuning.jobs import Job, Whole
from autotune.tuning.options import TuneOptions
from autotune.tuning.run_records import searched
from kernels_db.store import Log
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from autotune.results.written import Written

# Least seconds of budget for a task, until each has a kernel.
LEAST_S = 2.0
# Share of the budget in which finalists are timed inside the model.
IN_PLACE_SHARE = 0.1


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
    ``rewrites_needed_s``: a budget in which there is time for all, None where there was;
    ``rewrites_untried``: why none was tried, where the run does not try any. ``by_target``: on a
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
    rewrites_untried: str = ""
    by_target: Mapping[str, ModelTuneResult] = field(default_factory=dict)

    def report(self, path: str | os.PathLike[str]) -> Written:
        """Write one page of HTML about this model: its graph before and after each rewrite, the time of its
        groups, and its tasks. See `TuneResult.report`."""
        return super().report(path)

    def of_programs(
        self,
        ready: Sequence[PreparedModel],
        tasks: Sequence[SuiteTask],
        known: Mapping[str, TaskResult],
        log: Log,
    ) -> ModelTuneResult:
        """The same run, told of programs of the model and tasks of theirs. ``known``: results of this run, by
        the digests of workloads; others are as the log has them."""
        assert self.target is not None
        results = tuple(
            replace(known[t.workload.digest], task=t)
            if t.workload.digest in known
            else TaskResult(t, frozen(t.workload, self.target, log), 0.0)
            for t in tasks
        )
        best = best_seconds(results)
        each_s = [graph_search.total(one, lambda w: best.get(w.digest)) for one in ready]
        own_s = {shown_sizes(one.sizes): s for one, s in zip(ready[1:], each_s[1:], strict=True)}
        return replace(self, tasks=results, weighted_s=each_s[0], own_s=own_s)


@dataclass(frozen=True)
class TargetJobs:
    """Of a target: what a model runs, at all sizes and at single ones, what is to tune of it, and the budget
    of all these tasks."""

    ready: Sequence[PreparedModel]
    tasks: Sequence[SuiteTask]
    budget_s: float


@dataclass
class ModelJobs:
    """What is to tune of a model (`makers.JobMaker`). ``of``: for each target. ``options``: their trials are
    those of each task. ``started``: `time.monotonic`. ``always``: whether all tasks are begun however short
    the budget is."""

    of: Callable[[Target], TargetJobs]
    options: TuneOptions
    log: Log
    started: float
    always: bool = False
    left: dict[Target, tuple[TargetJobs, dict[int, SuiteTask]]] = field(default_factory=dict)

    def job(self, target: Target) -> Job:
        """The tasks that have not had their share, and the shares of these."""
        of = self.of(target)
        share_s = of.budget_s / max(len(of.tasks), 1)
        left = _unfinished(of.tasks, target, self.log, share_s, self.options.trials)
        self.left[target] = of, left
        budget_s = min(max(share_s, LEAST_S) * len(left), of.budget_s)
        # what came before is part of the budget, but for tasks that need only a part of it
        begun = min(time.monotonic(), self.started + of.budget_s - budget_s)
        if not left:
            options = replace(self.options, budget_s=of.budget_s)
            return Job([], options, whole=self._whole(of.ready, [t.workload for t in of.tasks], target))
        # one task that is left is a part of the model too
        share_s = budget_s / len(left)
        options = replace(self.options, budget_s=budget_s, share_s=share_s, started=begun)
        skipped = [t.workload for i, t in enumerate(of.tasks) if i not in left]
        always = len(left) if self.always else 0
        return Job([*left.values()], options, always, self._whole(of.ready, skipped, target))

    def _whole(self, ready: Sequence[PreparedModel], skipped: Sequence[Workload], target: Target) -> Whole:
        """What a call takes and the share of the limit that it reaches, both at the largest sizes, where all
        that runs has a kernel. ``skipped``: tasks that had their share."""
        known = {w.digest: Known.of(w, target, self.log) for w in skipped}

        def of(times: Mapping[str, float], limits: Mapping[str, float]) -> tuple[float | None, float | None]:
            best = {d: k.time_s for d, k in known.items() if k.time_s is not None} | dict(times)
            least = {d: k.limit_s for d, k in known.items() if k.limit_s is not None} | dict(limits)
            each = [one.outline(lambda w: best.get(w.digest)) for one in ready]
            if any(w.digest not in best for one in each for w in one.tasks):
                return None, None
            counts = {w.digest: each[0].count(i) for i, w in enumerate(each[0].tasks)}
            return whole(counts, best, least)

        return of

    def _needed_s(self, tasks: int, found: SuiteResult) -> float | None:
        """The budget of the model in which all its tasks get a kernel."""
        if found.needed_s is None:
            return None
        each_s = found.needed_s / len(found.tasks)
        return math.ceil(each_s * tasks / (1 - IN_PLACE_SHARE))

    def result(self, target: Target, found: SuiteResult) -> ModelTuneResult:
        """``found``: of the tasks of `job`."""
        of, left = self.left[target]
        known = {t.workload.digest: r for t, r in zip(left.values(), found.tasks, strict=True)}
        model = of.ready[0].model
        made = ModelTuneResult(
            name=model.name,
            tasks=(),
            weighted_s=None,
            measured=sum(r.result.measured for r in found.tasks),
            skipped=len(of.tasks) - len(left),
            elapsed_s=time.monotonic() - self.started,
            budget_s=found.budget_s if left else 0.0,
            seed=self.options.seed,
            stopped=found.stopped if left else "tuned",
            needed_s=self._needed_s(len(of.tasks), found),
            model=model,
            target=target,
            aimed=found.aimed,
        )
        return made.of_programs(of.ready, of.tasks, known, self.log)


def best_seconds(results: Sequence[TaskResult]) -> dict[str, float]:
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
