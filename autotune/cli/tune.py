"""``autotune tune``: search for a fast schedule until the budget or the trials are used up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import models, results
from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.results.display import say
from autotune.results.following import shown

if TYPE_CHECKING:
    from autotune.results.tuned import SuiteTask
    from autotune.tuning.request import Run, TuneRequest


@takes(
    *(opt.SOME_OP, opt.SHAPE, opt.SUITE, *opt.WHAT[1:], *opt.OF_GGUF, opt.TARGET, opt.THREADS),
    *(opt.TRIALS, opt.BUDGET, opt.UNTIL, opt.IN_PLACE, opt.REWRITES, opt.EXACT, opt.ARENA_BYTES),
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
    the budget (10 s for each without --budget), and --shape says what the file leaves open: a number, or a
    range whose size each call tells, as seq=1..512,open. Of a language model in a file of GGUF it says how
    many tokens the cache has room for, and how many a call reads at most: context=2048,rows=64.

    With --fleet the machines of a fleet measure (see: autotune worker), for the targets that --target lists,
    or for all that they offer.

    A size may vary: m=1..512 is one task, whose kernel is compiled once and is for all sizes. Where that is
    refused, and with m=1..512,fixed, each size has a kernel of its own: some sizes of the range share the
    budget. With m=1..512,open it is an error instead. In Python: autotune.dim(1, 512).

    --until ends it early, once the best kernel was timed again and takes no longer than that, or reaches that
    share of the machine's limit, which report and explain show. Of a suite it is the weighted sum of all
    tasks, of a model the time of a call's kernels, of sizes with a kernel each the time of the largest.

    --in-place y=x is for calls that give input x as output y too (out=x): schedules count that read each
    element before they overwrite it. Times are of arrays that are apart.

    \b
    Examples:
      autotune tune matmul --shape m=512,n=512,k=512
      autotune tune matmul --shape m=1..512,n=512,k=512 --budget 1m
      autotune tune matmul --shape m=1..512,fixed,n=512,k=512 --budget 2m
      autotune tune conv2d --shape h=56,w=56,ci=64,co=64,k=3,padding=1 --budget 2m --threads 1
      autotune tune matmul --shape m=512,n=512,k=512 --until 0.9 --budget 5m
      autotune tune softmax --shape m=4096,n=1024 --trials 200 --db tuning.db --json
      autotune tune --suite ops.toml:quick --budget 10m --threads 1
      autotune tune net.onnx --shape x=1x3x224x224 --threads 1 --budget 3m
      autotune tune --suite ops.toml --fleet tcp://host:8786 --target znver4,x86-64-v3 --budget 10m
      autotune tune x.gguf --shape context=2048,rows=64 --threads 1
      autotune tune net.onnx --fleet tcp://host:8786 --budget 10m
      autotune tune net.onnx --threads 1 --rewrites measured --exact --arena-bytes 32000000 --budget 3m
    """
    if o.on_model:
        o.check_model("frozen")
    else:
        o.refuse(["rewrites", "exact", "arena_bytes"], "goes with a model alone")
    if o.fleet is None and "," in o.target:
        raise typer.BadParameter("several targets are tuned for on a fleet; give --fleet too, or one target")
    if o.build_here and o.fleet is None:
        raise typer.BadParameter("--build-here goes with --fleet")
    o.check_program("frozen")

    from autotune.run.dynamic_workload import DynamicWorkload

    program = o.program() if o.suite is None and not o.on_model else None
    if o.frozen and isinstance(program, DynamicWorkload):
        raise typer.BadParameter("--frozen takes one size, not a range")
    if o.frozen:
        o.refuse(["until", "in_place"], "does not go with --frozen, which measures nothing")
    if program is None or isinstance(program, DynamicWorkload):
        o.refuse(["in_place"], "goes with an operator or an expression of one size")
    if o.fleet is not None and o.frozen:
        raise typer.BadParameter("--frozen measures nothing, so --fleet does not go with it")

    from autotune.tuning.options import TuneOptions
    from autotune.tuning.request import TuneRequest

    options = TuneOptions(
        trials=o.trials, budget_s=o.budget, search=o.search, model=o.cost_model, seed=o.seed,
        rtol=o.rtol, atol=o.atol, until=o.until, started=o.ctx.obj, in_place=o.in_place or {},
    )  # fmt: skip
    if o.fleet is None:
        asked = TuneRequest.of(options, o.target, o.threads, o.where)
    else:
        wanted = o.target if o.has("target") else None
        more = {"build_here": o.build_here, "say": say}
        asked = TuneRequest.of(options, wanted, o.threads, o.where, o.fleet, **more)
    run = _run(o, program, asked)
    with results.interruptible() as interrupts:
        alone = program is not None
        with asked.log(read_only=o.frozen) as log, shown(quiet=o.json, alone=alone) as tell:
            found = run(log, tell, interrupts)
        # when the lines of progress are gone, which would take some of what is printed along
        dynamic = program if isinstance(program, DynamicWorkload) else None
        if o.json:
            results.print_documents(found, dynamic)
        elif o.fleet is not None:
            results.show_targets(found, o.where, dynamic)
        else:
            (result,) = found.values()
            results.show(result, o.where, dynamic)
        ends = [r.stopped for r in found.values()]
        parts = [part for r in found.values() for part in r.parts or (r,)]
        raise typer.Exit(results.status(parts, "interrupted" if "interrupted" in ends else ends[0]))


def _run(o: Given, program: Any, asked: TuneRequest) -> Run[Any]:
    """What tunes that which is asked for. ``program``: of an operator; None of a suite or a model."""
    if o.on_model:
        from autotune.models.tuning import tuning_of_model

        given_s = o.budget if o.has("budget") else None
        return tuning_of_model(models.model_of(o), asked, given_s, o.rewrites, o.exact, o.arena_bytes)
    if program is None:
        from autotune.tuning.makers import Tasks

        return asked.tuning(Tasks(_tasks(o), asked.options))
    if o.frozen:
        from autotune.tuning.frozen import frozen

        goal = o.goal
        return lambda log, *_: {goal: frozen(program, goal, log, o.seed)}
    from autotune.tuning.dynamic_tuner import tuning_of

    return tuning_of(program, asked)


def _tasks(o: Given) -> list[SuiteTask]:
    """The tasks of ``FILE[:NAME]``. Raises `SuiteError`."""
    from autotune.results.tuned import SuiteTask
    from autotune.tuning import suites

    tasks = [SuiteTask(t.workload, t.weight, t.group) for t in suites.read(o.suite, o.constant_weights)]
    if not tasks:
        raise suites.SuiteError(f"{o.suite} has no tasks; give a NAME of the file that has some")
    return tasks
