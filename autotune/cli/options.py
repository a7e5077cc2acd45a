"""Options that several commands share, and the reading of their values."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from autotune.search.policies import POLICIES
from autotune.settings import SettingsError, database, duration
from cost_model.models import MODELS, names_file
from schedules.dtypes import DTYPES
from schedules.errors import suggest

if TYPE_CHECKING:
    from autotune.run.dynamic_workload import DynamicWorkload
    from schedules.model import Target, Trace, Workload


def parse_budget(text: str, option: str) -> float:
    """Seconds of a `duration` that an option has. Raises `typer.BadParameter`."""
    try:
        return duration(text)
    except SettingsError as err:
        raise typer.BadParameter(f"{option}: {err}") from None


OpArgument = Annotated[
    str,
    typer.Argument(
        metavar="OP", help="An operator (see: autotune ops), or the name of an expression of yours."
    ),
]
ShapeOption = Annotated[
    str,
    typer.Option(
        "--shape",
        metavar="NAME=N,...",
        help="Parameters of OP, such as m=512 or stride=2x1, which autotune ops OP lists; 1..512: a range.",
    ),
]
SuiteOption = Annotated[
    str | None,
    typer.Option("--suite", metavar="FILE[:NAME]", help="Tasks of a TOML file; NAME: a suite, quick or all."),
]
DtypeOption = Annotated[
    str, typer.Option("--dtype", metavar="DTYPE", help=f"Element type: {', '.join(DTYPES)}.")
]
LayoutOption = Annotated[
    str | None,
    typer.Option("--layout", metavar="LAYOUT", help="Data layout, where the operator has several."),
]
ConstantsOption = Annotated[
    bool,
    typer.Option("--constant-weights", help="Weights are known ahead, and packed once, not at each call."),
]
SearchOption = Annotated[str, typer.Option("--search", help=f"Strategy: {', '.join(POLICIES)}.")]
ModelOption = Annotated[str, typer.Option("--model", help=f"Cost model: {', '.join(MODELS)}.")]
CostModelOption = Annotated[
    str,
    typer.Option(
        "--cost-model",
        "--model",
        metavar="NAME|FILE",
        help=f"Cost model: {', '.join(MODELS)}, or a file that autotune train made.",
    ),
]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="What to compile for: cpu (this machine), cuda, opencl, cuda-emulator, a processor such as "
        "x86-64-v3 or h100, or a JSON file.",
    ),
]


def _threads(meaning: str) -> Any:
    return typer.Option("--threads", metavar="N", min=1, help=meaning)


ThreadsOption = Annotated[int | None, _threads("Threads of the kernel. [default: the CPUs usable here]")]
TunedThreadsOption = Annotated[
    int | None, _threads("Threads that it was tuned for. [default: what is fastest here]")
]
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="PATH_OR_URL",
        help="The tuning log. [default: AUTOTUNE_DB, else tuning.db in the user data directory]",
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--fleet",
        metavar="ADDRESS",
        help="Measure on workers of a Dask scheduler: tcp://HOST:PORT, tls://HOST:PORT; local:N: N here.",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of every random choice.")]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")
]


def given(ctx: typer.Context, name: str) -> bool:
    """Whether an option was given, and is not left at its default. ``name``: that of the parameter."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def operator_or_suite(ctx: typer.Context, op: str | None, suite: str | None, *others: str) -> None:
    """Raises `typer.BadParameter` unless exactly one of the two is given, and with a suite neither the
    options that its file replaces nor these ``others``."""
    if (op is None) == (suite is None):
        raise typer.BadParameter("give either an operator and its --shape, or --suite FILE[:NAME]")
    if suite is None:
        return
    for name in ("shape", "dtype", "layout", *others):
        if given(ctx, name):
            raise typer.BadParameter(f"--{name} does not go with --suite; the suite file has it")


