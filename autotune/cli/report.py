"""``autotune report``: one page of HTML about a tuning log, or about a model."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.output import console, print_json
from schedules.units import size

if TYPE_CHECKING:
    from autotune.errors import KernelNotFound
    from autotune.report import Written
    from schedules.model import Workload

# What --against takes.
AGAINST = ("onnxruntime",)


def report(
    ctx: typer.Context,
    op: Annotated[
        str | None,
        typer.Argument(metavar="OP", help="An operator, or NET.onnx; the whole log without it."),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="Where to write; replaced if there; - is stdout.",
        ),
    ] = Path("report.html"),
    shape: opt.ShapeOption = "",
    dtype: opt.DtypeOption = "float32",
    layout: opt.LayoutOption = None,
    constant_weights: opt.ConstantsOption = False,
    target: opt.TargetOption = "cpu",
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads",
            metavar="N",
            min=1,
            help="Of tasks with so many. [default: all; of a model: CPUs here]",
        ),
    ] = None,
    db: opt.DbOption = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Of NET.onnx: run it here, and show the time of each step inside it."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(
            "--against", metavar="PEER", help="Of NET.onnx: onnxruntime's profile too; runs both here."
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Write one page of HTML about a tuning log: its tasks, how each search went, rooflines, predictions
    against measurements, where the time went, and the schedules that won. Of a model it also shows the graph
    before and after each rewrite, and the time of its kernels.

    The page has all that it needs in it, so that it can be mailed, and opens without a network. Nothing is
    measured but with --profile or --against. Exit status 1: the log has no trials of OP.

    \b
    Examples:
      autotune report -o report.html
      autotune report matmul --shape m=512,n=512,k=512 -o matmul.html --open
      autotune report net.onnx --threads 1 --against onnxruntime -o net.html
    """
    where = opt.db_of(db)
    on_stdout = opt.output_place(output, json) is sys.stdout
    if on_stdout and open_:
        raise typer.BadParameter("--open needs a file; give one to -o")
    if against is not None:
        opt.one_of("--against", against, AGAINST)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "report.html" if on_stdout else output
        if opt.is_model(op):
            assert op is not None
            models.check_options(ctx)
            written = _of_model(op, shape, place, where, target, threads, profile, against)
        else:
            if profile or against:
                raise typer.BadParameter(
                    "--profile and --against go with a model's file: autotune report NET.onnx"
                )
            workload = None
            if op is not None:
                workload = opt.workload_of(op, shape, dtype, layout, constant_weights, where)
            written = _of_log(workload, place, where, threads, ctx)
        if on_stdout:
            sys.stdout.buffer.write(place.read_bytes())
    if json:
        print_json(
            {
                "path": str(written.path),
                "tasks": written.tasks,
                "trials": written.trials,
                "bytes": written.bytes,
            }
        )
    else:
        tasks = f"{written.tasks:,} task{'s' * (written.tasks != 1)}"
        named = "stdout" if on_stdout else str(written.path)
        console(stderr=on_stdout).print(
            f"{named}: {tasks}, {written.trials:,} trials, {size(written.bytes)}; open it in a browser"
        )
    if open_:
        import webbrowser

        webbrowser.open(written.path.resolve().as_uri())


def _of_log(
    workload: Workload | None, output: Path, where: str, threads: int | None, ctx: typer.Context
) -> Written:
    """The page of a workload, or of the whole log."""
    from autotune.report import of_log

    if workload is None:
        for name in ("shape", "dtype", "layout", "constant_weights", "target", "threads"):
            if opt.given(ctx, name):
                option = "--" + name.replace("_", "-")
                raise typer.BadParameter(f"{option} needs an operator: autotune report OP --shape …")
        return of_log(output, where)
    named = opt.given(ctx, "target")
    found = _targets(where, workload.digest, named, threads, ctx)
    if not found:
        raise _nothing(workload, where, named, threads, ctx)
    return of_log(output, where, [workload.digest], found)


def _nothing(
    workload: Workload, where: str, named: bool, threads: int | None, ctx: typer.Context
) -> KernelNotFound:
    """The error for an operator of which there is nothing to show."""
    from autotune.errors import KernelNotFound
    from autotune.run.describing import describe, tune_command
    from kernels_db.place import locate

    place = str(locate(where))
    what = describe(workload, threads) + (f" for {ctx.params['target']}" if named else "")
    remedy = (
        f"tune it first: {tune_command(workload, place, threads)}; or see what there is: autotune log list"
    )
    return KernelNotFound(f"no trials of {what} in {place}; {remedy}")


def _targets(where: str, digest: str, named: bool, threads: int | None, ctx: typer.Context) -> list[str]:
    """Digests of the log's targets that the options name; all without them. Not the detected host alone: a
    log may be of another machine."""
    from kernels_db.store import Log

    with Log(where, read_only=True) as log:
        known = [log.target(t) for _, t in log.tasks(workload=digest)]
    if named:
        wanted = opt.target_of(ctx.params["target"], threads)
        known = [t for t in known if t.arch == wanted.arch and t.kind == wanted.kind]
    return [t.digest for t in known if threads is None or t.threads == threads]


def _of_model(
    path: str,
    shape: str,
    output: Path,
    where: str,
    target: str,
    threads: int | None,
    profile: bool,
    against: str | None,
) -> Written:
    from autotune.models.compiling import model_target
    from autotune.report import of_model

    model = models.imported(path, shape)
    goal = model_target(target, threads)
    return of_model(
        output, model, where, goal, profiled=profile or against is not None, onnx=path if against else None
    )
