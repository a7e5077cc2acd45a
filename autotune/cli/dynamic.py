"""``autotune tune OP --shape m=1..512,…``: tunes a range of sizes, and shows what each tuned size reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import results
from autotune.cli.output import console, print_json, table
from autotune.results.following import suite_shown
from autotune.results.text import ending

if TYPE_CHECKING:
    from autotune.results.tuned import DynamicResult
    from autotune.run.dynamic_workload import DynamicWorkload
    from autotune.tuning.options import TuneOptions
    from schedules.model import Target


def tune_dynamic(
    dynamic: DynamicWorkload, target: Target, where: str, options: TuneOptions, dtype: str, json: bool
) -> None:
    """Tune a range of sizes. Exit status 1: a size that was tried has no kernel afterwards."""
    from autotune.tuning.dynamic_tuner import tune_dynamic as run
    from kernels_db.store import Log

    with results.interruptible() as interrupts:
        with Log(where) as log, suite_shown(quiet=json) as report:
            result = run(dynamic, target, log, options, report, interrupts=interrupts)
        if json:
            print_json(document(dynamic, result, dtype))
        else:
            show(dynamic, result, where)
        raise typer.Exit(results.status(result.by_size.values() or [result], result.stopped))


def document(dynamic: DynamicWorkload, result: DynamicResult, dtype: str) -> dict[str, Any]:
    """The document that ``--json`` prints: of the largest size as ``tune`` has it, with ranges; and each of
    ``sizes``."""
    names = [d.name for d in dynamic.dims]
    whole = results.document(result, dtype)
    whole["task"]["params"] |= {d.name: f"{d.lo}..{d.hi}" for d in dynamic.dims}
    sizes = [
        {"size": dict(zip(names, size, strict=True)), **results.document(r, dtype)}
        for size, r in result.by_size.items()
    ]
    return whole | {"sizes": sizes}


def show(dynamic: DynamicWorkload, result: DynamicResult, where: str) -> None:
    """Print a table of the sizes."""
    from kernels_db.place import locate  # its text hides a URL's password

    out = console()
    n = result.target.threads
    out.print(f"{dynamic}, {n} thread{'s' if n != 1 else ''}", style="bold")
    heads = [f">{d.name}" for d in dynamic.dims]
    table(
        out,
        (*heads, ">best", ">rate", ">of peak", ">trials", "remarks"),
        [(*map(str, size), *results.cells(r)) for size, r in result.by_size.items()],
    )
    out.print("  a size between these takes the schedule of one that is near, at its first call")
    out.print(f"  time     {result.elapsed_s:.1f} s ({ending(result.stopped)})")
    out.print(f"  log      {locate(where)}")
