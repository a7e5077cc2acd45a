"""``autotune best``: the best record of an operator, its schedule and its code."""

from __future__ import annotations

import warnings
from typing import Any

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json, target_summary, task_text, trace_value
from autotune.results.text import speed
from schedules.units import seconds


@takes(opt.OP, *opt.WHAT, *opt.TUNED, opt.NEAREST, opt.TRACE, opt.SOURCE, opt.IR, opt.JSON)
def best(o: Given) -> None:
    """Show the best kernel that the log has for this machine. Exit status 1: there is none.

    A pinned record comes first. One from elsewhere that autotune log verify has not checked here is marked.
    With --nearest the record of the most similar machine is taken if it beats the default schedule here.
    --trace, --ir and --source print on stdout what they name and nothing else.

    \b
    Examples:
      autotune best matmul --shape m=512,n=512,k=512 --source > matmul.ll
      autotune best matmul --shape m=512,n=512,k=512
      autotune best softmax --shape m=4096,n=1024 --threads 1 --trace --ir
    """
    workload = o.workload()

    from autotune.backends.building.generator_version import this_machine
    from autotune.run.asked import Asked
    from autotune.run.loading import find
    from autotune.run.workloads import dtype_of
    from schedules.schedule import Schedule
    from schedules.trace_names import to_named

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        hit = find(workload, Asked.of(o.target, o.threads, o.where, nearest=o.nearest))
    notes = [str(w.message) for w in said]
    record = hit.record
    trace_here = to_named(workload, record.trace)
    origin = None if hit.origin is None else hit.origin.document(this_machine())
    document: dict[str, Any] = {
        "task": {
            "op": workload.op,
            "params": dict(workload.params),
            "dtype": dtype_of(workload),
            "target": target_summary(hit.target),
        },
        "time_s": hit.time_s,
        "gflops": workload.flops / hit.time_s / 1e9,
        "record_id": record.uid,
        "created": record.created,
        "pinned": hit.pinned,
        "origin": origin,
        "notes": notes,
        "trace": trace_value(trace_here),
    }
    if o.ir:
        document["ir"] = str(Schedule.replay(workload.dag, trace_here, hit.target))
    if o.source:
        from autotune.run.kernels import source_of

        document["source"] = source_of(workload, hit.target, trace_here)
    if o.json:
        print_json(document)
        return
    # What is asked for stands on stdout alone, so that it may go to a file.
    out = console(stderr=o.trace or o.ir or o.source)
    out.print(task_text(workload, hit.target.threads), style="bold")
    fast = f"{seconds(hit.time_s)}, {speed(workload, hit.time_s)} on {hit.target.arch}"
    out.print(f"  {fast}; record {record.uid}, {record.created}")
    if hit.pinned:
        out.print("  pinned: autotune log pin --remove takes what is best now")
    if origin is not None and origin["elsewhere"]:
        where_from = f"from elsewhere ({origin['cpu'] or 'a machine without a name'})"
        out.print(f"  {where_from}, not verified here: autotune log verify")
    for note in notes:
        out.print(f"  {note}")
    parts = []
    if o.trace:
        lines = (f"{s.primitive}({', '.join(f'{k}={v!r}' for k, v in s.args)})" for s in trace_here.steps)
        parts.append("\n".join(lines))
    parts += [document[part].rstrip() for part in ("ir", "source") if part in document]
    if parts:
        print("\n\n".join(parts))
