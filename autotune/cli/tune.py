"""``autotune tune``: search for a fast schedule until the budget or the trials are used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.dynamic import tune_dynamic
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json, task_text
from autotune.cli.results import document, interruptible, status
from autotune.cli.suite import tasks_of, tune_suite
from autotune.progress.following import shown
from autotune.progress.text import ending, speed
from autotune.progress.units import counts, of_peak, seconds

if TYPE_CHECKING:
    from autotune.tuning.results import TuneResult
    from schedules.model import Workload


@takes(
    *(opt.SOME_OP, opt.SHAPE, opt.SUITE, *opt.WHAT[1:], opt.TARGET, opt.THREADS, opt.TRIALS, opt.BUDGET),
    *(opt.SEARCH, opt.COST_MODEL, opt.FROZEN, opt.DB, opt.SEED, opt.FLEET, opt.BUILD_HERE),
    *(opt.RTOL, opt.ATOL, opt.JSON),
)
def tune(o: Given) -> None:
    """Tune an operator: every candidate is checked, timed and kept in the tuning log.

    The budget or the number of trials ends it, whichever comes first; without --trials it also ends when
    nothing better is to be expected. Trials already in the log are reused. Ctrl-C keeps everything and prints
    the best. With --suite the tasks share the budget, so that the sum of their times, weighted as the
    file says, falls fastest. Exit status 1: nothing valid was found (of a suite: for a task), with
    --frozen: in the log.

    A model's file stands where an operator's name does. Each expression that it runs is tuned once, all share
    the budget (10 s for each without --budget), and --shape says what the file leaves open.

    With --fleet the machines of a fleet measure (see: autotune worker), for the targets that --target lists,
    or for all that they offer.

    A size may vary: m=1..512. Then sizes in the range share the budget, and autotune.load with
    m=autotune.dim(1, 512) gives one kernel for all of them.

    \b
    Examples:
      autotune tune matmul --shape m=512,n=512,k=512
      autotune tune matmul --shape m=1..512,n=512,k=512 --budget 2m
      autotune tune conv2d --shape h=56,w=56,ci=64,co=64,k=3,padding=1 --budget 2m --threads 1
      autotune tune softmax --shape m=4096,n=1024 --trials 200 --db tuning.db --json
      autotune tune --suite ops.toml:quick --budget 10m --threads 1
      autotune tune net.onnx --shape x=1x3x224x224 --threads 1 --budget 3m
      autotune tune --suite ops.toml --fleet tcp://host:8786 --target znver4,x86-64-v3 --budget 10m
      autotune tune net.onnx --fleet tcp://host:8786 --budget 10m
    """
    if o.on_model:
        o.check_model("frozen")
    if o.fleet is None and "," in o.target:
        raise typer.BadParameter("several targets are tuned for on a fleet; give --fleet too, or one target")
    if o.build_here and o.fleet is None:
        raise typer.BadParameter("--build-here goes with --fleet")
    o.check_program("frozen")
    from autotune.run.dynamic_workload import DynamicWorkload

    where = o.where
    program: Any = None
    if o.suite is None and not o.on_model:
        program = o.program()
        if o.frozen and isinstance(program, DynamicWorkload):
            raise typer.BadParameter("--frozen takes one size, not a range")
    if o.fleet is not None and o.frozen:
        raise typer.BadParameter("--frozen measures nothing, so --fleet does not go with it")
    goal = o.goal if o.fleet is None else None

    from autotune.tuning.options import TuneOptions
    from autotune.tuning.tuner import tune as run
    from kernels_db.store import Log

    chosen = TuneOptions(
        trials=o.trials, budget_s=o.budget, search=o.search, model=o.cost_model, seed=o.seed,
        rtol=o.rtol, atol=o.atol, started=o.ctx.obj,
    )  # fmt: skip
    own_s = o.budget if o.has("budget") else None
    if goal is None:
        from autotune.cli import tune_there

        wanted = o.target if o.has("target") else None
        there = tune_there.there_of(str(o.fleet), wanted, o.threads, o.build_here)
        if o.suite is not None:
            tune_there.suite_there(there, tasks_of(o.suite, o.constant_weights), where, chosen, o.json)
        elif o.on_model:
            tune_there.model_there(there, str(o.op), o.shape, where, chosen, own_s, o.json)
        else:
            tune_there.program_there(there, program, where, chosen, o.dtype, o.json)
        return
    if o.on_model:
        models.tune_model(str(o.op), o.shape, goal, where, chosen, own_s, o.json)
        return
    if o.suite is not None:
        tune_suite(o.suite, o.constant_weights, goal, where, chosen, o.json)
        return
    if isinstance(program, DynamicWorkload):
        tune_dynamic(program, goal, where, chosen, o.dtype, o.json)
        return
    with interruptible() as interrupts:
        with Log(where, read_only=o.frozen) as log, shown(quiet=o.json, alone=True) as report:
            if o.frozen:
                from autotune.tuning.frozen import frozen as stored

                result = stored(program, goal, log, o.seed)
            else:
                result = run(program, goal, log, chosen, report, interrupts=interrupts)
        if o.json:
            print_json(document(result, o.dtype))
        else:
            _print(result, program, where)
        raise typer.Exit(status([result], result.stopped))


def _print(result: TuneResult, workload: Workload, where: str) -> None:
    from kernels_db.place import locate  # its text hides a URL's password

    out = console()
    out.print(task_text(workload, result.target.threads), style="bold")
    if result.best is None:
        why = f": {result.error}" if result.error else ""
        out.print(f"  no valid kernel found{why}")
    else:
        b = result.best
        share = "" if b.share_of_peak is None else f", {of_peak(b.share_of_peak)}"
        out.print(f"  best     {seconds(b.time_s)}, {speed(workload, b.time_s)}{share}")
        out.print(f"  record   {b.record_id}")
    failures = counts(result.failed)
    out.print(
        f"  trials   {result.measured} measured"
        + (f", {result.stopped_early} of them stopped early" if result.stopped_early else "")
        + (f", failed: {failures}" if failures else ", none failed")
        + (f"; {result.resumed} resumed from the log" if result.resumed else "")
    )
    if result.throttled:
        why = counts(result.throttled)
        out.print(f"  clocks   the device was throttled beside trials: {why}; their times are too long")
    out.print(f"  time     {result.elapsed_s:.1f} s ({ending(result.stopped)})")
    for note in result.notes:
        out.print(f"  note     {note}")
    out.print(f"  log      {locate(where)}")
