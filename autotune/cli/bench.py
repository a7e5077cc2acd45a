"""``autotune bench``: the tuned kernel, or model, against other libraries and against the machine's limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import bench_language, models
from autotune.cli import options as opt
from autotune.cli.given import Given, one_of, takes
from autotune.cli.output import console, hang, print_json, say_ratio, table, task_text
from schedules.units import disturbed, number, peak_share, rate, seconds

if TYPE_CHECKING:
    from autotune.measure.compare.bench import Comparison
    from autotune.models.module import Module
    from autotune.run.dynamic_workload import Sizes
    from autotune.run.kernel import Kernel
    from schedules.model import Workload

# Name of the tuned kernel among the contenders.
TUNED = "autotune"
# Quotient of a ratio's quartiles above which the reader is warned.
UNSTEADY = 1.5
NO_RANGE = "--sizes goes with a range, such as --shape m=1..512"
# Pause after threaded peers (seconds): OpenBLAS spins for a tenth of a second.
SETTLE_S = 0.15


@takes(
    *(opt.SOME_OP, opt.SHAPE, opt.SUITE, *opt.WHAT[1:], *opt.OF_GGUF, opt.TARGET, opt.TUNED_THREADS),
    *(opt.REWRITES, opt.EXACT, opt.DEPTHS, opt.PREFILL, opt.SIZES, opt.AGAINST, opt.MUST_BEAT, opt.DURATION),
    *(opt.DB, opt.SEED, opt.JSON),
)
def bench(o: Given) -> None:
    """Compare tuned kernels with other libraries and with the machine's limit, in one run.

    All take turns, round by round, with the same number of threads; a ratio is the median of the
    rounds' ratios. Of a suite, each group counts once: the geometric mean of its shapes. Exit status
    1: nothing tuned is stored, or --must-beat was not met. A model's file is compared with onnxruntime.
    A kernel for a range of sizes is compared at some of them, each for --duration.

    Of a language model in a file of GGUF, a prompt (prefill) and tokens after others (decode) are timed,
    beside the bandwidth of memory. --against llama.cpp times llama.cpp too (pip install llama-cpp-python).

    \b
    Examples:
      autotune bench matmul --shape m=512,n=512,k=512
      autotune bench softmax --shape m=4096,n=1024 --against numpy,torch --threads 1 --json
      autotune bench matmul --shape m=1..512,n=512,k=512 --sizes 1,37,512 --against torch
      autotune bench --suite ops.toml:quick --against torch --threads 1
      autotune bench matmul --shape m=512,n=512,k=512 --against numpy,numpy.best,torch,torch.best
      autotune bench softmax --shape m=512,n=512 --against torch,tvm --duration 20s
      autotune bench net.onnx --shape x=1x3x224x224 --threads 1 --against onnxruntime
      autotune bench x.gguf --shape context=2048,rows=64 --threads 1 --against llama.cpp
    """
    against = o.against if o.has("against") or not o.on_model else "" if o.on_gguf else "onnxruntime"
    names = _peer_names(against)
    if o.must_beat is not None and o.must_beat not in names:
        raise typer.BadParameter(
            f"--must-beat {o.must_beat!r} is not one of the peers of --against {against!r}"
        )
    if o.on_gguf:
        o.check_model("sizes")
        met = bench_language.compare_model(o, names)
    elif o.on_model:
        o.check_model()
        met = _bench_model(o, names)
    else:
        o.refuse(["rewrites", "exact"], "goes with a model alone")
        o.check_program()
        from autotune.targets import usable_cpu_set

        cpus = usable_cpu_set()  # before importing torch, which may bind this process to one CPU
        if o.suite is not None:
            met = _bench_suite(o, lambda workload: _compare(o, workload, names, cpus))
        else:
            workload = o.workload()
            if workload.dag.open is not None:
                met = _bench_sizes(o, workload, names, cpus)
            elif o.has("sizes"):
                raise typer.BadParameter(NO_RANGE)
            else:
                met = _one(o, _compare(o, workload, names, cpus))
    if not met:
        raise typer.Exit(1)


@dataclass(frozen=True)
class ComparisonRows:
    """The rows of all implementations of ``what``, a "kernel" or a "model". ``ratio``: {peer: its time over
    the tuned one's}, the median of the rounds; ``quartiles``: those of the rounds' ratios. ``speed``: that of
    a time, in words. ``left_out``: what is said of peers that have no such operator."""

    what: str
    kind: str
    rows: list[dict[str, Any]]
    ratio: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    rounds: int
    speed: Callable[[float], str]
    left_out: tuple[str, ...] = ()

    def ratios(self) -> dict[str, Any]:
        """The ratios for JSON documents."""
        return {"ratio": self.ratio, "quartiles": self.quartiles}


def _one(o: Given, done: ComparisonRows) -> bool:
    """Print a comparison. Returns whether it beats what it must."""
    if o.json:
        print_json({"rows": done.rows, **done.ratios(), "rounds": done.rounds})
    else:
        _print(done)
    if o.must_beat is not None and o.must_beat not in done.ratio:
        raise typer.BadParameter(f"--must-beat {o.must_beat}: no peer has {o.op}, your own expression")
    return o.must_beat is None or done.ratio[o.must_beat] > 1


def _ratios(result: Comparison, peers: Sequence[str]) -> dict[str, Any]:
    """What a `ComparisonRows` has of the rounds."""
    return {
        "ratio": {name: result.ratio(TUNED, name) for name in peers},
        "quartiles": {name: result.quartiles(TUNED, name) for name in peers},
        "rounds": len(result.times_s[TUNED]),
    }


def _bench_sizes(o: Given, workload: Workload, names: Sequence[str], cpus: frozenset[int]) -> bool:
    """Compare a kernel for a range at some of its sizes. Returns whether it beats what it must at each."""
    from autotune.cli.sizes import chosen_sizes
    from autotune.run.asked import Asked
    from autotune.run.loading import load_workload
    from autotune.run.open_kernel import OpenKernel, sizes_of_open

    dynamic = sizes_of_open(workload)
    chosen = chosen_sizes(o.sizes, workload.dag, dynamic.dims)
    kernel = load_workload(workload, Asked.of(o.target, o.threads, o.where))
    assert isinstance(kernel, OpenKernel)

    def one(sizes: Sizes, named: dict[str, int]) -> ComparisonRows:
        return _compare(o, dynamic.at(sizes), names, cpus, kernel.at(**named))

    return _each_size(o, chosen, [d.name for d in dynamic.dims], one)


def _each_size(
    o: Given,
    chosen: Sequence[Sizes],
    dims: Sequence[str],
    one: Callable[[Sizes, dict[str, int]], ComparisonRows],
) -> bool:
    """Compare at each of the chosen sizes, and print what was found. ``dims``: names of what varies.
    ``one``: compares at a size. Returns whether each beats what it must."""
    from autotune.tuning.suites import mean_over_groups

    done: list[tuple[dict[str, int], ComparisonRows]] = []
    for sizes in chosen:
        named = dict(zip(dims, sizes, strict=True))
        done.append((named, one(sizes, named)))
        if not o.json:
            _print(done[-1][1])
    means = {
        p: mean_over_groups((n, c.ratio[p]) for n, (_, c) in enumerate(done))[0] for p in done[0][1].ratio
    }
    if o.json:
        each = [{"size": size, "rows": c.rows, **c.ratios(), "rounds": c.rounds} for size, c in done]
        print_json({"sizes": each, "ratio": means})
    else:
        for peer, mean in means.items():
            console().print(f"Over {len(done)} sizes: {mean:.2f} times as fast as {peer}.", style="bold")
    return o.must_beat is None or all(c.ratio.get(o.must_beat, 2.0) > 1 for _, c in done)


def _compare(
    o: Given, workload: Workload, names: Sequence[str], cpus: frozenset[int], kernel: Kernel | None = None
) -> ComparisonRows:
    """``kernel``: what is compared; None: it is looked for. ``cpus``: those that this process came with. With
    OMP_PROC_BIND importing torch binds us to one, and threads are created on the CPUs of who creates them:
    whatever makes some, our kernel, the limit and each peer, has all CPUs meanwhile. Of suites and a user's
    own expressions peers that have no such operator are left out; else they raise `PeerError`."""
    from autotune import backends
    from autotune.measure.compare.bench import Contender, agree, arrays_for, compare, copied
    from autotune.measure.compare.peers import PeerError, peer
    from autotune.results.text import speed
    from autotune.run.asked import Asked
    from autotune.run.loading import load_workload
    from autotune.run.workloads import is_custom
    from autotune.targets import on_cpus

    inputs, outputs = arrays_for(workload, o.seed)
    with on_cpus(cpus):
        kernel = kernel or load_workload(workload, Asked.of(o.target, o.threads, o.where))
        call = _caller(kernel, inputs, outputs)
        call()
        limit = backends.of(kernel.target).roofline(workload, kernel.target, memory_afresh=True)
    n = kernel.target.threads
    left_out = []
    peers = {name: peer(name) for name in names}
    with ExitStack() as stack:
        contenders = [Contender(TUNED, call)]
        for name, module in peers.items():
            copies = copied([workload.dag.tensors[n] for n in workload.dag.outputs], outputs)
            try:
                with on_cpus(cpus):
                    prepared = stack.enter_context(module.prepare(workload, inputs, copies, n))
                    prepared.call()
            except PeerError:
                if o.suite is None and not is_custom(workload):
                    raise
                left_out.append(f"{name} is left out: it has no {workload.op}.")
                continue
            agree(workload, name, prepared.result(), outputs)
            contenders.append(Contender(name, prepared.call, prepared.sample))
        settle = SETTLE_S if n > 1 else 0.0
        result = compare(contenders, limit, seconds=o.duration, settle_s=settle)
    by = result.instruction(workload, getattr(limit, "rates", {}))
    rows = [_row(workload, n, c.name, result.time_s(c.name), result.share(c.name), by) for c in contenders]
    return ComparisonRows(
        *(task_text(workload, n), "kernel", rows),
        **_ratios(result, [c.name for c in contenders[1:]]),
        speed=lambda time_s: speed(workload, time_s),
        left_out=tuple(left_out),
    )


def _row(
    workload: Workload, threads: int, name: str, time_s: float, share: float | None, by: str | None
) -> dict[str, Any]:
    """A row of an implementation. ``share``: of the machine's limit; ``by``: the instruction whose peak that
    is."""
    from autotune.run.workloads import dtype_of

    row = {
        "impl": name,
        "op": workload.op,
        "params": dict(workload.params),
        "dtype": dtype_of(workload),
        "threads": threads,
        "time_s": time_s,
        "gflops": workload.flops / time_s / 1e9,
        "share_of_peak": share,
        "peak_disturbed": disturbed(share),
    }
    return row if by is None else {**row, "peak_of": by}


def _bench_model(o: Given, names: Sequence[str]) -> bool:
    """Compare a tuned model with peers, one with open sizes at some of them. Returns whether it beats what it
    must. Raises `KernelNotFound` where it is not tuned."""
    from autotune.cli.sizes import chosen_sizes
    from autotune.models.onnxruntime_peer import PEERS
    from schedules.te.dims import dim

    for name in names:
        why = PEERS.get(name, "it has no model files")
        if why is not None:
            raise typer.BadParameter(
                f"--against {name} does not go with {o.op}: {why}; compare with onnxruntime"
            )
    model = models.model_of(o)
    if o.has("sizes") and model.graph.dag.open is None:
        raise typer.BadParameter(NO_RANGE.replace("m=", "seq="))
    module = models.compiled(o, model, target=o.target, rewrites=o.rewrites, exact=o.exact)
    if not module.sizes:
        return _one(o, _compare_model(o, names, module, {}))
    dims = [dim(*ends, name, open=True) for name, ends in module.sizes.items()]
    chosen = chosen_sizes(o.sizes, model.graph.dag, dims)
    return _each_size(o, chosen, [*module.sizes], lambda _, named: _compare_model(o, names, module, named))


def _compare_model(o: Given, names: Sequence[str], module: Module, sizes: dict[str, int]) -> ComparisonRows:
    """Compare a compiled model with peers, at these of its open sizes."""
    from autotune.measure.compare.bench import Contender, compare
    from autotune.models.onnxruntime_peer import agree, inputs_at, onnxruntime_call

    inputs = inputs_at(module, sizes, o.seed)
    found = module(*inputs)
    ours = [x for x in (found if isinstance(found, tuple) else (found,)) if x.size]
    contenders = [Contender(TUNED, lambda: module(*inputs))]
    for name in names:
        call = onnxruntime_call(o.op, module, inputs)
        agree(module, name, ours, call())
        contenders.append(Contender(name, call))
    done = compare(contenders, seconds=o.duration)
    outline, threads = module.program.outline, module.target.threads
    # of a smaller size none are counted
    flops = 0 if sizes else sum(w.flops * outline.count(i) for i, w in enumerate(outline.tasks))
    rows: list[dict[str, Any]] = [
        {
            "impl": c.name,
            "model": module.name,
            "threads": threads,
            "time_s": done.time_s(c.name),
            **({"gflops": flops / done.time_s(c.name) / 1e9} if flops else {}),
        }
        for c in contenders
    ]
    shown = "".join(f" {name}={n}" for name, n in sizes.items())
    return ComparisonRows(
        *(f"{module.name}{shown}, {number(threads, 'thread')}", "model", rows),
        **_ratios(done, names),
        speed=lambda time_s: rate(flops, 0, time_s) if flops else "",
    )


def _bench_suite(o: Given, one: Callable[[Workload], ComparisonRows]) -> bool:
    """Compare every tuned task of a suite. Returns whether each beats what it must."""
    from autotune.errors import KernelNotFound
    from autotune.run.describing import describe
    from autotune.tuning.suites import mean_over_groups, read

    done: list[dict[str, Any]] = []
    missing: list[str] = []
    out = console()
    for task in read(o.suite, o.constant_weights):
        try:
            c = one(task.workload)
        except KernelNotFound:
            missing.append(describe(task.workload))
            continue
        done.append({"suite": task.suite, "group": task.group, "rows": c.rows, **c.ratios()})
        if not o.json:
            _print(c)
    peers = dict.fromkeys(p for each in done for p in each["ratio"])
    means = {
        p: mean_over_groups(((e["suite"], e["group"]), e["ratio"][p]) for e in done if p in e["ratio"])
        for p in peers
    }
    if o.json:
        print_json({"tasks": done, "missing": missing, "ratio": {p: mean for p, (mean, _) in means.items()}})
    else:
        for peer, (mean, groups) in means.items():
            out.print(f"Over {groups} groups: {mean:.2f} times as fast as {peer}.", style="bold")
        for text in missing:
            out.print(f"not tuned: {text}", style="yellow")
    if not done:
        raise KernelNotFound(f"nothing of {o.suite} is tuned; tune it first: autotune tune --suite {o.suite}")
    return o.must_beat is None or all(each["ratio"].get(o.must_beat, 2.0) > 1 for each in done)


def _peer_names(against: str) -> list[str]:
    from autotune.measure.compare.peers import OF_FILES, PEERS

    names = list(dict.fromkeys(n.strip() for n in against.split(",") if n.strip()))
    for name in names:
        one_of("--against", name, (*PEERS, *OF_FILES))
    return names


def _caller(kernel: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    out = outputs[0] if len(outputs) == 1 else tuple(outputs)
    given = kernel.packed_inputs(inputs)
    return lambda: kernel(*given, out=out)


def _print(done: ComparisonRows) -> None:
    out = console()
    out.print(done.what, style="bold")
    shares = done.kind == "kernel"  # of a model none is known
    shown = [peak_share(r.get("share_of_peak"), r.get("peak_of")) for r in done.rows]
    rows = [
        (r["impl"], seconds(r["time_s"]), done.speed(r["time_s"]), share)
        for r, share in zip(done.rows, shown, strict=True)
    ]
    heads = ("", ">time", ">rate", ">of peak")
    table(out, heads if shares else heads[:-1], rows if shares else [row[:-1] for row in rows])
    if done.ratio:  # a median over rounds, not the quotient of the times above
        medians = "shares and ratios" if shares else "ratios"
        said = f"All took turns, {done.rounds} rounds"
        hang(out, "", f"{said}. Times are medians; {medians} are medians over the rounds.", "dim")
    for left in done.left_out:
        out.print(left, style="dim")
    for name, factor in done.ratio.items():
        say_ratio(out, done.kind, name, factor)
    unsteady = {n: (a, b) for n, (a, b) in done.quartiles.items() if b > UNSTEADY * a}
    if unsteady:
        worst = max(unsteady, key=lambda n: unsteady[n][1] / unsteady[n][0])
        first, third = unsteady[worst]
        said = f"Rounds differ: the middle half of the ratios to {worst} goes from {first:.2f} to {third:.2f}"
        hang(out, "", f"{said}. Let other work here end, or measure longer (--duration).", "yellow")
