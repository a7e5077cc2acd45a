"""Commands on a model's file, which stands where an operator's name does: ``tune``, ``ops`` and ``bench``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli import options as opt
from autotune.cli import results
from autotune.cli.output import console, print_json, table
from autotune.results import text
from autotune.results.following import suite_shown
from autotune.results.text import ending
from schedules.units import counts, rate, seconds, size

if TYPE_CHECKING:
    from autotune.models.model import Model
    from autotune.models.tuning import ModelTuneResult
    from autotune.tuning.options import TuneOptions
    from schedules.model import Target

_SHAPE = re.compile(r"([^=,]+)=(\d+(?:x\d+)*)")
# Options of commands that say what an operator computes, which a model's file says.
OF_OPERATORS = ("dtype", "layout", "constant_weights", "suite")


def imported(path: str, shape: str, islands: bool = False) -> Model:
    """The model of a file. ``shape``: as ``--shape`` has it. Raises `ModelError`."""
    from autotune.models.onnx_import import import_onnx

    return import_onnx(path, shapes_of(shape), islands)


def shapes_of(text: str) -> dict[str, int | tuple[int, ...]]:
    """``x=1x3x224x224,batch=8`` as shapes of inputs and extents of dimensions. Raises
    `typer.BadParameter`."""
    shapes: dict[str, int | tuple[int, ...]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        m = _SHAPE.fullmatch(item)
        if m is None:
            raise typer.BadParameter(
                f"--shape {item!r}: write INPUT=1x3x224x224, or DIMENSION=8, with commas between them"
            )
        name, extents = m[1].strip(), tuple(map(int, m[2].split("x")))
        if name in shapes:
            raise typer.BadParameter(f"--shape: {name} is given twice")
        shapes[name] = extents[0] if len(extents) == 1 else extents
    return shapes


def check_options(ctx: typer.Context, *others: str) -> None:
    """Raises `typer.BadParameter` for options that do not go with a model's file."""
    for name in (*OF_OPERATORS, *others):
        if opt.given(ctx, name):
            option = "--" + name.replace("_", "-")
            raise typer.BadParameter(f"{option} does not go with a model; its file has what is computed")


# -- tune ------------------------------------------------------------------------------------


def tune_model(
    path: str, shape: str, goal: Target, where: str, options: TuneOptions, given_s: float | None, json: bool
) -> None:
    """Tune what a model runs. ``given_s``: the budget, None for one by the number of tasks. Exit status 1: a
    task has no kernel afterwards."""
    from autotune.models.tuning import tune_model as run

    model = imported(path, shape)
    with results.interruptible() as interrupts:
        with suite_shown(quiet=json) as report:
            chosen = choices(options, given_s, where)
            result = run(model, target=goal, progress=report, interrupts=interrupts, **chosen)
        if json:
            print_json(document(result, goal))
        else:
            show(result, where)
        raise typer.Exit(results.status((t.result for t in result.tasks), result.stopped))


def choices(options: TuneOptions, given_s: float | None, where: str) -> dict[str, Any]:
    """The options of a command as those of `autotune.tune_model`. ``given_s``: as of `tune_model`."""
    return {
        "budget_s": given_s,
        "trials": options.trials,
        "search": options.search,
        "cost_model": options.model,
        "db": where,
        "seed": options.seed,
        "rtol": options.rtol,
        "atol": options.atol,
    }


def document(result: ModelTuneResult, target: Target) -> dict[str, Any]:
    """The document that ``tune NET.onnx --json`` prints: that of a suite, with the model's name."""
    from autotune.cli.suite import lateness, task_document

    return {
        "model": result.name,
        "target": opt.target_summary(target),
        "tasks": [task_document(t) for t in result.tasks],
        "latency_s": result.weighted_s,
        **lateness(result),
        "trials": {"measured": result.measured, "resumed": sum(t.result.resumed for t in result.tasks)},
        "skipped": result.skipped,
        "elapsed_s": result.elapsed_s,
        "budget_s": result.budget_s,
        "seed": result.seed,
        "stopped": result.stopped,
    }


def show(result: ModelTuneResult, where: str) -> None:
    """Print a table of the tasks, and what a call takes."""
    from kernels_db.place import locate  # its text hides a URL's password

    out = console()
    out.print(result.name, style="bold")
    headers = (">calls", ">best", ">rate", ">of peak", ">trials", ">seconds", "nodes", "remarks")
    rows = []
    for t in result.tasks:
        best, speed, share, trials, failed = results.cells(t.result)
        row = (f"{t.task.weight:g}", best, speed, share, trials, f"{t.seconds:.1f}", t.task.group)
        rows.append((*row, t.error or failed))
    table(out, headers, rows)
    out.print(f"  {text.kernels(result)}; {result.measured} trials")
    if missing := text.no_time(result):
        out.print(f"  {missing}")
    if result.skipped:
        out.print(f"  {result.skipped} tasks had their share before: more with a larger --budget or --trials")
    if result.weighted_s is not None:
        out.print(f"  kernels  {seconds(result.weighted_s)} a call, each alone")
    out.print(f"  time     {result.elapsed_s:.1f} s ({ending(result.stopped)})")
    out.print(f"  log      {locate(where)}")


# -- ops -------------------------------------------------------------------------------------


