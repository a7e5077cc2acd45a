"""``autotune bench``: the tuned kernel against other libraries and against the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.output import console, hang, print_json, table, task_text
from schedules.units import disturbed, peak_share, rate, seconds

if TYPE_CHECKING:
    from schedules.model import Workload

# Name of the tuned kernel among the contenders.
TUNED = "autotune"
# Quotient of a ratio's quartiles above which the reader is warned.
UNSTEADY = 1.5
# Pause after threaded peers (seconds): OpenBLAS spins for a tenth of a second.
SETTLE_S = 0.15


def bench(
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
    threads: opt.TunedThreadsOption = None,
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="PEER,...",
            help="Peers: numpy, torch, torch.compile, onnxruntime; numpy.best and torch.best at the settings "
            "that suit this CPU; tvm, tuned by 64 trials of MetaSchedule first, which takes minutes.",
        ),
    ] = "numpy",
    must_beat: Annotated[
        str | None,
        typer.Option("--must-beat", metavar="PEER", help="Exit with status 1 unless faster than it."),
    ] = None,
    duration: Annotated[
        str, typer.Option("--duration", metavar="TIME", help="How long to measure each operator.")
    ] = "5s",
    db: opt.DbOption = None,
    seed: opt.SeedOption = 0,
    json: opt.JsonOption = False,
) -> None:
    """Compare tuned kernels with other libraries and with the machine's limit, in one run.

    All take turns, round by round, with the same number of threads; a ratio is the median of the
    rounds' ratios. Of a suite, each group counts once: the geometric mean of its shapes. Exit status
    1: nothing tuned is stored, or --must-beat was not met. A model's file is compared with onnxruntime.

    \b
    Examples:
      autotune bench matmul --shape m=512,n=512,k=512
      autotune bench softmax --shape m=4096,n=1024 --against numpy,torch --threads 1 --json
      autotune bench --suite ops.toml:quick --against torch --threads 1
      autotune bench matmul --shape m=512,n=512,k=512 --against numpy,numpy.best,torch,torch.best
      autotune bench softmax --shape m=512,n=512 --against torch,tvm --duration 20s
      autotune bench net.onnx --shape x=1x3x224x224 --threads 1 --against onnxruntime
    """
    time_s = opt.parse_budget(duration, "--duration")
    names = _peer_names(_default(ctx, op, against))
    if must_beat is not None and must_beat not in names:
        raise typer.BadParameter(
            f"--must-beat {must_beat!r} is not one of the peers of --against {against!r}"
        )
    if op is not None and opt.is_model(op):
        models.check_options(ctx)
        where = opt.db_of(db)
        ratio = models.bench_model(op, shape, target, threads, where, names, time_s, seed, json)
        if must_beat is not None and ratio[must_beat] <= 1:
            raise typer.Exit(1)
        return
    opt.operator_or_suite(ctx, op, suite)
    where = opt.db_of(db)

    from autotune.run.workloads import is_custom
    from autotune.targets import usable_cpu_set

    cpus = usable_cpu_set()  # before importing torch, which may bind this process to one CPU: see `_compare`

    def one(workload: Workload) -> ComparisonRows:
        skip = suite is not None or is_custom(workload)  # no library has a user's own expression
        return _compare(workload, target, threads, where, names, time_s, seed, cpus, skip=skip)

    if suite is not None:
        met = _bench_suite(suite, constant_weights, one, json, must_beat)
    else:
        assert op is not None
        done = one(opt.workload_of(op, shape, dtype, layout, constant_weights, where))
        if json:
            print_json({"rows": done.rows, **done.ratios(), "rounds": done.rounds})
        else:
            _print(done)
        if must_beat is not None and must_beat not in done.ratio:
            raise typer.BadParameter(f"--must-beat {must_beat}: no peer has {op}, your own expression")
        met = must_beat is None or done.ratio[must_beat] > 1
    if not met:
        raise typer.Exit(1)


@dataclass(frozen=True)
class ComparisonRows:
    """The rows of all implementations. ``ratio``: {peer: its time over the tuned kernel's}, the median of the
    rounds; ``quartiles``: those of the rounds' ratios. ``left_out``: peers that have no such operator."""

    workload: Workload
    rows: list[dict[str, Any]]
    ratio: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    rounds: int
    left_out: tuple[str, ...] = ()

    def ratios(self) -> dict[str, Any]:
        """The ratios for JSON documents."""
        return {"ratio": self.ratio, "quartiles": self.quartiles}


def _compare(
    workload: Workload, target: str, threads: int | None, where: str, names: Sequence[str], time_s: float,
    seed: int, cpus: frozenset[int], *, skip: bool = False,
) -> ComparisonRows:  # fmt: skip
    """``cpus``: those that this process came with. With OMP_PROC_BIND importing torch binds us to one, and
    threads are created on the CPUs of who creates them: whatever makes some, our kernel, the limit and each
    peer, has all CPUs meanwhile. ``skip``: leave out peers that have no such operator, rather than raise
    `PeerError`."""
    from autotune import backends
    from autotune.measure.compare.bench import Contender, agree, arrays_for, compare
    from autotune.measure.compare.peers import PeerError, peer
    from autotune.run.loading import load_workload
    from autotune.run.workloads import dtype_of
    from autotune.targets import on_cpus

    inputs, outputs = arrays_for(workload, seed)
    with on_cpus(cpus):
        kernel = load_workload(workload, target=target, threads=threads, db=where)
        call = _caller(kernel, inputs, outputs)
        call()
        limit = backends.of(kernel.target).roofline(workload, kernel.target, memory_afresh=True)
    n = kernel.target.threads
    left_out = []
    peers = {name: peer(name) for name in names}
    with ExitStack() as stack:
        contenders = [Contender(TUNED, call)]
        for name, module in peers.items():
            own = [a.copy() for a in outputs]
            try:
                with on_cpus(cpus):
                    prepared = stack.enter_context(module.prepare(workload, inputs, own, n))
                    prepared.call()
            except PeerError:
                if not skip:
                    raise
                left_out.append(name)
                continue
            agree(workload, name, prepared.result(), outputs)
            contenders.append(Contender(name, prepared.call, prepared.sample))
        settle = SETTLE_S if n > 1 else 0.0
        result = compare(contenders, limit, seconds=time_s, settle_s=settle)
    rows = [
        {
            "impl": c.name,
            "op": workload.op,
            "params": dict(workload.params),
            "dtype": dtype_of(workload),
            "threads": n,
            "time_s": result.time_s(c.name),
            "gflops": workload.flops / result.time_s(c.name) / 1e9,
            "share_of_peak": (share := result.share(c.name)),
            "peak_disturbed": disturbed(share),
        }
        for c in contenders
    ]
    ratio = {c.name: result.ratio(TUNED, c.name) for c in contenders[1:]}
    quartiles = {c.name: result.quartiles(TUNED, c.name) for c in contenders[1:]}
    return ComparisonRows(workload, rows, ratio, quartiles, len(result.times_s[TUNED]), tuple(left_out))


def _bench_suite(
    suite: str,
    constant_weights: bool,
    one: Callable[[Workload], ComparisonRows],
    json: bool,
    must_beat: str | None,
) -> bool:
    """Compare every tuned task of a suite. Returns whether each beats ``must_beat``."""
    from autotune.errors import KernelNotFound
    from autotune.run.describing import describe
    from autotune.tuning.suites import mean_over_groups, read

    done: list[dict[str, Any]] = []
    missing: list[str] = []
    out = console()
    for task in read(suite, constant_weights):
        try:
            c = one(task.workload)
        except KernelNotFound:
            missing.append(describe(task.workload))
            continue
        done.append({"suite": task.suite, "group": task.group, "rows": c.rows, **c.ratios()})
        if not json:
            _print(c)
    peers = dict.fromkeys(p for each in done for p in each["ratio"])
    means = {
        p: mean_over_groups(((e["suite"], e["group"]), e["ratio"][p]) for e in done if p in e["ratio"])
        for p in peers
    }
    if json:
        print_json({"tasks": done, "missing": missing, "ratio": {p: mean for p, (mean, _) in means.items()}})
    else:
        for peer, (mean, groups) in means.items():
            out.print(f"Over {groups} groups: {mean:.2f} times as fast as {peer}.", style="bold")
        for text in missing:
            out.print(f"not tuned: {text}", style="yellow")
    if not done:
        raise KernelNotFound(f"nothing of {suite} is tuned; tune it first: autotune tune --suite {suite}")
    return must_beat is None or all(each["ratio"].get(must_beat, 2.0) > 1 for each in done)


def _default(ctx: typer.Context, op: str | None, against: str) -> str:
    """The peers that are meant: of a model's file onnxruntime, where none are given."""
    return "onnxruntime" if opt.is_model(op) and not opt.given(ctx, "against") else against


def _peer_names(against: str) -> list[str]:
    from autotune.measure.compare.peers import PEERS

    names = list(dict.fromkeys(n.strip() for n in against.split(",") if n.strip()))
    for name in names:
        opt.one_of("--against", name, tuple(PEERS))
    return names


def _caller(kernel: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    out = outputs[0] if len(outputs) == 1 else tuple(outputs)
    given = kernel.packed_inputs(inputs)
    return lambda: kernel(*given, out=out)


def _print(done: ComparisonRows) -> None:
    flops, moved_bytes = done.workload.flops, opt.compulsory_bytes(done.workload)
    out = console()
    out.print(task_text(done.workload, done.rows[0]["threads"]), style="bold")
    table(
        out,
        ("", ">time", ">rate", ">of peak"),
        [
            (
                r["impl"],
                seconds(r["time_s"]),
                rate(flops, moved_bytes, r["time_s"]),
                peak_share(r["share_of_peak"]),
            )
            for r in done.rows
        ],
    )
    if done.ratio:  # a median over rounds, not the quotient of the times above
        said = f"All took turns, {done.rounds} rounds"
        hang(out, "", f"{said}. Times are medians; shares and ratios are medians over the rounds.", "dim")
    for name in done.left_out:
        out.print(f"{name} is left out: it has no {done.workload.op}.", style="dim")
    for name, factor in done.ratio.items():
        if factor > 1:
            out.print(f"The tuned kernel is {factor:.2f} times as fast as {name}.", style="green")
        else:
            out.print(f"{name} is {1 / factor:.2f} times as fast as the tuned kernel.", style="yellow")
    unsteady = {n: (a, b) for n, (a, b) in done.quartiles.items() if b > UNSTEADY * a}
    if unsteady:
        worst = max(unsteady, key=lambda n: unsteady[n][1] / unsteady[n][0])
        first, third = unsteady[worst]
        said = f"Rounds differ: the middle half of the ratios to {worst} goes from {first:.2f} to {third:.2f}"
        hang(out, "", f"{said}. Let other work here end, or measure longer (--duration).", "yellow")