def workload_of(
    op: str,
    shape: str,
    dtype: str,
    layout: str | None,
    constant_weights: bool = False,
    db: str | None = None,
) -> Workload:
    """The workload that ``OP --shape ... --dtype ... --layout ... --constant-weights`` names, or the
    expression of that name in a log ``db``. Raises `WorkloadError`."""
    from autotune.run.workloads import as_workload
    from schedules import ops

    if db is not None and op not in ops.REGISTRY:
        from autotune.run.own_names import find

        found = find(op, db)
        if found is not None:
            if shape or layout or constant_weights:
                raise typer.BadParameter(f"{op} is your own expression; leave out all but its name")
            return found
    if op not in ops.REGISTRY:
        _check_operator(op, db)

    return as_workload(op, ops.parse_shape(shape), dtype, layout, constant_weights)


def is_model(op: str | None) -> bool:
    """Whether what stands in the place of an operator's name is a model's file."""
    return op is not None and (op.lower().endswith(".onnx") or "/" in op or "\\" in op)


def _check_operator(op: str, db: str | None) -> None:
    """Raises `typer.BadParameter` for a file in the place of an operator's name, and for what is nearly the
    name of an expression in a log ``db``."""
    from autotune.run import own_names
    from schedules import ops

    if is_model(op):
        raise typer.BadParameter(
            f"{op} is a model's file, and this command takes one operator; ops, tune, bench, explain and "
            "report take models, and in Python autotune.compile_model makes one callable, which it can save"
        )
    if "." in op:
        raise typer.BadParameter(
            f"{op!r} is no operator (see: autotune ops), and no model's file: its name would end in .onnx"
        )
    if db is not None and not suggest(op, ops.REGISTRY):
        close = own_names.close(op, db)
        if close:
            raise typer.BadParameter(f"unknown operator {op!r}, and no expression in the log{close}")


def dynamic_of(
    op: str, shape: str, dtype: str, layout: str | None, constant_weights: bool = False
) -> DynamicWorkload | None:
    """The workloads of ``--shape m=1..512,…``; None where no size varies. Raises `WorkloadError`."""
    from autotune.run.dynamic_workload import as_dynamic
    from schedules import ops

    params = ops.parse_shape(shape) if ".." in shape else {}
    return as_dynamic(op, params, dtype, layout, constant_weights)


def target_of(name: str, threads: int | None) -> Target:
    """The target that ``--target`` and ``--threads`` name. Raises `AutotuneError`."""
    from autotune.backends import parse

    return parse(name, threads)


def db_of(db: str | None) -> str:
    """The database that ``--db`` names. Raises `SettingsError`."""
    return database(db)


def one_of(option: str, value: str, known: Collection[str]) -> None:
    """Raises `typer.BadParameter` unless ``value`` is one of ``known``."""
    if value not in known:
        listed = ", ".join(known)
        raise typer.BadParameter(f"{option} {value!r} is not one of {listed}{suggest(value, known)}")


def cost_model(value: str) -> None:
    """Raises `typer.BadParameter` for a name that is no cost model. A file is read where it is used."""
    if not names_file(value):
        one_of("--cost-model", value, MODELS)


def compulsory_bytes(workload: Workload) -> int:
    """Bytes of all inputs and outputs, each moved once."""
    from schedules.ops import compulsory_bytes

    return compulsory_bytes(workload.dag)


def target_summary(target: Target) -> dict[str, Any]:
    """A target for JSON documents."""
    return {"kind": target.kind, "arch": target.arch, "threads": target.threads, "digest": target.digest}


def trace_value(trace: Trace) -> Any:
    """A trace as a JSON value."""
    return json.loads(trace.to_json())


def input_path(path: Path) -> Path:
    """A file to read. ``-`` is stdin."""
    return Path("/dev/stdin") if str(path) == "-" else path


def output_place(path: Path, json: bool) -> Path | IO[str]:
    """Where to write. ``-`` is stdout, on which nothing else is printed then."""
    if str(path) != "-":
        return path
    if json:
        raise typer.BadParameter("- and --json both print on stdout; give a file")
    return sys.stdout
