"""``autotune bench``: the tuned kernel against other libraries and against the machine's limit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import options as opt
from autotune.cli.output import console, percent, print_json, rate, seconds, table, task_text

if TYPE_CHECKING:
    from schedules.model import Workload

TUNED = "autotune"
SETTLE_S = 0.05  # after threaded peers: see autotune.bench.compare


def bench(
    op: opt.OpArgument,
    shape: opt.ShapeOption = "",
    dtype: opt.DtypeOption = "float32",
    layout: opt.LayoutOption = None,
    target: opt.TargetOption = "cpu",
    threads: opt.ThreadsOption = None,
    against: Annotated[
        str, typer.Option("--against", metavar="PEER,...", help="Peers: numpy, torch.")
    ] = "numpy",
    must_beat: Annotated[
        str | None,
        typer.Option("--must-beat", metavar="PEER", help="Exit with status 1 unless faster than it."),
    ] = None,
    duration: Annotated[str, typer.Option("--duration", metavar="TIME", help="How long to measure.")] = "5s",
    db: opt.DbOption = None,
    seed: opt.SeedOption = 0,
    json: opt.JsonOption = False,
) -> None:
    """Compare the tuned kernel with other libraries and with the machine's limit, in one run.

    All take turns, round by round, with the same number of threads; a ratio is the median of the
    rounds' ratios. Exit status 1: nothing tuned is stored, or --must-beat was not met.

    \b
    Examples:
      autotune bench matmul --shape m=512,n=512,k=512
      autotune bench softmax --shape m=4096,n=1024 --against numpy,torch --threads 1 --json
    """
    time_s = opt.parse_budget(duration)
    names = _peer_names(against)
    if must_beat is not None and must_beat not in names:
        raise typer.BadParameter(
            f"--must-beat {must_beat!r} is not one of the peers of --against {against!r}"
        )
    workload = opt.workload_of(op, shape, dtype, layout)
    where = opt.db_of(db)

    from autotune.bench import Contender, agree, arrays_for, compare
    from autotune.limits import limit_of
    from autotune.loading import load_workload
    from autotune.peers import peer

    peers = {name: peer(name) for name in names}
    kernel = load_workload(workload, target=target, threads=threads, db=where)
    inputs, outputs = arrays_for(workload, seed)
    call = _caller(kernel, inputs, outputs)
    call()
    n = kernel.target.threads
    with ExitStack() as stack:
        contenders = [Contender(TUNED, call)]
        for name, module in peers.items():
            own = [a.copy() for a in outputs]
            prepared = stack.enter_context(module.prepare(workload, inputs, own, n))
            prepared.call()
            agree(workload, name, prepared.result(), outputs)
            contenders.append(Contender(name, prepared.call))
        settle = SETTLE_S if kernel.target.threads > 1 else 0.0
        result = compare(contenders, limit_of(workload, kernel.target), seconds=time_s, settle_s=settle)

    rows = [
        {
            "impl": c.name,
            "op": workload.op,
            "params": dict(workload.params),
            "dtype": dtype,
            "threads": n,
            "time_s": result.time_s(c.name),
            "gflops": workload.flops / result.time_s(c.name) / 1e9,
            "share_of_peak": result.share(c.name),
        }
        for c in contenders
    ]
    ratio = {name: result.ratio(TUNED, name) for name in names}
    if json:
        print_json({"rows": rows, "ratio": ratio, "rounds": len(result.times_s[TUNED])})
    else:
        _print(workload, rows, ratio)
    if must_beat is not None and ratio[must_beat] <= 1:
        raise typer.Exit(1)


def _peer_names(against: str) -> list[str]:
    from autotune.peers import PEERS

    names = list(dict.fromkeys(n.strip() for n in against.split(",") if n.strip()))
    for name in names:
        opt.one_of("--against", name, tuple(PEERS))
    return names


def _caller(kernel: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    out = outputs[0] if len(outputs) == 1 else tuple(outputs)
    return lambda: kernel(*inputs, out=out)


def _print(workload: Workload, rows: list[dict[str, Any]], ratio: dict[str, float]) -> None:
    flops, moved_bytes = workload.flops, opt.compulsory_bytes(workload)
    out = console()
    out.print(task_text(workload, rows[0]["threads"]), style="bold")
    table(
        out,
        ("", ">time", ">rate", ">of peak"),
        [
            (
                r["impl"],
                seconds(r["time_s"]),
                rate(flops, moved_bytes, r["time_s"]),
                percent(r["share_of_peak"]),
            )
            for r in rows
        ],
    )
    for name, factor in ratio.items():
        if factor > 1:
            out.print(f"The tuned kernel is {factor:.2f} times as fast as {name}.", style="green")
        else:
            out.print(f"{name} is {1 / factor:.2f} times as fast as the tuned kernel.", style="yellow")
