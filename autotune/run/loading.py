"""Loading tuned kernels: look the best record up, map its object or rebuild it, hand out a `Kernel`.

Nothing here imports the search, the cost models or SQLAlchemy (an import contract says so), and
nothing here tunes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from autotune import backends, targets
from autotune.dynamic import as_dynamic, varies
from autotune.errors import CompileError, KernelNotFound
from autotune.run import own_names
from autotune.run.describing import describe, tune_command
from autotune.settings import database
from autotune.workloads import Program, as_workload, otherwise_constant
from kernels_db import lookup
from kernels_db.place import locate
from kernels_db.records import Hit
from schedules.errors import ScheduleError
from schedules.model import Target, TraceError, Workload

if TYPE_CHECKING:
    from autotune.run.kernel import Kernel

OTHERS = 32  # records to look at when the best cannot be used
# Of a record: written elsewhere, or by another version, or pinned and found wrong since.
UNUSABLE = (TraceError, ScheduleError, CompileError, KernelNotFound)
Unusable = TraceError | ScheduleError | CompileError | KernelNotFound
DOUBTED = (
    "it was found to be wrong or to fail after it was pinned; autotune log verify checks it again, "
    "autotune log pin takes what is best now"
)
Made = TypeVar("Made")


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
    nearest: bool = False,
    **params: Any,
) -> Kernel:
    """The tuned kernel of an operator (``"matmul", m=512, n=512, k=512``) or of a list of tensors.

    ``threads=None`` takes the fastest record whose thread count this process can run. Only records that
    were tuned for this machine are taken. With ``nearest=True``, where there is none, that of the most
    similar machine whose instructions this CPU has is tried beside the default schedule, and the faster of
    the two is given, with a warning that says which.

    ``fallback=True`` gives a kernel also when nothing is stored, with a warning. A few schedules are checked
    and timed here, which takes up to three seconds: those of similar sizes and machines in the log, else the
    first picks of the model, and the plain loops. The fastest is cached, so that the next load is as quick as
    that of a tuned kernel. `Kernel.chosen_by` says what chose it: "log", "similar_shape", "similar_machine",
    "model" or "default".

    A record whose schedule is not legal, that this version cannot read, or
    that is pinned and was found wrong since, is left out with a warning. ``constant_weights`` as it was
    tuned: the kernel then takes what its `Kernel.pack_weights` returns.

    Raises `KernelNotFound`, `WorkloadError`, `TargetError`, or `LogError` for a log that cannot be read; and
    where all records are left out, the error of the first: `ScheduleError`, `TraceError`, `CompileError` or
    `KernelNotFound`.

    With a size that varies (``m=at.dim(1, 512)``, see `dim`) a `DynamicKernel` comes back, which looks at the
    size of each call. It takes that some size in the range is tuned, or ``fallback=True``.
    """
    if varies(program, params):
        from autotune.run.loading_dynamic import load_dynamic

        dynamic = as_dynamic(program, params, dtype, layout, constant_weights, load)
        return load_dynamic(dynamic, target=target, threads=threads, db=db, fallback=fallback)
    workload = as_workload(program, params, dtype, layout, constant_weights, load)
    return load_workload(
        workload, target=target, threads=threads, db=db, fallback=fallback, nearest=nearest
    )


def load_workload(
    workload: Workload,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    fallback: bool = False,
    nearest: bool = False,
) -> Kernel:
    """`load` for a workload."""
    where = database(db)
    wanted = targets.parse(target, threads)
    workload = own_names.shown(workload, where)
    found, unusable = stored(workload, wanted, _threads(target, threads), where)
    if found is not None:
        return found
    if nearest and target == backends.HOST:
        from autotune.run.similar_target import nearest as look

        tried = look(workload, where, wanted, threads)
        if tried is not None:
            warnings.warn(f"nothing is stored for this machine; {tried}", stacklevel=3)
            return tried.kernel
    missing = unusable or not_found(workload, where, threads)
    if not fallback:
        raise missing
    from autotune.run.untuned import untuned

    kernel, why = untuned(workload, wanted, where)
    warnings.warn(f"{missing}\n{why}", stacklevel=3)
    return kernel


def stored(
    workload: Workload, wanted: Target, threads: int | None, where: str
) -> tuple[Kernel | None, Unusable | None]:
    """The kernel of the best record of a log that can be used here, with any number of threads if ``threads``
    is None; or the error of the first record if there are only such that cannot. Raises `LogError`."""
    from autotune.run.kernels import kernel_of

    def use(hit: Hit) -> Kernel:
        return kernel_of(workload, hit.target, hit.record.trace, hit.record)

    return _first(use, _stored(workload, wanted, threads, where))


def best(
    program: Program,
    *,
    dtype: str = "float32",
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    nearest: bool = False,
    **params: Any,
) -> Hit:
    """The record that `load` would use: ``.record`` (trace, times, uid), ``.target``, ``.time_s``,
    ``.pinned`` and ``.origin``. Its trace has passed every legality check, and has the canonical names
    of loops; `Kernel.trace` has those of the expression. With ``nearest=True`` it may be
    that of the most similar machine, if it beats the default schedule here."""
    workload = as_workload(program, params, dtype, layout, constant_weights, best)
    return find(workload, target=target, threads=threads, db=db, nearest=nearest)


def find(
    workload: Workload,
    *,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    nearest: bool = False,
) -> Hit:
    """The best record of a workload that can run here, legal. Raises `KernelNotFound`."""
    from autotune.building.from_trace import check_legal
    from schedules.trace_names import to_named

    where = database(db)
    wanted = targets.parse(target, threads)

    def use(hit: Hit) -> Hit:
        check_legal(workload.dag, to_named(workload, hit.record.trace), hit.target)
        return hit

    found, unusable = _first(use, _stored(workload, wanted, _threads(target, threads), where))
    if found is not None:
        return found
    if nearest and target == backends.HOST:
        from autotune.run.similar_target import nearest as look
        from autotune.run.similar_target import refused

        tried = look(workload, where, wanted, threads)
        if tried is not None:
            if not tried.better:
                raise refused(workload, tried)
            warnings.warn(f"nothing is stored for this machine; {tried}", stacklevel=2)
            return tried.hit
    raise unusable or not_found(workload, where, threads)


def _threads(target: str | Target, threads: int | None) -> int | None:
    return target.threads if isinstance(target, Target) and threads is None else threads


def _stored(workload: Workload, wanted: Target, threads: int | None, where: str) -> Iterator[Hit]:
    """What the log has for a target with any number of threads that can run here, best first. After the
    first, which nearly always is good, the rest is asked for in one more query."""
    cpus = targets.usable_cpus()

    def fits(t: Target) -> bool:
        same = replace(t, threads=wanted.threads) == wanted
        return same and t.threads <= cpus and targets.runnable(t)

    for k in (1, OTHERS):
        hits = lookup.top(where, workload.digest, fits, threads, k)
        yield from hits[0 if k == 1 else 1 :]
        if len(hits) < k:
            return


def _first(use: Callable[[Hit], Made], hits: Iterable[Hit]) -> tuple[Made | None, Unusable | None]:
    """What ``use`` makes of the first hit that it does not refuse, with a warning for each that ranks before
    it; or the error of the first, of the same kind as was raised, if none will do."""
    unusable: list[Unusable] = []
    for hit in hits:
        try:
            if hit.doubted:
                raise KernelNotFound(DOUBTED)
            made = use(hit)
        except UNUSABLE as err:
            which = f"{'pinned ' if hit.pinned else ''}record {hit.record.uid}"
            unusable.append(type(err)(f"{which} cannot be used: {err}"))
        else:
            for error in unusable:
                warnings.warn(str(error), stacklevel=4)
            return made, None
    return None, unusable[0] if unusable else None


def not_found(workload: Workload, where: str, threads: int | None) -> KernelNotFound:
    """What was looked for, where, what is there instead, and the command that would help."""
    from autotune.run.reordered import reordered

    place = str(locate(where))
    others = _targets(workload, where)
    wanted = "" if threads is None else f" with {threads} thread{'s' if threads > 1 else ''}"
    lines = [f"no tuned kernel of {describe(workload)} for this machine{wanted} in {place}"]
    if others:
        shown = sorted({targets.brief(t) for t in others})
        lines.append(f"stored there: {'; '.join(shown[:5])}" + (" ..." if len(shown) > 5 else ""))
        missing = sorted({f for t in others for f in targets.lacking(t)})
        if missing:
            lines.append(f"this CPU lacks {', '.join(missing[:8])}" + (" ..." if len(missing) > 8 else ""))
        if any(not t.grid and targets.runnable(t) for t in others):
            lines.append("try that of the most similar machine: --nearest, or nearest=True")
    twin = otherwise_constant(workload)
    what = "tune it first"
    if twin is not None and _targets(twin, where):
        ahead = "known ahead: --constant-weights, or constant_weights=True"
        kind = ahead if twin.dag.constants else "as arguments: without --constant-weights"
        lines.append(f"stored there with its weights {kind}")
        what = "or tune this one"
    if not others and (other_order := reordered(workload, where)) is not None:
        lines.append(other_order)
        what = "or tune this one"
    lines.append(f"{what}: {tune_command(workload, place, threads)}")
    return KernelNotFound("\n".join(lines))


def _targets(workload: Workload, where: str) -> list[Target]:
    """Every target that the log has a kernel of a workload for."""
    found: list[Target] = []
    lookup.best(where, workload.digest, lambda t: bool(found.append(t)))  # type: ignore[func-returns-value]
    return found
