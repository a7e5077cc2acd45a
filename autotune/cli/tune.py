"""``autotune tune``: search for a fast schedule until the budget or the trials are used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.dynamic import tune_dynamic
from autotune.cli.output import console, print_json, task_text
from autotune.cli.results import document, interruptible, status
from autotune.cli.suite import tasks_of, tune_suite
from autotune.results.following import task_shown
from autotune.results.text import ending
from autotune.search.policies import POLICIES
from schedules.units import counts, of_peak, rate, seconds

if TYPE_CHECKING:
    from autotune.results.tuned import TuneResult
    from schedules.model import Workload


def tune(
    ctx: typer.Context,
    op: Annotated[
        str | None,
        typer.Argument(metavar="OP", help="An operator of the library (see: autotune ops), or NET.onnx."),
    ] = None,
    shape: opt.ShapeOption = "",
    suite: opt.SuiteOption = None,
    dtype: opt.DtypeOption = "float32",
    layout: opt.LayoutOption = None,
    constant_weights: opt.ConstantsOption = False,
    target: opt.TargetOption = "cpu",
    threads: opt.ThreadsOption = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials",
            metavar="N",
            min=0,
            help="Stop after N new trials of a task; 0: no search, only a first pick. [default: no limit]",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Stop after: 60s, 2m, 500ms.")
    ] = "60s",
    search: opt.SearchOption = "evolutionary",
    model: opt.CostModelOption = "xgb",
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Take what the log has and measure nothing.")
    ] = False,
    db: opt.DbOption = None,
    seed: opt.SeedOption = 0,
    fleet: opt.FleetOption = None,
    build_here: Annotated[
        bool,
        typer.Option("--build-here", help="With --fleet: compile here, for workers whose CPUs are slow."),
    ] = False,
    rtol: Annotated[
        float | None,
        typer.Option(
            "--rtol",
            min=0,
            help="Accept outputs within ATOL + RTOL x |reference|. [default: what rounding explains]",
        ),
    ] = None,
    atol: Annotated[float | None, typer.Option("--atol", min=0, help="See --rtol.")] = None,
    json: opt.JsonOption = False,
) -> None:
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
    budget_s = opt.parse_budget(budget, "--budget")
    opt.one_of("--search", search, POLICIES)
    opt.cost_model(model)
    if opt.is_model(op):
        models.check_options(ctx, "frozen")
    if fleet is None and "," in target:
        raise typer.BadParameter("several targets are tuned for on a fleet; give --fleet too, or one target")
    if build_here and fleet is None:
        raise typer.BadParameter("--build-here goes with --fleet")
    opt.operator_or_suite(ctx, op, suite, "frozen")
    where = opt.db_of(db)
    dynamic = None
    if suite is None and not opt.is_model(op):
        assert op is not None
        dynamic = opt.dynamic_of(op, shape, dtype, layout, constant_weights)
        if dynamic is None:
            workload = opt.workload_of(op, shape, dtype, layout, constant_weights, where)
        elif frozen:
            raise typer.BadParameter("--frozen takes one size, not a range")
    if fleet is not None and frozen:
        raise typer.BadParameter("--frozen measures nothing, so --fleet does not go with it")
    goal = opt.target_of(target, threads) if fleet is None else None

    from autotune.tuning.options import TuneOptions
    from autotune.tuning.tuner import tune as run
    from kernels_db.store import Log

    chosen = TuneOptions(
        trials=trials, budget_s=budget_s, search=search, model=model, seed=seed, rtol=rtol, atol=atol,
        started=ctx.obj,
    )  # fmt: skip
    own_s = budget_s if opt.given(ctx, "budget") else None
    if goal is None:
        from autotune.cli import tune_there

        wanted = target if opt.given(ctx, "target") else None
        there = tune_there.there_of(str(fleet), wanted, threads, build_here)
        if suite is not None:
            tune_there.suite_there(there, tasks_of(suite, constant_weights), where, chosen, json)
        elif opt.is_model(op):
            tune_there.model_there(there, str(op), shape, where, chosen, own_s, json)
        else:
            tune_there.program_there(there, dynamic or workload, where, chosen, dtype, json)
        return
    if opt.is_model(op):
        models.tune_model(str(op), shape, goal, where, chosen, own_s, json)
        return
    if suite is not None:
        tune_suite(suite, constant_weights, goal, where, chosen, json)
        return
    if dynamic is not None:
        tune_dynamic(dynamic, goal, where, chosen, dtype, json)
        return
    with interruptible() as interrupts:
        with Log(where, read_only=frozen) as log, task_shown(workload, quiet=json) as report:
            if frozen:
                from autotune.tuning.frozen import frozen as stored

                result = stored(workload, goal, log, seed)
            else:
                result = run(workload, goal, log, chosen, report, interrupts=interrupts)
        if json:
            print_json(document(result, dtype))
        else:
            _print(result, workload, where)
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
        speed = rate(workload.flops, opt.compulsory_bytes(workload), b.time_s)
        share = "" if b.share_of_peak is None else f", {of_peak(b.share_of_peak)}"
        out.print(f"  best     {seconds(b.time_s)}, {speed}{share}")
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
