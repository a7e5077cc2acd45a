"""Tuning all that a model runs, under one budget."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Literal

from autotune import backends
from autotune.models.graph_choices import Rewrites, choices_of, looking, policy
from autotune.models.kept_states import refuse_states
from autotune.models.model import Model
from autotune.models.model_run import EACH_S, ModelRun
from autotune.models.preparation import PreparedModel, prepared_programs
from autotune.models.tasks import tasks_of_programs
from autotune.models.tuned_model import LEAST_S, ModelTuneResult
from autotune.results.tuned import SuiteProgress, by_name, merged_results
from autotune.run.asked import Asked
from autotune.settings import SettingsError, seconds_of
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.options import TuneOptions
from autotune.tuning.request import Run, TuneRequest, tuned
from cost_model.saved import SavedModel
from schedules.model import Target

# Why a run tries no rewrites.
UNTRIED = "with until, the graph stays as the log has it; a run without until tries rewrites"


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
    arena_bytes: int | None = None,
    progress: Callable[[SuiteProgress], None] | Literal["auto"] | None = "auto",
) -> ModelTuneResult:
    """Tune every kernel that a model runs, each expression once, however often the model has it.

    ``budget_s``, or ``budget`` as text such as "3m": seconds for all of the model's tasks together, shared so
    that the time of a call falls fastest, the heaviest tasks first (default: 10 s a task). Each task has a
    first pick before any is searched. ``trials``: most trials of each task. Both count what the log has: a
    task that had its share in an earlier run, of this model or of another, is skipped, so that a second call
    takes no trials. For more, give a larger budget. A call whose budget was too small for all goes on when it
    is made again, with the tasks that have no kernel first, then with those that only had a first pick.
    Ctrl-C keeps everything; `compile_model` works as soon as each task has a kernel. Sizes with programs of
    their own (`Model.with_own_sizes`) are tuned in the same run.

    ``until``: ends the run early once a call's kernels reach it, each timed again: their time together, as
    text ("2ms"), or the share of the machine's limit, a number from 0 to 1. ``aimed`` of the result says how
    far they were. A run that ends so times nothing inside the model.

    The last tenth of the budget times the best schedules of each task inside the model, where arrays are as
    cold as in use (not on a GPU), and `compile_model` takes those that are the fastest there.
    ``fleet``: as of `autotune.tune`; ``target`` may be several, each of which has the whole budget. A second
    call without it, on the machine that is to run the model, times schedules inside it.

    ``rewrites``: of those that may lose, such as three products as one. "measured": a quarter of the budget,
    at most, tunes both ways for each target (not with ``until``). "always": each where it usually is applied;
    "none": none. ``exact=True`` leaves out those whose results are less exact, such as Winograd's
    convolutions. ``arena_bytes``: none makes what lies between kernels larger.

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
    run = tuning_of_model(model, asked, given_s, rewrites, exact, arena_bytes)
    return tuned(asked, run, _as_one if asked.goal is None else itemgetter(asked.goal), progress)


def tuning_of_model(
    model: Model,
    asked: TuneRequest,
    given_s: float | None,
    rewrites: Rewrites = "measured",
    exact: bool = False,
    arena_bytes: int | None = None,
) -> Run[ModelTuneResult]:
    """What tunes a model. ``given_s``: the budget that the user gave, None for one by the number of tasks.
    Raises and warns as `tune_model`. Ctrl-C meanwhile is for the run, which then ends at once."""
    started, goal = time.monotonic(), asked.goal
    if goal is not None and goal.grid:
        backends.check_here(goal)
    wanted = Asked.of("cpu" if goal is None else goal, None, asked.where)
    measured = policy(rewrites) == "measured"
    if arena_bytes is not None and (not isinstance(arena_bytes, int) or arena_bytes < 0):
        raise SettingsError(f"arena_bytes is {arena_bytes!r}; it is a number of bytes, 0 or more")
    tries = measured and asked.options.aim is None
    with Interrupts() as interrupts, contextlib.suppress(KeyboardInterrupt), interrupts.hold():
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

    def programs(target: Target) -> Sequence[PreparedModel]:
        """On a fleet each target has what the log has for it."""
        if tries or not measured or goal is not None:
            return ready
        return prepared_programs(model, choices_of(rewrites, wanted.on(target), exact))

    untried = UNTRIED if measured and not tries else ""
    ended = interrupts.number is not None
    return ModelRun(
        replace(asked, options=options), programs, started, tries, exact, arena_bytes, untried, ended
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