def show_model(path: str, shape: str, json: bool) -> None:
    """Print what a model runs: its inputs and outputs, its tasks, and the operators without an expression."""
    from autotune.cli.output import task_text
    from autotune.models.preparation import prepared
    from autotune.models.tasks import tasks_of
    from schedules.graph.graph import Island

    model = imported(path, shape, islands=True)
    ready = prepared(model)
    tasks = tasks_of(ready.parts)
    islands = [p for p in ready.parts if isinstance(p, Island)]
    unsupported: dict[str, list[str]] = {}
    for island in islands:
        unsupported.setdefault(island.op, []).append(island.name)
    groups = len(ready.parts) - len(islands)
    weights = sum(v.nbytes for v in ready.graph.values.values())
    if json:
        print_json(
            {
                "model": model.name,
                "inputs": [_port(p) for p in model.inputs],
                "outputs": [_port(p) for p in model.outputs],
                "groups": groups,
                "weights_bytes": weights,
                "tasks": [
                    {
                        "digest": t.workload.digest,
                        "count": t.count,
                        "nodes": list(t.nodes),
                        "flops": t.workload.flops,
                        "what": task_text(t.workload),
                    }
                    for t in tasks
                ],
                "unsupported": unsupported,
            }
        )
        return
    out = console()
    out.print(model.name, style="bold")
    for what, ports in (("input", model.inputs), ("output", model.outputs)):
        for p in ports:
            out.print(f"  {what:8} {p}")
    rows = [(str(t.count), f"{t.workload.flops / 1e6:.4g}", task_text(t.workload), t.shown) for t in tasks]
    table(out, (">calls", ">MFLOP", "task", "nodes"), rows)
    out.print(f"  {groups} groups of {len(tasks)} tasks; {size(weights)} of weights")
    if unsupported:
        out.print(
            f"  without an expression: {counts({op: len(names) for op, names in unsupported.items()})}; "
            "import_onnx(..., islands=True) runs them in Python, slowly",
            style="yellow",
        )
        for op, names in unsupported.items():
            out.print(f"    {op}: {', '.join(names)}")


def _port(p: Any) -> dict[str, Any]:
    return {"name": p.name, "dtype": p.dtype, "shape": list(p.shape)}


# -- bench -----------------------------------------------------------------------------------


def bench_model(
    path: str,
    shape: str,
    target: str,
    threads: int | None,
    where: str,
    names: Sequence[str],
    time_s: float,
    seed: int,
    json: bool,
) -> dict[str, float]:
    """Compare a tuned model with peers and print it. Returns {peer: its time over ours}. Raises
    `KernelNotFound` where it is not tuned."""
    from autotune.errors import KernelNotFound
    from autotune.measure.compare.bench import Contender, compare
    from autotune.models.compiling import compile_model
    from autotune.models.onnxruntime_peer import PEERS, agree, inputs_for, onnxruntime_call

    for name in names:
        why = PEERS.get(name, "it has no model files")
        if why is not None:
            raise typer.BadParameter(
                f"--against {name} does not go with {path}: {why}; compare with onnxruntime"
            )
    model = imported(path, shape)
    try:
        module = compile_model(model, target=target, threads=threads, db=where)
    except KernelNotFound as err:
        command = f"autotune tune {path}" + (f" --shape {shape}" if shape else "")
        command += f" --threads {threads}" if threads else ""
        raise KernelNotFound(f"{err.message}\ntune them: {command}") from None
    inputs = inputs_for(module.inputs, seed)
    found = module(*inputs)
    ours = [x for x in (found if isinstance(found, tuple) else (found,)) if x.size]
    contenders = [Contender("autotune", lambda: module(*inputs))]
    for name in names:
        call = onnxruntime_call(path, module, inputs)
        agree(module, name, ours, call())
        contenders.append(Contender(name, call))
    done = compare(contenders, seconds=time_s)
    ratio = {name: done.ratio("autotune", name) for name in names}
    quartiles = {name: done.quartiles("autotune", name) for name in names}
    rounds = len(done.times_s["autotune"])
    ol = module.program.outline
    flops = sum(w.flops * ol.count(i) for i, w in enumerate(ol.tasks))
    rows: list[dict[str, Any]] = [
        {
            "impl": c.name,
            "model": module.name,
            "threads": module.target.threads,
            "time_s": done.time_s(c.name),
            "gflops": flops / done.time_s(c.name) / 1e9,
        }
        for c in contenders
    ]
    if json:
        print_json({"rows": rows, "ratio": ratio, "quartiles": quartiles, "rounds": rounds})
        return ratio
    out = console()
    threads_ = module.target.threads
    out.print(f"{module.name}, {threads_} thread{'s' if threads_ > 1 else ''}", style="bold")
    table(
        out,
        ("", ">time", ">rate"),
        [(r["impl"], seconds(r["time_s"]), rate(flops, 0, r["time_s"])) for r in rows],
    )
    out.print(
        f"All took turns, {rounds} rounds. Times are medians; ratios are medians over the rounds.",
        style="dim",
    )
    for name, factor in ratio.items():
        if factor > 1:
            out.print(f"The tuned model is {factor:.2f} times as fast as {name}.", style="green")
        else:
            out.print(f"{name} is {1 / factor:.2f} times as fast as the tuned model.", style="yellow")
    return ratio
