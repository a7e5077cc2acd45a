"""``autotune tune --fleet``: tunes on the machines of a fleet, and shows their progress and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from autotune.cli import dynamic as of_range
from autotune.cli import models as of_model
from autotune.cli import results
from autotune.cli import suite as of_suite
from autotune.cli.output import console, print_json
from autotune.fleet.program import tune_program_there
from autotune.fleet.tuning import There
from autotune.models.tuning import tune_model
from autotune.results.display import say
from autotune.results.following import fleet_shown
from autotune.results.text import ending, of_result
from autotune.results.tuned import DynamicResult, SuiteTask, TuneResult
from autotune.run.dynamic_workload import DynamicWorkload
from autotune.tuning.makers import Tasks
from autotune.tuning.options import TuneOptions
from autotune.tuning.tuner import tune_jobs
from kernels_db.place import locate
from kernels_db.store import Log
from schedules.model import Target, Workload


def there_of(address: str, wanted: str | None, threads: int | None, build_here: bool) -> There:
    """Where ``--fleet`` tunes. ``wanted``: ``--target``, None where it was not given."""
    return There(address, wanted, threads, build_here, say)


def suite_there(
    there: There, tasks: Sequence[SuiteTask], where: str, options: TuneOptions, json: bool
) -> None:
    """Tune a suite. Exit status 1: a task has no kernel for a target afterwards. The results are printed when
    the lines of progress are gone, which would take some of them along."""
    jobs = Tasks(tasks, options)
    with results.interruptible() as interrupts:
        with Log(where) as log, fleet_shown(quiet=json) as report:
            found = tune_jobs(jobs, there, log, report, interrupts=interrupts)
        _show(
            *(found, json),
            lambda target, r: of_suite.document(r, target),
            lambda r: of_suite.show(r, where),
        )
        _exit([t.result for r in found.values() for t in r.tasks], [r.stopped for r in found.values()])


def program_there(
    there: There,
    program: Workload | DynamicWorkload,
    where: str,
    options: TuneOptions,
    dtype: str,
    json: bool,
) -> None:
    """Tune an operator of one size, or of a range. Exit status 1: as of `suite_there`, for a size."""
    with results.interruptible() as interrupts:
        with Log(where) as log, fleet_shown(quiet=json) as report:
            found = tune_program_there(there, program, log, options, report, interrupts=interrupts)

        def document(target: Target, r: TuneResult) -> dict[str, Any]:
            if isinstance(r, DynamicResult) and isinstance(program, DynamicWorkload):
                return of_range.document(program, r, dtype)
            return results.document(r, dtype)

        def show(r: TuneResult) -> None:
            if isinstance(r, DynamicResult) and isinstance(program, DynamicWorkload):
                of_range.show(program, r, where)
            else:
                console().print(f"  {of_result(r)}")
                for note in r.notes:
                    console().print(f"  note     {note}")

        _show(found, json, document, show)
        if isinstance(program, Workload) and not json:
            each = [*found.values()]
            console().print(f"  time     {max(r.elapsed_s for r in each):.1f} s ({ending(each[0].stopped)})")
            console().print(f"  log      {locate(where)}")
        _exit([part for r in found.values() for part in r.parts], [r.stopped for r in found.values()])


def model_there(
    there: There, path: str, shape: str, where: str, options: TuneOptions, given_s: float | None, json: bool
) -> None:
    """Tune what a model's file runs. ``given_s``: as of `models.tune_model`. Exit status 1: as of
    `suite_there`."""
    model = of_model.imported(path, shape)
    with results.interruptible() as interrupts:
        with fleet_shown(quiet=json) as report:
            chosen = of_model.choices(options, given_s, where)
            result = tune_model(model, fleet=there, progress=report, interrupts=interrupts, **chosen)
        found = {r.target: r for r in result.by_target.values() if r.target is not None}
        _show(
            *(found, json),
            lambda target, r: of_model.document(r, target),
            lambda r: of_model.show(r, where),
        )
        _exit([t.result for t in result.tasks], [result.stopped])


def _show(
    found: Mapping[Target, Any],
    json: bool,
    document: Callable[[Target, Any], dict[str, Any]],
    show: Callable[[Any], None],
) -> None:
    """For one target the document that ``tune --json`` prints without a fleet; else one for each of them."""
    if json:
        each = [document(t, r) for t, r in found.items()]
        print_json(each[0] if len(each) == 1 else {"targets": each})
        return
    for target, result in found.items():
        console().print(f"{target.kind} {target.arch}, threads: {target.threads}", style="bold")
        show(result)


def _exit(each: Sequence[TuneResult], ends: Sequence[str]) -> None:
    raise typer.Exit(results.status(each, "interrupted" if "interrupted" in ends else ends[0]))
