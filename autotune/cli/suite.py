"""``autotune tune --suite``: tunes many tasks under one budget, and shows their progress and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import options as opt
from autotune.cli import results
from autotune.cli.output import console, print_json, table
from autotune.results import text
from autotune.results.following import suite_shown
from autotune.results.text import ending
from schedules.units import seconds

if TYPE_CHECKING:
    from autotune.models.tuning import ModelTuneResult
    from autotune.results.tuned import SuiteResult, SuiteTask, TaskResult
    from autotune.tuning.options import TuneOptions
    from schedules.model import Target


def tune_suite(
    file: str, constant_weights: bool, target: Target, where: str, options: TuneOptions, json: bool
) -> None:
    """Tune the tasks of ``FILE[:NAME]``. Exit status 1: a task has no kernel afterwards."""
    from autotune.tuning.tuner import tune_suite as run
    from kernels_db.store import Log

    tasks = tasks_of(file, constant_weights)
    with results.interruptible() as interrupts:
        with Log(where) as log, suite_shown(quiet=json) as report:
            result = run(tasks, target, log, options, report, interrupts=interrupts)
        if json:
            print_json(document(result, target))
        else:
            show(result, where)
        raise typer.Exit(results.status((t.result for t in result.tasks), result.stopped))


def tasks_of(file: str, constant_weights: bool) -> list[SuiteTask]:
    """The tasks of ``FILE[:NAME]``. Raises `SuiteError`."""
    from autotune.results.tuned import SuiteTask
    from autotune.tuning import suites

    tasks = [SuiteTask(t.workload, t.weight, t.group) for t in suites.read(file, constant_weights)]
    if not tasks:
        raise suites.SuiteError(f"{file} has no tasks; give a NAME of the file that has some")
    return tasks


def document(result: SuiteResult, target: Target) -> dict[str, Any]:
    """The document that ``tune --suite --json`` prints: each of ``tasks`` as of ``tune --json``, and more."""
    return {
        "target": opt.target_summary(target),
        "tasks": [task_document(t) for t in result.tasks],
        "weighted_latency_s": result.weighted_s,
        **lateness(result),
        "trials": {"measured": result.measured, "resumed": sum(t.result.resumed for t in result.tasks)},
        "elapsed_s": result.elapsed_s,
        "budget_s": result.budget_s,
        "seed": result.seed,
        "stopped": result.stopped,
    }


def lateness(result: SuiteResult | ModelTuneResult) -> dict[str, Any]:
    """The tasks that had no time and the budget in which they would have some, and those that have their
    plain loops alone: a part of `document`."""
    plain = [text.name_of(t) for t in result.tasks if t.result.only_plain]
    return {
        "no_time": [text.name_of(t) for t in result.late],
        "needed_budget_s": result.needed_s,
        "only_plain_loops": plain,
    }


def task_document(t: TaskResult) -> dict[str, Any]:
    """One of the tasks of `document`."""
    from autotune.run.workloads import dtype_of

    return {
        "group": t.task.group,
        "weight": t.task.weight,
        "seconds": round(t.seconds, 3),
        **results.document(t.result, dtype_of(t.task.workload)),
        "error": t.error,
    }


def show(result: SuiteResult, where: str) -> None:
    """Print a table of the tasks, and what they take together."""
    from kernels_db.place import locate  # its text hides a URL's password

    out = console()
    table(
        out,
        ("group", "task", ">best", ">rate", ">of peak", ">weight", ">trials", ">seconds", "remarks"),
        [_row(t) for t in result.tasks],
    )
    out.print(f"  {text.kernels(result)}; {result.measured} trials")
    if missing := text.no_time(result):
        out.print(f"  {missing}")
    if result.weighted_s is not None:
        out.print(f"  weighted latency {seconds(result.weighted_s)}")
    out.print(f"  time     {result.elapsed_s:.1f} s ({ending(result.stopped)})")
    out.print(f"  log      {locate(where)}")


def _row(t: TaskResult) -> tuple[str, ...]:
    from autotune.run.describing import describe

    best, speed, share, trials, failed = results.cells(t.result)
    about = (t.task.group, describe(t.task.workload))
    return (*about, best, speed, share, f"{t.task.weight:g}", trials, f"{t.seconds:.1f}", t.error or failed)
