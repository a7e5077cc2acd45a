"""``autotune explain``: why the best kernel of an operator, or a model, takes the time that it takes."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli import options as opt
from autotune.cli.models import imported
from autotune.cli.output import console, print_json

ProgramArgument = Annotated[
    str, typer.Argument(metavar="OP", help="An operator of the library (see: autotune ops), or NET.onnx.")
]


def explain(
    op: ProgramArgument,
    shape: opt.ShapeOption = "",
    dtype: opt.DtypeOption = "float32",
    layout: opt.LayoutOption = None,
    constant_weights: opt.ConstantsOption = False,
    target: opt.TargetOption = "cpu",
    threads: opt.TunedThreadsOption = None,
    db: opt.DbOption = None,
    json: opt.JsonOption = False,
) -> None:
    """Say why the best kernel of the log is fast. Exit status 1: nothing is tuned.

    Bytes between memory levels, registers, vectors, cores, what bounds it, and what fusing saves. Each number
    has its source: the expression, the estimate, the interpreter's counters, or the log. Nothing is measured.

    \b
    Examples:
      autotune explain matmul --shape m=512,n=512,k=512
      autotune explain softmax --shape m=4096,n=1024 --threads 1 --json
      autotune explain net.onnx --threads 1
    """
    from rich.text import Text

    where = opt.db_of(db)
    if opt.is_model(op):
        from autotune.report.explain.model import of_model

        found = of_model(imported(op, shape), opt.target_of(target, threads), where)
    else:
        from autotune.report.explain.asking import of_workload

        workload = opt.workload_of(op, shape, dtype, layout, constant_weights, where)
        found = of_workload(workload, target=target, threads=threads, db=where)
    if json:
        print_json(found.to_json())
        return
    out = console()
    if not out.is_terminal:
        print(found)
        return
    out.print(Text(found.title, style="bold"))
    for section in found.sections:
        out.print()
        out.print(Text(section.title, style="bold"))
        print("\n".join(section.lines(found.names, out.width)), file=out.file)
    print("\n".join(["", *found.legend]), file=out.file)
