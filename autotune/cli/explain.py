"""``autotune explain``: why the best kernel of an operator, or a model, takes the time that it takes."""

from __future__ import annotations

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.models import model_of
from autotune.cli.output import console, print_json


@takes(opt.OP_OR_MODEL, *opt.WHAT, *opt.OF_GGUF, *opt.TUNED, opt.JSON)
def explain(o: Given) -> None:
    """Say why the best kernel of the log is fast. Exit status 1: nothing is tuned.

    Bytes between memory levels, registers, vectors, cores, what bounds it, and what fusing saves. Each number
    has its source: the expression, the estimate, the interpreter's counters, or the log. Nothing is measured.

    \b
    Examples:
      autotune explain matmul --shape m=512,n=512,k=512
      autotune explain softmax --shape m=4096,n=1024 --threads 1 --json
      autotune explain net.onnx --threads 1
      autotune explain x.gguf --shape context=2048,rows=64 --threads 1
    """
    from rich.text import Text

    if o.on_model:
        from autotune.report.explain.model import of_model

        found = of_model(model_of(o), o.goal, o.where)
    else:
        from autotune.report.explain.asking import of_workload

        found = of_workload(o.workload(), target=o.target, threads=o.threads, db=o.where)
    if o.json:
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
