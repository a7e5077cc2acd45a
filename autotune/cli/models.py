"""Commands on a model's file, which stands where an operator's name does: what they share, and ``ops``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli.output import console, print_json, table, warnings_told
from schedules.units import counts, size

if TYPE_CHECKING:
    from autotune.cli.given import Given
    from autotune.models.model import Model
    from autotune.models.module import Module
    from schedules.te.dims import Dim

_EXTENT = r"\d{1,12}(?:\.\.\d{1,12})?"
_SHAPE = re.compile(rf"\s*([^=,]+)=({_EXTENT}(?:x{_EXTENT})*)(?:\s*,\s*open)?\s*(?:,|$)")

_TUNE = "\ntune them: "

# What --shape says of a file of GGUF: rows of its cache, and tokens of a call.
GGUF_SIZES = ("context", "rows")


def imported(path: str, shape: str, islands: bool = False) -> Model:
    """The model of a file. ``shape``: as ``--shape`` has it. Raises `ModelError`."""
    from autotune.models.onnx_import import import_onnx

    return import_onnx(path, shapes_of(shape), islands)


def model_of(o: Given, islands: bool = False) -> Model:
    """The model of the file that a command is given, with what its options say. Raises `ModelError`, and
    `typer.BadParameter` for a shape that a file of GGUF has not."""
    if not o.on_gguf:
        return imported(o.op, o.shape, islands)
    from autotune.models.gguf_import import import_gguf

    told: dict[str, Any] = {"cache": o.cache, "activations": None if o.activations == "none" else "int8"}
    for name, n in shapes_of(o.shape).items():
        if name not in GGUF_SIZES or not isinstance(n, int):
            known = " and ".join(GGUF_SIZES)
            raise typer.BadParameter(
                f"--shape {name}: of a file of GGUF it has {known}, as numbers: context=2048,rows=64"
            )
        told[name] = n
    return import_gguf(o.op, **told)


def compiled(o: Given, model: Model, remedy: str = "", **how: Any) -> Module:
    """The model that a command is given, compiled. ``how``: as of `compile_model`. Raises `KernelNotFound`
    that ends with the command that tunes it, and another ``remedy``. Warnings end with that command too."""
    from autotune.errors import KernelNotFound
    from autotune.models.compiling import compile_model

    def worded(text: str) -> str:
        what, tune, _ = text.partition(_TUNE)
        return f"{what}{tune}{tune_command(o) if tune else ''}"

    try:
        with warnings_told(worded):
            return compile_model(model, threads=o.threads, db=o.where, **how)
    except KernelNotFound as err:
        raise KernelNotFound(f"{err.message}{_TUNE}{tune_command(o)}{remedy}") from None


def tune_command(o: Given) -> str:
    """The command that tunes the model that a command is given."""
    words = [f"autotune tune {o.op}", f"--shape {o.shape}" * bool(o.shape)]
    words += [f"--{n} {getattr(o, n)}" for n in ("cache", "activations") if o.on_gguf and o.has(n)]
    words += [f"--target {o.target}"] if o.has("target") else []
    words += [f"--threads {o.threads}" * bool(o.threads), f"--db {o.db}" * o.has("db")]
    return " ".join(filter(None, words))


def context_of(model: Model) -> int | None:
    """How many tokens the cache of a language model has room for; None where it cannot be told."""
    dag, states = model.graph.dag, model.graph.states.values()
    extents = {shape[0] for s in states if (shape := dag.tensors[s.tensor].shape)}
    return extents.pop() if len(extents) == 1 else None


def shapes_of(text: str) -> dict[str, int | Dim | tuple[int | Dim, ...]]:
    """``x=1x3x224x224,batch=8`` as shapes of inputs and extents of dimensions; ``seq=1..512,open`` is a size
    that each call tells. Raises `typer.BadParameter`."""
    shapes: dict[str, int | Dim | tuple[int | Dim, ...]] = {}
    at = 0
    while at < len(text.rstrip()):
        m = _SHAPE.match(text, at)
        if m is None:
            item = text[at:].partition(",")[0].strip()
            raise typer.BadParameter(
                f"--shape {item!r}: write INPUT=1x3x224x224, DIMENSION=8, or DIMENSION=1..512,open, with "
                "commas between them"
            )
        at, name = m.end(), m[1].strip()
        extents = tuple(_extent(name, x) for x in m[2].split("x"))
        if name in shapes:
            raise typer.BadParameter(f"--shape: {name} is given twice")
        shapes[name] = extents[0] if len(extents) == 1 else extents
    return shapes


def _extent(name: str, text: str) -> int | Dim:
    from schedules.errors import WorkloadError
    from schedules.te.dims import dim

    least, _, most = text.partition("..")
    if not most:
        return int(least)
    try:
        return dim(int(least), int(most), open=True)
    except WorkloadError as err:
        raise typer.BadParameter(f"--shape {name}: {err}") from err


def show_model(o: Given) -> None:
    """Print what a model runs: its inputs and outputs, its tasks, and the operators without an expression."""
    from autotune.cli.output import task_text
    from autotune.models.preparation import prepared
    from autotune.models.tasks import tasks_of
    from schedules.graph.graph import Island

    model, json = model_of(o, islands=True), o.json
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
