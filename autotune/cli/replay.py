"""``autotune replay``: a search against a recorded table instead of a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import options as opt
from autotune.cli.output import console, hang, print_json, table
from autotune.search.policies import POLICIES
from cost_model.models import MODELS
from schedules.units import seconds


def replay(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A log, an export, a Kernel Tuner cache or T4 results; - is stdin."
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="N|WORDS",
            help="Which task of a log: its number, or words of its name. [default: with the most records]",
        ),
    ] = None,
    search: opt.SearchOption = "evolutionary",
    model: opt.ModelOption = "xgb",
    trials: Annotated[int, typer.Option("--trials", min=1, help="Trials of each search.")] = 100,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Searches, with seeds from 0.")] = 10,
    json: opt.JsonOption = False,
) -> None:
    """Run a search against a table of measured candidates, and say how soon it came near the best.

    \b
    Examples:
      autotune replay tuning.db --trials 64
      autotune replay tuning.db --task "matmul m=512"
      autotune replay kernel_tuner_cache.json.gz --search random --seeds 20 --json
    """
    from autotune.search.simulate import read
    from autotune.search.simulate import replay as run
    from autotune.search.simulate_log import listed

    opt.one_of("--search", search, POLICIES)
    opt.one_of("--model", model, MODELS)

    recorded = read(opt.input_path(file), task)
    times = recorded.space.times_s
    optimum = float(times.min())
    runs = [run(recorded, search, model, trials, seed) for seed in range(seeds)]
    if json:
        print_json(
            {
                "space": recorded.name,
                "task": recorded.task,
                "tasks": list(recorded.tasks),
                "notes": list(recorded.notes),
                "configurations": recorded.space.configurations,
                "valid": len(times),
                "optimum_s": optimum,
                "runs": [{"seed": r.seed, "best_s": list(r.best_s)} for r in runs],
            }
        )
        return
    out = console()
    out.print(recorded.name, style="bold")
    out.print(f"  {recorded.space.configurations} configurations, {len(times)} ran, best {seconds(optimum)}")
    for note in recorded.notes:
        out.print(f"  note: {note}")
    if len(recorded.tasks) > 1:
        largest = "" if task else ", that with the most records"
        which = f"task {recorded.task} of {len(recorded.tasks)}{largest}"
        hang(out, "  ", f"{which}; choose with --task: {listed(recorded.tasks)}")
    rows = []
    for after in sorted({k for k in (1, 4, 8, 16, 32, 64, 100, trials) if k <= trials}):
        reached = [r.best_s[min(after, len(r.best_s)) - 1] for r in runs if r.best_s]
        found = sorted(optimum / t for t in reached if t is not None)
        if found:
            middle = found[len(found) // 2]
            rows.append((str(after), f"{middle:.1%}", f"{found[0]:.1%}", f"{found[-1]:.1%}"))
    table(out, ("trials", ">median of the best", ">worst seed", ">best seed"), rows)
