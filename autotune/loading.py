"""Loading tuned kernels: look the best record up, map its object or rebuild it, hand out a `Kernel`.

Nothing here imports the search, the cost models or SQLAlchemy (an import contract says so), and
nothing here tunes.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune import targets
from autotune.errors import KernelNotFound
from autotune.settings import database
from autotune.workloads import Program, as_workload, dtype_of, param_text, shown_params
from kernels_db import lookup
from kernels_db.records import Hit
from schedules.model import Target, Workload

if TYPE_CHECKING:
    from autotune.runtime import Kernel


def load(
    program: Program,
    *,
    dtype: str = "float32",
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    fallback: bool = False,
    **params: Any,
) -> Kernel:
    """The tuned kernel of an operator (``"matmul", m=512, n=512, k=512``) or of a list of tensors.

    ``threads=None`` takes the fastest record whose thread count this process can run. Records tuned on
    this kind of machine come before those of others, and none is taken whose instructions this CPU
    lacks. ``fallback=True`` gives the default schedule, with a warning, when nothing is stored.
    ``constant_weights`` as it was tuned: the kernel then takes what its `Kernel.pack_weights` returns.

    Raises `KernelNotFound`, `WorkloadError`, `TargetError`, or `LogError` for a log that cannot be read.
    """
    workload = as_workload(program, params, dtype, layout, constant_weights)
    return load_workload(workload, target=target, threads=threads, db=db, fallback=fallback)


def load_workload(
    workload: Workload,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    fallback: bool = False,
) -> Kernel:
    """`load` for a workload."""
    from autotune.kernels import default_kernel, kernel_of

    try:
        hit = find(workload, target=target, threads=threads, db=db)
    except KernelNotFound as err:
        if not fallback:
            raise
        kernel = default_kernel(workload, targets.parse(target, threads))
        warnings.warn(f"{err}\nUsing the default schedule, which is not tuned.", stacklevel=3)
        return kernel
    return kernel_of(workload, hit.target, hit.record.trace, hit.record)


def best(
    program: Program,
    *,
    dtype: str = "float32",
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    **params: Any,
) -> Hit:
    """The record that `load` would use: ``.record`` (trace, times, uid), ``.target`` and ``.time_s``."""
    workload = as_workload(program, params, dtype, layout, constant_weights)
    return find(workload, target=target, threads=threads, db=db)


def find(
    workload: Workload,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
) -> Hit:
    """The best record of a workload that can run here. Raises `KernelNotFound`."""
    where = database(db)
    wanted = targets.parse(target, threads)
    if isinstance(target, Target) and threads is None:
        threads = target.threads
    cpus = targets.usable_cpus()

    def fits(t: Target) -> bool:
        return t.kind == wanted.kind and t.threads <= cpus and targets.runnable(t)

    def same_machine(t: Target) -> bool:
        return replace(t, threads=wanted.threads) == wanted and fits(t)

    def same_processor(t: Target) -> bool:
        return (t.arch, t.triple, t.features) == (wanted.arch, wanted.triple, wanted.features) and fits(t)

    # A named target is meant exactly; for the host, a schedule of a near relation is better than none.
    accepted: tuple[Callable[[Target], bool], ...] = (same_machine,)
    if target == "cpu":
        accepted = (same_machine, same_processor, fits)
    for accept in accepted:
        hit = lookup.best(where, workload.digest, accept, threads)
        if hit is not None:
            return hit
    raise KernelNotFound(_not_found(workload, where, threads))


def _not_found(workload: Workload, where: str, threads: int | None) -> str:
    """What was looked for, where, what is there instead, and the command that would help."""
    others: list[Target] = []
    lookup.best(where, workload.digest, lambda t: bool(others.append(t)))  # type: ignore[func-returns-value]
    wanted = "" if threads is None else f" with {threads} thread{'s' if threads > 1 else ''}"
    lines = [f"no tuned kernel of {describe(workload)} for this machine{wanted} in {where}"]
    if others:
        shown = sorted(
            {f"{t.kind} {t.arch}, {t.threads} thread{'s' if t.threads > 1 else ''}" for t in others}
        )
        lines.append(f"stored there: {'; '.join(shown[:5])}" + (" ..." if len(shown) > 5 else ""))
        missing = sorted({f for t in others if t.kind == "cpu" for f in targets.lacking(t)})
        if missing:
            lines.append(f"this CPU lacks {', '.join(missing[:8])}" + (" ..." if len(missing) > 8 else ""))
    lines.append(f"tune it first: {tune_command(workload, where, threads)}")
    return "\n".join(lines)


def describe(workload: Workload) -> str:
    """``matmul m=512 n=512 k=512 float32``, or the outputs of a user's own expression."""
    constants = [f"constant {', '.join(workload.dag.constants)}"] if workload.dag.constants else []
    if workload.op == "custom":
        made = ", ".join(f"{n}{list(workload.dag.tensors[n].shape)}" for n in workload.dag.outputs)
        return " ".join([f"the expression of {made} {dtype_of(workload)}", *constants])
    words = [f"{k}={param_text(v)}" for k, v in shown_params(workload).items()]
    return " ".join([workload.op, *words, dtype_of(workload), *constants])


def tune_command(workload: Workload, db: str, threads: int | None) -> str:
    """The command, or for a user's own expression the call, that would tune a workload."""
    if workload.op == "custom":
        extra = "" if threads is None else f", threads={threads}"
        return f"autotune.tune(the same tensors{extra}, db={db!r})"
    shown = shown_params(workload)
    layout = shown.pop("layout", None)
    shape = ",".join(f"{k}={param_text(v)}" for k, v in shown.items())
    words = ["autotune", "tune", workload.op, "--shape", shape, "--dtype", dtype_of(workload)]
    words += ["--layout", str(layout)] if layout else []
    words += ["--constant-weights"] if workload.dag.constants else []
    words += ["--threads", str(threads)] if threads is not None else []
    return shlex.join([*words, "--db", db])
