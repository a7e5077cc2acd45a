"""``autotune replay``: a search against a recorded table instead of a machine."""

from __future__ import annotations

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, hang, input_path, print_json, table
from schedules.units import seconds


@takes(opt.TABLE_FILE, opt.TASK, opt.SEARCH, opt.MODEL, opt.REPLAYED, opt.SEEDS, opt.JSON)
def replay(o: Given) -> None:
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

    recorded = read(input_path(o.file), o.task)
    times = recorded.space.times_s
    optimum = float(times.min())
    runs = [run(recorded, o.search, o.model, o.trials, seed) for seed in range(o.seeds)]
    if o.json:
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
        largest = "" if o.task else ", that with the most records"
        which = f"task {recorded.task} of {len(recorded.tasks)}{largest}"
        hang(out, "  ", f"{which}; choose with --task: {listed(recorded.tasks)}")
    rows = []
    for after in sorted({k for k in (1, 4, 8, 16, 32, 64, 100, o.trials) if k <= o.trials}):
        reached = [r.best_s[min(after, len(r.best_s)) - 1] for r in runs if r.best_s]
        found = sorted(optimum / t for t in reached if t is not None)
        if found:
            middle = found[len(found) // 2]
            rows.append((str(after), f"{middle:.1%}", f"{found[0]:.1%}", f"{found[-1]:.1%}"))
    table(out, ("trials", ">median of the best", ">worst seed", ">best seed"), rows)
