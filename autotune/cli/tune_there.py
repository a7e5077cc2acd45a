"""``autotune tune --fleet``: tunes on the machines of a fleet, and shows their progress and results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from autotune.cli import results
from autotune.cli import suite as of_suite
from autotune.cli.output import console, print_json, table
from autotune.fleet.tuning import tune_there as run
from autotune.progress.display import say
from autotune.progress.following import fleet_shown
from autotune.progress.text import ending, of_result
from autotune.progress.units import seconds
from autotune.run.describing import describe
from autotune.tuning.interrupts import Interrupts
from autotune.tuning.options import TuneOptions
from autotune.tuning.suite_tuner import SuiteResult, SuiteTask
from kernels_db.place import locate
from kernels_db.store import Log


@dataclass(frozen=True)
class There:
    """Where to measure: the address of a fleet, targets with commas between (None: all that it offers), and
    threads (None: any). ``build_here``: compile on this machine."""

    address: str
    targets: str | None
    threads: int | None
    build_here: bool


def tune_there(
    there: There,
    tasks: Sequence[SuiteTask],
    is_suite: bool,
    where: str,
    options: TuneOptions,
    dtype: str,
    json: bool,
) -> None:
    """Tune tasks on a fleet. Exit status 1: a task has no kernel for a target afterwards."""
    with Interrupts(to_the_end=True) as interrupts:  # a second Ctrl-C must not cut off the report
        with Log(where) as log, fleet_shown(quiet=json) as report:
            found = run(
                *(there.address, tasks, there.targets, there.threads, log, options, report),
                interrupts=interrupts,
                build_here=there.build_here,
                say=say,
            )
        if json:
            _print_json(found, is_suite, dtype)
        else:
            _print(found, where)
    if any(t.result.best is None for r in found for t in r.tasks):
        raise typer.Exit(1)


def _print_json(found: Sequence[SuiteResult], is_suite: bool, dtype: str) -> None:
    """For one target the document that ``tune --json`` prints without a fleet; else one for each of them."""
    each = [
        of_suite.document(r, r.tasks[0].result.target)
        if is_suite
        else results.document(r.tasks[0].result, dtype) | {"error": r.tasks[0].error}
        for r in found
    ]
    print_json(each[0] if len(each) == 1 else {"targets": each})


def _print(found: Sequence[SuiteResult], where: str) -> None:
    out = console()
    for r in found:
        target = r.tasks[0].result.target
        out.print(f"{target.kind} {target.arch}, threads: {target.threads}", style="bold")
        if len(r.tasks) == 1:
            out.print(f"  {of_result(r.tasks[0].result)}")
            continue
        rows = []
        for t in r.tasks:
            best, speed, share, trials, failed = results.cells(t.result)
            name = describe(t.result.workload)
            rows.append((name, best, speed, share, f"{t.task.weight:g}", trials, t.error or failed))
        table(out, ("task", ">best", ">rate", ">of peak", ">weight", ">trials", "remarks"), rows)
        if r.weighted_s is not None:
            out.print(f"  weighted latency {seconds(r.weighted_s)}")
    out.print(f"  time     {max(r.elapsed_s for r in found):.1f} s ({ending(found[0].stopped)})")
    out.print(f"  log      {locate(where)}")
