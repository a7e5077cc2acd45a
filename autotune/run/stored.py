"""What a log has for a workload that can be used here, and the words for what it has not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from autotune import backends, targets
from autotune.errors import CompileError, KernelNotFound
from autotune.run.describing import describe, tune_command
from autotune.run.warned import warn
from autotune.run.workloads import otherwise_constant, row_major
from kernels_db import lookup
from kernels_db.place import locate
from kernels_db.records import Hit
from schedules.errors import ScheduleError
from schedules.model import Target, Trace, TraceError, Workload

if TYPE_CHECKING:
    from autotune.run.asked import Asked
    from autotune.run.kernel import Kernel

PLAIN = Trace().digest  # of the loops as the expression states them
OTHERS = 32  # records to look at when the best cannot be used
# Of a record: written elsewhere, or by another version, or pinned and found wrong since.
# Other schedules of a task that must be known for its plain loops to count as compared with something.
FEW = 3
UNUSABLE = (TraceError, ScheduleError, CompileError, KernelNotFound)
Unusable = TraceError | ScheduleError | CompileError | KernelNotFound
DOUBTED = (
    "it was found to be wrong or to fail after it was pinned; autotune log verify checks it again, "
    "autotune log pin takes what is best now"
)
Made = TypeVar("Made")
log = logging.getLogger(__name__)


def stored(workload: Workload, asked: Asked) -> tuple[Kernel | None, Unusable | None]:
    """The kernel of the best record of a log that can be used here; and the error of the first record that
    cannot. Raises `LogError`."""
    from autotune.run.kernels import kernel_of

    def use(hit: Hit) -> Kernel:
        return kernel_of(workload, hit.target, hit.record.trace, hit.record)

    return first(use, hits(workload, asked))


def hits(workload: Workload, asked: Asked, others: int = OTHERS) -> Iterator[Hit]:
    """What the log has, best first, as far as this process may use so many CPUs. After the first, which
    nearly always is good, the rest is asked for in one more query, ``others`` at most."""
    wanted, threads = asked.target, asked.exactly
    cpus = min(targets.usable_cpus(), wanted.threads if threads is None else threads)

    def fits(t: Target) -> bool:
        same = replace(t, threads=wanted.threads) == wanted
        return same and t.threads <= cpus and backends.runnable(t)

    for k in (1, others):
        found = lookup.top(asked.where, workload.digest, fits, threads, k)
        yield from found[0 if k == 1 else 1 :]
        if len(found) < k:
            return


def unsearched(workload: Workload, asked: Asked) -> bool:
    """Whether the best that `hits` finds is the plain loops, which hardly anything was compared with: a run
    ended before it came to more. Not so where they are pinned."""
    found = hits(workload, asked)
    best = next(found, None)
    if best is None or best.pinned or best.record.trace_digest != PLAIN:
        return False
    others = {h.record.trace_digest for h in islice(found, OTHERS)} - {PLAIN}
    return len(others) < FEW


def first(use: Callable[[Hit], Made], found: Iterable[Hit]) -> tuple[Made | None, Unusable | None]:
    """What ``use`` makes of the first hit that it does not refuse, with a warning for each that ranks before
    it; and the error of the first of these, of the same kind as was raised."""
    unusable: list[Unusable] = []
    for hit in found:
        try:
            if hit.doubted:
                raise KernelNotFound(DOUBTED)
            made = use(hit)
        except UNUSABLE as err:
            which = f"{'pinned ' if hit.pinned else ''}record {hit.record.uid}"
            unusable.append(type(err)(f"{which} cannot be used: {err}"))
        else:
            log.debug("record %s of the log is used, with %d threads", hit.record.uid, hit.target.threads)
            for error in unusable:
                warn(str(error))
            return made, unusable[0] if unusable else None
    return None, unusable[0] if unusable else None


def not_found(workload: Workload, asked: Asked) -> KernelNotFound:
    """What was looked for, where, what is there instead, and the command that would help."""
    from autotune.run.reordered import reordered

    where = asked.where
    others = _targets(workload, where)
    place = f"{with_threads(asked.threads)} in {named_place(where)}"
    lines = [f"no tuned kernel of {describe(workload)} for this machine{place}"]
    if asked.named:
        lines = [f"no tuned kernel of {describe(workload)} for {asked.named}{place}"]
    if others:
        lines.append(f"stored there: {_listed(others)}")
        numbers = threads_of(others, asked.target)
        missing = sorted({f for t in others for f in backends.lacking(t)})
        if missing:
            lines.append(f"this CPU lacks {', '.join(missing[:8])}" + (" ..." if len(missing) > 8 else ""))
        if numbers:
            lines.append(f"take that: threads={numbers[0]}, on the command line --threads {numbers[0]}")
        elif any(not t.grid and backends.runnable(t) for t in others):
            lines.append("try that of the most similar machine: nearest=True, or autotune best --nearest")
    twin = otherwise_constant(workload)
    what = "tune it first"
    if twin is not None and _targets(twin, where):
        ahead = "known ahead: --constant-weights, or constant_weights=True"
        kind = ahead if twin.dag.constants else "as arguments: without --constant-weights"
        lines.append(f"stored there with its weights {kind}")
        what = "or tune this one"
    rows = row_major(workload)
    if rows is not None and _targets(rows, where):
        lines.append("stored there row-major: without --strides, or strides=")
        what = "or tune this one"
    if workload.dag.open is not None:
        from autotune.run.wider import wider

        held = next((w for w in wider(workload, where) if _targets(w, where)), None)
        if held is not None:
            lines.append(f"stored there for a wider range, which load takes: {describe(held)}")
    if not others and (other_order := reordered(workload, where)) is not None:
        lines.append(other_order)
        what = "or tune this one"
    lines.append(f"{what}: {tune_command(workload, str(locate(where)), asked.threads, asked.named)}")
    return KernelNotFound("\n".join(lines), "or take a schedule that is not tuned: fallback=True")


def with_threads(threads: int | None) -> str:
    """`` with 2 threads``; nothing for any number."""
    return "" if threads is None else f" with {threads} thread{'s' if threads > 1 else ''}"


def named_place(where: str) -> str:
    """The place of a log, and whether nothing is there."""
    place = locate(where)
    return f"{place}" if place.exists() else f"{place}, which does not exist"


def stored_elsewhere(workload: Workload, where: str) -> str:
    """``stored: cpu znver4, 1 thread`` for what a log has of a workload, for any target; "" for nothing."""
    others = _targets(workload, where)
    return f"stored: {_listed(others)}" if others else ""


def threads_of(others: Iterable[Target], wanted: Target) -> list[int]:
    """Numbers of threads that this machine has kernels of, among targets of a log."""
    same = (t for t in others if replace(t, threads=wanted.threads) == wanted)
    return sorted({t.threads for t in same if t.threads <= targets.usable_cpus()})


def _listed(others: Iterable[Target]) -> str:
    shown = sorted({targets.brief(t) for t in others})
    return "; ".join(shown[:5]) + (" ..." if len(shown) > 5 else "")


def _targets(workload: Workload, where: str) -> list[Target]:
    """Every target that the log has a kernel of a workload for."""
    found: list[Target] = []
    lookup.best(where, workload.digest, lambda t: bool(found.append(t)))  # type: ignore[func-returns-value]
    return found
