"""Tuning all that a model runs, under one budget."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from autotune.models import in_place
from autotune.models.compiling import model_target
from autotune.models.fallback import run_island
from autotune.models.in_place import InPlace
from autotune.models.model import Model
from autotune.models.preparation import Prepared, prepared
from autotune.models.programs import program_of
from autotune.models.tasks import had_share_s, had_trials, tasks_of
from autotune.progress.following import concluded, suite_followed
from autotune.run.kernel import Kernel
from autotune.run.stored import stored
from autotune.settings import database, seconds_of
from autotune.tuning.frozen import frozen
from autotune.tuning.site import HERE
from autotune.tuning.suite_tuner import SuiteProgress, SuiteResult, SuiteTask, TaskResult, tune_suite
from autotune.tuning.tuner import TuneOptions
from cost_model.saved import SavedModel
from kernels_db.store import Log
from schedules.model import Target

if TYPE_CHECKING:
    from autotune.report import Written
    from autotune.tuning.interrupts import Interrupts

# Seconds of budget for a task: where none is given, and least, until each has a kernel.
EACH_S, LEAST_S = 10.0, 2.0
# Share of the budget in which finalists are timed inside the model, and its least length (seconds).
IN_PLACE_SHARE, IN_PLACE_S = 0.1, 2.0
# A share of a task within this much of what it had counts as had (rounding).
SAME = 0.999


@dataclass(frozen=True)
class ModelTuneResult:
    """The result of tuning a model. ``tasks``: of each task its result, in the order of the model; their
    weight is how often a call runs them, their group names their nodes. Where a part of the model can run in
    two ways, both are tasks. ``weighted_s``: seconds of all kernels that a call runs, each alone, None while
    one is missing. ``skipped``: tasks that had their share of the budget, or of trials, in earlier runs.
    ``budget_s``: what the others had together. ``stopped``: as of `SuiteResult`, or "tuned" where all were
    skipped. ``in_place``: of tasks whose finalists were timed inside the model, what was found. ``model``:
    what was tuned.

    Example: ``[task.result.best.time_s for task in at.tune_model(model).tasks]``.
    """

    name: str
    tasks: tuple[TaskResult, ...]
    weighted_s: float | None
    measured: int
    skipped: int
    elapsed_s: float
    budget_s: float
    seed: int
    stopped: str
    in_place: tuple[InPlace, ...] = ()
    model: Model | None = field(default=None, repr=False, compare=False)

    def report(self, path: str | os.PathLike[str]) -> Written:
        """Write one page of HTML about this model: its graph before and after each rewrite, the time of its
        groups, and its tasks. See `TuneResult.report`."""
        from autotune import report

        return report.of_results(path, [t.result for t in self.tasks], self.model)

    def __str__(self) -> str:
        """One line: how many tasks have kernels, what they take together, how many trials and how long."""
        from autotune.progress import text

        moved = sum(p.chosen != p.best for p in self.in_place)
        inside = f"; {moved} of {len(self.in_place)} timed inside run another schedule there" if moved else ""
        return f"{self.name}: {text.of_tasks(self)}{inside}"

    def __repr__(self) -> str:
        from autotune.progress import text

        return f"<ModelTuneResult {self.name[:80]}: {text.of_tasks(self)}>"

    def _repr_html_(self) -> str:
        from autotune.progress import html

        return html.of_tasks(self)


def tune_model(
    model: Model,
    *,
    threads: int | None = None,
    target: str | Target = "cpu",
    budget_s: float | None = None,
    budget: str | float | None = None,
    trials: int | None = None,
    search: str = "evolutionary",
    cost_model: str | os.PathLike[str] | SavedModel = "xgb",
    db: str | os.PathLike[str] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    progress: Callable[[SuiteProgress], None] | Literal["auto"] | None = "auto",
    interrupts: Interrupts | None = None,
) -> ModelTuneResult:
    """Tune every kernel that a model runs, each expression once, however often the model has it.

    ``budget_s``, or ``budget`` as text such as "3m": seconds for all of the model's tasks together, shared so
    that the time of a call falls fastest, the heaviest tasks first (default: 10 s a task). ``trials``: most
    trials of each task. Both count what the log has: a task that had its share in an earlier run, of this
    model or of another, is skipped, so that a second call takes no trials. For more, give a larger budget.
    Ctrl-C keeps everything, and the next call goes on; `compile_model` works as soon as each task has a
    kernel.

    The last tenth of the budget times the best schedules of each task inside the model, where arrays are as
    cold as in use, and `compile_model` takes those that are the fastest there. Not so on a GPU: there tuning
    times kernels with cold caches.

    ``search``, ``cost_model``, ``rtol``, ``atol``, ``db``, ``seed``, ``progress``: as of
    `autotune.tune`; a function is called with each `SuiteProgress`.
    Warns of a budget below 2 s a task.

    Example: ``at.tune_model(at.import_onnx("net.onnx"), threads=1, budget_s=180)``.

    Raises `ModelError`, `TargetError`, `WorkloadError`, `SettingsError` or `LogError` for input that cannot
    be used. A task that cannot be tuned has an ``error`` in its result."""
    started = time.monotonic()
    goal = model_target(target, threads)
    ready = prepared(model)
    tasks = [SuiteTask(t.workload, float(t.count), t.shown) for t in tasks_of(ready.parts)]
    whole_s = seconds_of(budget, budget_s, EACH_S * max(len(tasks), 1))
    options = TuneOptions(
        trials=trials, budget_s=whole_s, search=search, model=cost_model, seed=seed, rtol=rtol, atol=atol
    )
    if whole_s < LEAST_S * len(tasks):
        warnings.warn(
            f"{model.name} has {len(tasks)} tasks, and {whole_s:g} s are less than {LEAST_S:g} s for each: "
            f"give budget_s={LEAST_S * len(tasks):g} for kernels of all; the heaviest are tuned first",
            stacklevel=2,
        )
    # on a GPU, arrays are cold when kernels are tuned
    inside_share = 0.0 if goal.grid else IN_PLACE_SHARE
    share_s = (1 - inside_share) * whole_s / max(len(tasks), 1)
    where = database(db)
    with Log(where) as log:
        left = _unfinished(tasks, goal, log, share_s, trials)
        result: SuiteResult | None = None
        if left:
            mine = replace(options, budget_s=share_s * len(left))
            with suite_followed(progress) as tell:
                result = tune_suite([*left.values()], goal, log, mine, tell, interrupts=interrupts)
        found = dict(zip(left, () if result is None else result.tasks, strict=True))
        results = tuple(
            found[i] if i in found else TaskResult(t, frozen(t.workload, goal, log, seed), 0.0)
            for i, t in enumerate(tasks)
        )
        stopped = "tuned" if result is None else result.stopped
        inside: tuple[InPlace, ...] = ()
        if stopped != "interrupted" and inside_share:
            until = time.monotonic() + max(inside_share * whole_s, IN_PLACE_S)
            try:
                inside = _in_place(ready, results, goal, log, where, bool(left), until)
            except KeyboardInterrupt:
                stopped = "interrupted"
    best = {r.result.workload.digest: r.result.best.time_s for r in results if r.result.best is not None}
    running = ready.outline(lambda w: best.get(w.digest))
    times = [best.get(w.digest) for w in running.tasks]
    whole = ModelTuneResult(
        name=model.name,
        tasks=results,
        weighted_s=None if None in times else sum(running.count(i) * (t or 0.0) for i, t in enumerate(times)),
        measured=sum(r.result.measured for r in results),
        skipped=len(tasks) - len(left),
        elapsed_s=time.monotonic() - started,
        budget_s=share_s * len(left),
        seed=seed,
        stopped=stopped,
        in_place=inside,
        model=model,
    )
    concluded(progress, str(whole))
    return whole


def _in_place(
    ready: Prepared,
    results: Sequence[TaskResult],
    target: Target,
    log: Log,
    where: str,
    tuned: bool,
    until: float,
) -> tuple[InPlace, ...]:
    """Time finalists inside the model, where each task that it runs has a kernel. Not again if nothing was
    ``tuned`` since. ``where``: the log's place."""
    best = {r.result.workload.digest: r.result.best.time_s for r in results if r.result.best is not None}
    outline = ready.outline(lambda w: best.get(w.digest))
    if not tuned and in_place.known(outline, target, where):
        return ()
    kernels: list[Kernel] = []
    for workload in outline.tasks:
        found, _ = stored(workload, target, target.threads, where)
        if found is None or found.target != target:
            return ()
        kernels.append(found)
    value_of = ready.graph.values.__getitem__
    program = program_of(outline, kernels, value_of, run_island)
    return tuple(in_place.choose(program, value_of, log, HERE.machine(), until))


def _unfinished(
    tasks: Sequence[SuiteTask], target: Target, log: Log, share_s: float, trials: int | None
) -> dict[int, SuiteTask]:
    """By number, the tasks that have not had their share of seconds, or of trials where these are given. Each
    with the trials that are left."""
    left = {}
    for i, task in enumerate(tasks):
        done = had_share_s(log, task.workload, target) >= SAME * share_s
        more = None
        if trials is not None:
            more = trials - had_trials(log, task.workload, target, trials)
            done = done or more == 0
        if not done or log.best(task.workload, target) is None:
            left[i] = replace(task, trials=more or trials)
    return left
