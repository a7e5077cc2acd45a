"""``autotune report``: one page of HTML about a tuning log, or about a model."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, output_place, print_json
from kernels_db.temporary import temporary_folder
from schedules.units import size

if TYPE_CHECKING:
    from autotune.errors import KernelNotFound
    from autotune.report import Written
    from schedules.model import Workload


@takes(
    *(opt.REPORTED_OP, opt.OUTPUT, *opt.WHAT, *opt.OF_GGUF, opt.TARGET, opt.REPORTED_THREADS, opt.DB),
    *(opt.PROFILE, opt.PROFILED_AGAINST, opt.OPEN, opt.JSON),
)
def report(o: Given) -> None:
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
    on_stdout = output_place(o.output, o.json) is sys.stdout
    if on_stdout and o.open:
        raise typer.BadParameter("--open needs a file; give one to -o")
    with temporary_folder() if on_stdout else nullcontext() as folder:
        place = o.output if folder is None else folder / "report.html"
        written = _of_model(o, place) if o.on_model else _of_log(o, place)
        if on_stdout:
            sys.stdout.buffer.write(place.read_bytes())
    if o.json:
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
    if o.open:
        import webbrowser

        webbrowser.open(written.path.resolve().as_uri())


def _of_log(o: Given, output: Path) -> Written:
    """The page of an operator, or of the whole log."""
    from autotune.report import of_log

    if o.profile or o.against:
        raise typer.BadParameter("--profile and --against go with a model's file: autotune report NET.onnx")
    if o.op is None:
        names = ("shape", "dtype", "layout", "constant_weights", "strides", "target", "threads")
        o.refuse(names, "needs an operator: autotune report OP --shape …")
        return of_log(output, o.where)
    workload = o.workload()
    found = _targets(o, workload.digest)
    if not found:
        raise _nothing(o, workload)
    return of_log(output, o.where, [workload.digest], found)


def _nothing(o: Given, workload: Workload) -> KernelNotFound:
    """The error for an operator of which there is nothing to show."""
    from autotune.errors import KernelNotFound
    from autotune.run.describing import describe, tune_command
    from kernels_db.place import locate

    place = str(locate(o.where))
    what = describe(workload, o.threads) + (f" for {o.target}" if o.has("target") else "")
    tune = tune_command(workload, place, o.threads, o.target if o.has("target") else "")
    remedy = f"tune it first: {tune}; or see what there is: autotune log list"
    return KernelNotFound(f"no trials of {what} in {place}; {remedy}")


def _targets(o: Given, digest: str) -> list[str]:
    """Digests of the log's targets that the options name; all without them. Not the detected host alone: a
    log may be of another machine."""
    from kernels_db.store import Log

    with Log(o.where, read_only=True) as log:
        known = [log.target(t) for _, t in log.tasks(workload=digest)]
    if o.has("target"):
        wanted = o.goal
        known = [t for t in known if t.arch == wanted.arch and t.kind == wanted.kind]
    return [t.digest for t in known if o.threads is None or t.threads == o.threads]


def _of_model(o: Given, output: Path) -> Written:
    from autotune.models.compiling import model_target
    from autotune.report import of_model

    o.check_model()
    if o.on_gguf:
        o.refuse(("against",), "does not run files of GGUF; see: autotune bench")
    model = models.model_of(o)
    goal = model_target(o.target, o.threads)
    profiled = o.profile or o.against is not None
    return of_model(output, model, o.where, goal, profiled=profiled, onnx=o.op if o.against else None)
