"""``autotune best``: the best record of an operator, its schedule and its code."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from autotune.cli import options as opt
from autotune.cli.output import console, print_json, rate, seconds, task_text


def best(
    op: opt.OpArgument,
    shape: opt.ShapeOption = "",
    dtype: opt.DtypeOption = "float32",
    layout: opt.LayoutOption = None,
    constant_weights: opt.ConstantsOption = False,
    target: opt.TargetOption = "cpu",
    threads: opt.ThreadsOption = None,
    db: opt.DbOption = None,
    trace: Annotated[bool, typer.Option("--trace", help="Print the schedule: one primitive a line.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Print the generated code.")] = False,
    ir: Annotated[bool, typer.Option("--ir", help="Print the scheduled loop nest.")] = False,
    json: opt.JsonOption = False,
) -> None:
    """Show the best kernel that the log has for this machine. Exit status 1: there is none.

    \b
    Examples:
      autotune best matmul --shape m=512,n=512,k=512
      autotune best softmax --shape m=4096,n=1024 --threads 1 --trace --ir
    """
    workload = opt.workload_of(op, shape, dtype, layout, constant_weights)
    where = opt.db_of(db)

    from autotune.building import scheduled
    from autotune.loading import find
    from schedules.schedule import Schedule

    hit = find(workload, target=target, threads=threads, db=where)
    record = hit.record
    document: dict[str, Any] = {
        "task": {
            "op": workload.op,
            "params": dict(workload.params),
            "dtype": dtype,
            "target": opt.target_summary(hit.target),
        },
        "time_s": hit.time_s,
        "gflops": workload.flops / hit.time_s / 1e9,
        "record_id": record.uid,
        "created": record.created,
        "trace": opt.trace_value(record.trace),
    }
    if ir:
        scheduled(workload.dag, record.trace, hit.target)  # a log from anywhere: the checks of a build
        document["ir"] = str(Schedule.replay(workload.dag, record.trace, hit.target))
    if source:
        from autotune.kernels import source_of

        document["source"] = source_of(workload, hit.target, record.trace)
    if json:
        print_json(document)
        return
    out = console()
    out.print(task_text(workload, hit.target.threads), style="bold")
    speed = rate(workload.flops, opt.compulsory_bytes(workload), hit.time_s)
    out.print(f"  {seconds(hit.time_s)}, {speed} on {hit.target.arch}; record {record.uid}, {record.created}")
    if trace:
        print()
        for step in record.trace.steps:
            print(f"{step.primitive}({', '.join(f'{k}={v!r}' for k, v in step.args)})")
    for part in ("ir", "source"):
        if part in document:
            print()
            print(document[part].rstrip())
