"""A run of `autotune.tune_model`: rewrites that may lose are tried, the tasks of the graph that is faster are
tuned, and their finalists are timed inside the model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.models import graph_search, graph_tuning, in_place
from autotune.models.graph_search import Tried
from autotune.models.graph_tuning import ComparedGraphs
from autotune.models.in_place import InPlace
from autotune.models.model import shown_sizes
from autotune.models.preparation import PreparedModel
from autotune.models.tasks import tasks_of_programs
from autotune.models.tuned_model import IN_PLACE_SHARE, ModelJobs, ModelTuneResult, TargetJobs, best_seconds
from autotune.results.following import Tell
from autotune.results.tuned import TaskResult
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.jobs import Job
from autotune.tuning.request import TuneRequest
from autotune.tuning.site import HERE
from autotune.tuning.suite import Suite
from autotune.tuning.tuner import OneMachine
from kernels_db.store import Log
from schedules.model import Target

# Seconds of budget for a task where none is given.
EACH_S = 10.0
# Least seconds in which finalists are timed inside the model.
IN_PLACE_S = 2.0
# Share of the budget by which these seconds may pass its end.
OVER_SHARE = 0.1
# What runs of each target, at all sizes and at single ones.
Programs = Callable[[Target], Sequence[PreparedModel]]


@dataclass(frozen=True)
class ModelRun:
    """Tunes a model (`request.Run`). ``programs``: of each target, before rewrites are tried. ``started``:
    `time.monotonic`. ``tries``: whether they are; ``exact``: only those that are exact;
    ``most_bytes``: as of `ArenaLimits`. ``untried``: why none is tried, for people. ``ended``: whether the
    user wanted an end before it began."""

    asked: TuneRequest
    programs: Programs
    started: float
    tries: bool
    exact: bool
    most_bytes: int | None = None
    untried: str = ""
    ended: bool = False

    def __call__(
        self, log: Log, progress: Tell | None, interrupts: Interrupts | None
    ) -> Mapping[Target, ModelTuneResult]:
        """{target: result}."""
        with contextlib.ExitStack() as stack:
            # one that comes between the runs of tasks ends this run as any other does
            interrupts = interrupts or stack.enter_context(Interrupts())
            open_ = _OpenRun(self, log, progress, interrupts)
            try:
                if self.ended:
                    raise KeyboardInterrupt
                return open_.tuned_graphs() if self.tries else open_.tuned(self.programs)
            except KeyboardInterrupt:
                if self.asked.goal is None:  # nobody knows what targets there are
                    raise
                return open_.told_at_once(self.asked.goal)


@dataclass(frozen=True)
class _OpenRun:
    """A run with its log."""

    run: ModelRun
    log: Log
    progress: Tell | None
    interrupts: Interrupts

    @property
    def _here(self) -> Target | None:
        """The target of this machine's CPU, which alone runs whole programs. On a GPU arrays are cold when
        kernels are tuned; on a fleet, this machine may be another one."""
        goal = self.run.asked.goal
        return None if goal is None or goal.grid else goal

    def _tune(self, jobs: ModelJobs) -> Mapping[Target, ModelTuneResult]:
        return self.run.asked.tuning(jobs)(self.log, self.progress, self.interrupts)

    def _jobs(self, programs: Programs, budget_s: float) -> ModelJobs:
        def of(target: Target) -> TargetJobs:
            ready = programs(target)
            return TargetJobs(ready, tasks_of_programs(ready), budget_s)

        return ModelJobs(of, self.run.asked.options, self.log, self.run.started)

    def told_at_once(self, goal: Target) -> Mapping[Target, ModelTuneResult]:
        """What the log has of all tasks; nothing is tuned."""
        asked = replace(self.run.asked, place=_Ended(goal))
        jobs = self._jobs(self.run.programs, asked.options.budget_s)
        return asked.tuning(jobs)(self.log, self.progress, self.interrupts)

    def tuned(self, programs: Programs) -> Mapping[Target, ModelTuneResult]:
        """Tune the tasks of programs, then time their finalists inside the model."""
        found = self._tuned_alone(programs)
        return {
            t: replace(self._inside(programs(t), r), rewrites_untried=self.run.untried)
            for t, r in found.items()
        }

    def _tuned_alone(self, programs: Programs) -> Mapping[Target, ModelTuneResult]:
        """Tune the tasks of programs. A part of the budget is left."""
        share = IN_PLACE_SHARE if self._here else 0.0
        return self._tune(self._jobs(programs, (1 - share) * self.run.asked.options.budget_s))

    def tuned_graphs(self) -> Mapping[Target, ModelTuneResult]:
        """Tune both sides of rewrites that may lose, then the graph that is faster, and keep which it is."""
        run, options = self.run, self.run.asked.options
        part_s = graph_search.SHARE * options.budget_s
        goal, known = run.asked.goal, dict[Target, ComparedGraphs]()

        def graphs(target: Target) -> ComparedGraphs:
            if target not in known:
                bases, where = run.programs(target), run.asked.where
                known[target] = ComparedGraphs(
                    bases, run.exact, part_s, where, self.log, target, goal == target, run.most_bytes
                )
            return known[target]

        def of(target: Target) -> TargetJobs:
            one = graphs(target)
            return TargetJobs(one.bases, one.tasks, min(part_s, EACH_S * max(len(one.tasks), 1)))

        compared: Mapping[Target, ModelTuneResult] = {}
        if goal is None or graphs(goal).tasks:
            compared = self._tune(ModelJobs(of, options, self.log, time.monotonic(), always=True))
        chosen = dict[Target, Sequence[PreparedModel]]()

        def programs(target: Target) -> Sequence[PreparedModel]:
            if target not in chosen:
                chosen[target] = graphs(target).decided()
            return chosen[target]

        ended = any(r.stopped == "interrupted" for r in compared.values())
        try:
            for target in compared:
                programs(target)
        except KeyboardInterrupt:
            ended = True
        if ended:
            return {t: self._undecided(graphs(t), r) for t, r in compared.items()}
        found = self._tuned_alone(programs)
        return {t: self._last_word(graphs(t), programs(t), r, compared.get(t)) for t, r in found.items()}

    def _undecided(self, graphs: ComparedGraphs, compared: ModelTuneResult) -> ModelTuneResult:
        """What is told where Ctrl-C ended the comparison: the model stays as it was."""
        graphs.decided()
        pairs = zip(graphs.running, graphs.tried, strict=True)
        told = tuple(x.under(ready.choices) for ready, each in pairs for x in each)
        found = self._told(compared, graphs.running, compared)
        return replace(found, rewrites=told, stopped="interrupted")

    def _last_word(
        self,
        graphs: ComparedGraphs,
        chosen: Sequence[PreparedModel],
        found: ModelTuneResult,
        compared: ModelTuneResult | None,
    ) -> ModelTuneResult:
        """Keep how the programs of a target are rewritten, and time finalists inside those that stay.
        ``found``: of the graphs that were ``chosen``; ``compared``: of both sides."""
        found = replace(found, rewrites_needed_s=graphs.needed_s)
        if not graphs.tasks:
            return self._inside(chosen, found)
        stay, told = list[PreparedModel](), list[Tried]()
        for base, one, before, each in zip(graphs.bases, chosen, graphs.before, graphs.tried, strict=True):
            kept = one
            whole_s: Mapping[str, float] = {}
            try:
                if found.stopped != "interrupted":
                    kept, whole_s = graphs.confirmed(base, one)
            except KeyboardInterrupt:
                found = replace(found, stopped="interrupted")
            ended = found.stopped == "interrupted"
            if ended:
                kept = graphs.with_kernels(base, one) if before is None else before.ready
            if before is None or not ended:
                graphs.record(base, kept, each, whole_s, ended)
            told += [x.under(kept.choices) for x in each]
            stay.append(kept)
        if [x.choices for x in stay] != [x.choices for x in chosen]:
            found = self._told(found, stay, *([compared] if compared is not None else []), found)
        return self._inside(stay, replace(found, rewrites=tuple(told)))

    def _told(
        self, found: ModelTuneResult, ready: Sequence[PreparedModel], *runs: ModelTuneResult
    ) -> ModelTuneResult:
        """A result, told of other programs of the model. ``runs``: what was tuned."""
        known = {t.task.workload.digest: t for one in runs for t in one.tasks}
        return found.of_programs(ready, tasks_of_programs(ready), known, self.log)

    def _inside(self, ready: Sequence[PreparedModel], found: ModelTuneResult) -> ModelTuneResult:
        """With the finalists timed inside the model, in the last part of the budget."""
        started, whole_s = self.run.started, self.run.asked.options.budget_s
        here = self._here
        if here is not None and found.stopped not in ("interrupted", "reached"):
            now, end = time.monotonic(), started + whole_s
            until = min(end, now + IN_PLACE_SHARE * whole_s)
            until = max(until, min(now + IN_PLACE_S, end + OVER_SHARE * whole_s))
            try:
                anew = found.skipped < len(found.tasks)
                for n, one in enumerate(ready):
                    now = time.monotonic()
                    ends = now + (until - now) / (len(ready) - n)
                    inside = _in_place(one, found.tasks, here, self.log, self.run.asked.where, anew, ends)
                    sizes = shown_sizes(one.sizes)
                    found = replace(
                        found, in_place=(*found.in_place, *(replace(x, own=sizes) for x in inside))
                    )
            except KeyboardInterrupt:
                found = replace(found, stopped="interrupted")
        return found if self.run.asked.goal is None else replace(found, elapsed_s=time.monotonic() - started)


@dataclass(frozen=True)
class _Ended(OneMachine):
    """This machine after Ctrl-C: it takes no turn."""

    def check(self, target: Target, job: Job) -> None:
        pass

    def work(self, suites: Sequence[Suite], interrupts: Interrupts) -> None:
        raise KeyboardInterrupt


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
    best = best_seconds(results)
    outline = ready.outline(lambda w: best.get(w.digest))
    if not tuned and in_place.known(outline, target, where):
        return ()
    ready_to_run = all(w.digest in best for w in outline.tasks)
    program = graph_tuning.best_program(ready, outline, target, where) if ready_to_run else None
    if program is None:
        return ()
    return tuple(in_place.choose(program, ready.graph.values.__getitem__, log, HERE.machine(), until))
