"""Loading tuned kernels: look the best record up, map its object or rebuild it, hand out a `Kernel`.

Nothing here imports the search, the cost models or SQLAlchemy (an import contract says so), and
nothing here tunes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune import backends
from autotune.errors import ArgumentError, KernelNotFound
from autotune.run import own_names, recent
from autotune.run.asked import Asked
from autotune.run.describing import describe
from autotune.run.dynamic_workload import DynamicWorkload, Sizes, as_dynamic
from autotune.run.stored import first, hits, not_found, stored, unsearched
from autotune.run.varying import Varying, check_open, undecided, varying
from autotune.run.warned import warn
from autotune.run.workloads import Program, ahead, as_workload
from autotune.settings import database
from kernels_db.place import locate
from kernels_db.records import Hit
from schedules.errors import AutotuneError
from schedules.model import Target, Workload
from schedules.te.strided import Strides

if TYPE_CHECKING:
    from autotune.run.dynamic_kernel import DynamicKernel
    from autotune.run.kernel import Kernel

ONE_SIZE = "in_place is of one size, and this program has a range of them; give a number"
LOOKED_AT = 256  # records whose proof is tried where outputs are inputs


def load(
    program: Program,
    *,
    dtype: str | None = None,
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    strides: Strides | None = None,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    fallback: bool = False,
    nearest: bool = False,
    in_place: Mapping[str, str] | None = None,
    **params: Any,
) -> Kernel:
    """The tuned kernel of an operator (``"matmul", m=512, n=512, k=512``) or of a list of tensors.

    ``dtype=None`` is float32, or the operator's first dtype where it has no float32, such as uint8.
    ``threads=None`` takes the fastest record whose thread count this process can run. Only records that
    were tuned for this machine are taken. With ``nearest=True``, where there is none, that of the most
    similar machine whose instructions this CPU has is tried beside the default schedule, and the faster of
    the two is given, with a warning that says which.

    ``in_place={"y": "x"}``: calls give input ``x`` as output ``y`` too. The fastest record is taken whose
    schedule reads each element of it before it overwrites that (`tune` has ``in_place`` too). Where there is
    none, ``fallback=True`` gives a first pick of such schedules, the plain loops among them.

    ``fallback=True`` gives a kernel also when nothing is stored, with a warning. A few schedules are checked
    and timed here, which takes up to three seconds: those of similar sizes and machines in the log, else the
    first picks of the model, and the plain loops. The fastest is cached, so that the next load is as quick as
    that of a tuned kernel. `Kernel.chosen_by` says what chose it: "log", "similar_shape", "similar_machine",
    "model" or "default".

    Where the log has only the plain loops of a task, because a run ended early, ``fallback=True`` gives a
    first pick in their place, unless they are faster.

    A record whose schedule is not legal, that this version cannot read, or
    that is pinned and was found wrong since, is left out with a warning. ``constant_weights`` as it was
    tuned: the kernel then takes what its `Kernel.pack_weights` returns. ``strides`` as they were tuned.

    Raises `KernelNotFound`, `WorkloadError`, `TargetError`, or `LogError` for a log that cannot be read; and
    where all records are left out, the error of the first: `ScheduleError`, `TraceError`, `CompileError` or
    `KernelNotFound`.

    With a size that varies (``m=at.dim(1, 512)``, see `dim`) an `OpenKernel` comes back, which is one kernel
    for all sizes; a size that was tuned on its own has its own. With ``open=False``, where open sizes are
    refused, and where the log has single sizes of the range only, it is a `DynamicKernel`, which looks a
    kernel up for the size of each call. It takes that some size is tuned, or ``fallback=True``.

    >>> kernel = at.load("matmul", m=64, n=64, k=64, threads=1)
    >>> kernel.chosen_by
    'log'
    >>> c = kernel(np.ones((64, 64), "float32"), np.ones((64, 64), "float32"))
    >>> c[0, 0]
    np.float32(64.0)
    """
    constant_weights = ahead(constant_weights)
    where, left_open = database(db), undecided(program, params)
    told = (program, params, dtype, layout, constant_weights, load)
    if in_place and left_open:
        raise ArgumentError(ONE_SIZE)
    if not left_open:
        dynamic = as_dynamic(*told, strides)
        if dynamic is not None:
            if in_place:
                raise ArgumentError(ONE_SIZE)
            return _load_dynamic(dynamic, Asked.of(target, threads, where, fallback, nearest))

    if in_place:
        asked = Asked.of(target, threads, where, fallback)
        return _load_in_place(as_workload(*told, strides), asked, in_place)

    def find() -> tuple[Kernel, bool]:
        asked = Asked.of(target, threads, where, fallback, nearest)
        if left_open:
            return _load_varying(varying(*told, strides, asked.target.grid), asked)
        return _load(as_workload(*told, strides), asked)

    if not isinstance(program, str):  # tensors, whose names count for a kernel too
        return find()[0]
    named = tuple((k, type(v), v) for k, v in sorted(params.items()))  # 64.0 and True are no 64 and 1
    lie = repr(dict(strides) if isinstance(strides, Mapping) else strides)
    key = (program, named, dtype, layout, constant_weights, lie, target, threads, where, fallback, nearest)
    return recent.load(key, where, find)


def load_workload(workload: Workload, asked: Asked) -> Kernel:
    """`load` for a workload."""
    return _load(workload, asked)[0]


def _load(workload: Workload, asked: Asked) -> tuple[Kernel, bool]:
    """The kernel of a workload, and whether it came without a warning."""
    check_open(workload, asked.target.grid)
    workload = own_names.shown(workload, asked.where)
    found, unusable = stored(workload, asked)
    if found is None:
        found = _of_wider(workload, asked)
    _take_exact(found, asked)
    if found is not None:
        picked = _instead(found, asked)
        if picked is None:
            return found, unusable is None
        warn(picked[1])
        return picked[0], False
    if asked.nearest:
        from autotune.run.similar_target import nearest as look

        tried = look(workload, asked)
        if tried is not None:
            warn(f"nothing is stored for this machine; {tried}")
            return tried.kernel, False
    missing = unusable or not_found(workload, asked)
    if not asked.fallback:
        raise missing
    from autotune.run.untuned import untuned

    kernel, why, *_ = untuned(workload, asked.target, asked.where)
    _take_exact(kernel, asked)
    warn(f"{missing.message if isinstance(missing, KernelNotFound) else missing}\n{why}")
    return kernel, False


def _load_in_place(workload: Workload, asked: Asked, pairs: Mapping[str, str]) -> Kernel:
    """The kernel of the best record whose schedule allows it that outputs are inputs. Raises as `load` does,
    and `ArgumentError` where none allows it."""
    from autotune.run.in_place import check, prepare, refusal
    from autotune.run.kernels import kernel_of
    from autotune.run.untuned import untuned

    check(workload, asked.target, pairs)
    refused: AutotuneError | None = None

    def allowed() -> Iterator[Hit]:
        nonlocal refused
        for hit in hits(workload, asked, LOOKED_AT):
            why = refusal(workload, hit.target, hit.record.trace, pairs)
            refused = refused or why
            if why is None:
                yield hit

    def use(hit: Hit) -> Kernel:
        kernel = kernel_of(workload, hit.target, hit.record.trace, hit.record)
        prepare(kernel, pairs)
        return kernel

    found, unusable = first(use, allowed())
    if found is not None:
        return found
    if not asked.fallback:
        if refused is not None:
            raise ArgumentError(
                f"no tuned schedule allows in_place={dict(pairs)}: {refused}; tune it: in_place= of tune"
            )
        raise unusable or not_found(workload, asked)
    kernel, what, *_ = untuned(workload, asked.target, asked.where, pairs)
    prepare(kernel, pairs)
    warn(f"no tuned schedule allows it that outputs are inputs, of {describe(workload)}\n{what}")
    return kernel


def _load_varying(program: Varying, asked: Asked) -> tuple[Kernel, bool]:
    """The kernel of a program that may have one for all sizes, or one for each, and whether it may be kept.
    Where the log has some of the sizes, and none for all, those are taken."""
    chosen = program.opened
    if chosen is not None and not _known(chosen, asked) and program.fixed.tuned(asked.where):
        try:
            return _load_dynamic(program.fixed, replace(asked, fallback=False)), False
        except KernelNotFound:  # they are of other machines
            if not asked.fallback:
                raise
    chosen = program.decided()
    if isinstance(chosen, DynamicWorkload):
        return _load_dynamic(chosen, asked), False
    return _load(chosen, asked)


def _known(program: Workload | DynamicWorkload, asked: Asked) -> bool:
    """Whether the log has a kernel of a program for this machine."""
    if isinstance(program, DynamicWorkload):
        return bool(program.tuned(asked.where))
    from autotune.run.wider import wider

    def has(w: Workload) -> bool:
        return next(hits(w, asked), None) is not None

    return has(program) or any(map(has, wider(program, asked.where)))


def _of_wider(workload: Workload, asked: Asked) -> Kernel | None:
    """The kernel of the narrowest range that the log has, of those that hold the range of a workload, or its
    one size."""
    from autotune.run.open_kernel import OpenKernel
    from autotune.run.wider import holding, wider

    if workload.dag.open is not None:
        return next((k for w in wider(workload, asked.where) if (k := stored(w, asked)[0]) is not None), None)
    for of_range, sizes in holding(workload, asked.where):
        kernel = stored(of_range, asked)[0]
        if isinstance(kernel, OpenKernel):
            return kernel.at(**dict(zip((d.name for d in kernel.dynamic.dims), sizes, strict=True)))
    return None


def _take_exact(kernel: Kernel | None, asked: Asked) -> None:
    """Have a kernel of open sizes take one that was tuned for just the size of a call, where the log has
    it."""
    if kernel is None or kernel.workload.dag.open is None:
        return
    from autotune.run.open_kernel import OpenKernel

    if not isinstance(kernel, OpenKernel):  # as one whose size no input tells
        return
    tuned = {kernel.dynamic.at(s).digest for s in kernel.dynamic.tuned(asked.where)}
    fixed = asked.on(kernel.target)
    if tuned:  # else no call asks for the digest of its size
        kernel.take_exact(lambda workload: stored(workload, fixed)[0] if workload.digest in tuned else None)


def _instead(found: Kernel, asked: Asked) -> tuple[Kernel, str] | None:
    """What is used in place of plain loops that a log has alone, and why; None where that is these."""
    if not (asked.fallback and unsearched(found.workload, asked)):
        return None
    from autotune.run.untuned import in_place_of

    return in_place_of(found, asked.target, asked.where)


def _load_dynamic(dynamic: DynamicWorkload, asked: Asked) -> DynamicKernel:
    """Where no number of threads is asked for, all sizes run with as many as the best record of the largest
    tuned size. ``asked.nearest``: each size that is tuned for similar machines only gets a kernel as `load`
    gives it. Raises as `load` does."""
    from autotune.run.dynamic_kernel import DynamicKernel

    sizes = dynamic.tuned(asked.where)
    similar: dict[str, Kernel] = {}  # what was tried here already, by workload

    def of_similar(workload: Workload, asked: Asked) -> Kernel | None:
        if asked.nearest and workload.digest not in similar:
            from autotune.run.similar_target import nearest as look

            tried = look(workload, asked)
            if tried is not None:
                warn(f"nothing is stored of {describe(workload)} for this machine; {tried}")
                similar[workload.digest] = tried.kernel
        return similar.get(workload.digest)

    wanted = asked.target
    errors: list[Exception] = []
    for one in reversed(sizes):
        kernel, unusable = stored(dynamic.at(one), asked)
        if kernel is not None:
            wanted = kernel.target
            break
        errors += [] if unusable is None else [unusable]
    else:
        kernels = (of_similar(dynamic.at(one), asked) for one in reversed(sizes))
        kernel = next((k for k in kernels if k is not None), None)
        if kernel is not None:
            wanted = backends.parse(backends.HOST, kernel.target.threads)
        elif not asked.fallback:
            raise errors[0] if errors else _no_size(dynamic, sizes, asked)
    fixed = asked.on(wanted)

    def make(workload: Workload) -> Kernel:
        found, _ = stored(workload, fixed)
        if found is not None:
            picked = _instead(found, fixed)
            return found if picked is None else picked[0]
        found = of_similar(workload, fixed)
        if found is not None:
            return found
        from autotune.run.untuned import untuned

        return untuned(workload, wanted, asked.where).kernel

    return DynamicKernel(dynamic, make, sizes)


def _no_size(dynamic: DynamicWorkload, sizes: list[Sizes], asked: Asked) -> KernelNotFound:
    if sizes:  # on other machines, or with other threads
        return not_found(dynamic.at(sizes[-1]), asked)
    return KernelNotFound(
        f"no tuned kernel of {dynamic} in {locate(asked.where)}\n"
        "tune it first: autotune.tune with the same arguments",
        "or take schedules that are not tuned: fallback=True",
    )


def best(
    program: Program,
    *,
    dtype: str | None = None,
    layout: str | None = None,
    constant_weights: bool | Sequence[str] = False,
    strides: Strides | None = None,
    target: str | Target = "cpu",
    threads: int | None = None,
    db: str | os.PathLike[str] | None = None,
    nearest: bool = False,
    **params: Any,
) -> Hit:
    """The record that `load` would use: ``.record`` (trace, times, uid), ``.target``, ``.time_s``,
    ``.pinned`` and ``.origin``. Its trace has passed every legality check, and has the canonical names
    of loops; `Kernel.trace` has those of the expression. With ``nearest=True`` it may be
    that of the most similar machine, if it beats the default schedule here.

    Raises what `load` raises.

    >>> hit = at.best("matmul", m=64, n=64, k=64, threads=1)
    >>> hit.time_s < 1.0, hit.pinned
    (True, False)
    """
    workload = as_workload(program, params, dtype, layout, constant_weights, best, strides)
    return find(workload, Asked.of(target, threads, db, nearest=nearest))


def find(workload: Workload, asked: Asked) -> Hit:
    """The best record of a workload that can run here, legal. Raises `KernelNotFound`."""
    from autotune.backends.building.from_trace import check_legal
    from schedules.trace_names import to_named

    def use(hit: Hit) -> Hit:
        check_legal(workload.dag, to_named(workload, hit.record.trace), hit.target)
        return hit

    found, unusable = first(use, hits(workload, asked))
    if found is not None:
        return found
    if asked.nearest:
        from autotune.run.similar_target import nearest as look
        from autotune.run.similar_target import refused

        tried = look(workload, asked)
        if tried is not None:
            if not tried.better:
                raise refused(workload, tried)
            warn(f"nothing is stored for this machine; {tried}")
            return tried.hit
    raise unusable or not_found(workload, asked)
