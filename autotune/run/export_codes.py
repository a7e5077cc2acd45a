"""Which schedule a shared object for several processors has for each: that of the kernel, the best of the
log, or a first pick."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune import backends
from autotune.backends.building.from_trace import programs
from autotune.backends.building.shared_library import CodeOf
from autotune.codegen.runtime.entry import nbytes_of
from autotune.errors import ArgumentError
from autotune.run.describing import describe
from autotune.run.kernel import Kernel
from autotune.run.stored import OTHERS, first
from autotune.run.warned import warn
from autotune.settings.hooks import hook
from autotune.targets.askable import askable, one_family
from kernels_db import lookup
from kernels_db.records import Hit
from schedules.ir import Buffer
from schedules.ir.arguments import arguments
from schedules.ir.nest import tensor_buffer
from schedules.model import Target, Trace
from schedules.trace_names import to_named


@dataclass(frozen=True)
class ChosenCode:
    """The code of one target. ``name``: as the caller named it. ``chosen_by``: "kernel" for the schedule of
    the kernel, or as of `Kernel`. ``packed``: weights as it reads them, by the number of the input."""

    name: str
    target: Target
    trace: Trace
    chosen_by: str
    packed: Mapping[int, Buffer]
    time_s: float | None = None
    record_id: str | None = None


def chosen_codes(kernel: Kernel, wanted: Sequence[str | Target], where: str) -> list[ChosenCode]:
    """The code of each target, with as many threads as the kernel. ``where``: the log. A first pick comes
    with a warning.

    Raises `TargetError`; `ArgumentError` for targets that no object can have together, or where none has a
    schedule."""
    threads = kernel.target.threads
    goals = [backends.parse(x, threads) for x in wanted]
    names = [_name(x, g) for x, g in zip(wanted, goals, strict=True)]
    one_family(goals)
    double = next((n for i, n in enumerate(names) if n in names[:i]), None)
    if double is not None:
        raise ArgumentError(f"targets names {double} twice; give each once")
    found = [_chosen(kernel, n, g, where) for n, g in zip(names, goals, strict=True)]
    guessed = [c for c in found if c.chosen_by not in ("kernel", "log")]
    if guessed:
        unseen = [c.name for c in guessed if not backends.runnable(c.target)]
        warn(
            f"the log has no schedule of {describe(kernel.workload, threads)}, for "
            f"{', '.join(c.name for c in guessed)}: first picks are exported"
            + (f"; those for {', '.join(unseen)} could not be timed here" if unseen else "")
            + "; tune on such processors and import their logs, or leave these targets out"
        )
    return found


def _name(given: str | Target, goal: Target) -> str:
    """A target as it was named, or by its processor where that was a file or is none of C's comments."""
    word = given if isinstance(given, str) and not given.endswith(".json") else goal.arch
    return re.sub(r"[^\w.+-]", "_", word, flags=re.ASCII)


def codes_of(kernel: Kernel, found: Sequence[ChosenCode]) -> tuple[list[CodeOf], dict[int, Buffer]]:
    """What is compiled, and weights that any code reads packed, by the number of the input, each as large as
    the largest. Raises `ArgumentError` where codes read one in several dtypes."""
    given = tuple(map(tensor_buffer, kernel.workload.dag.params))
    packed: dict[int, Buffer] = {}
    for i in sorted(set[int]().union(*(c.packed for c in found))):
        each = [c.packed.get(i, given[i]) for c in found]
        dtypes = sorted({b.dtype for b in each})
        if len(dtypes) > 1:
            raise ArgumentError(
                f"weight {given[i].name} is read as {' and '.join(dtypes)} by the schedules "
                "of several targets; export the targets one by one, or without constant_weights"
            )
        packed[i] = max(each, key=nbytes_of)
    codes = []
    for c in found:
        copied = {given[i].name: nbytes_of(given[i]) for i in packed if i not in c.packed}
        codes.append(CodeOf(c.trace, c.target, c.name, copied))
    return codes, packed


def _chosen(kernel: Kernel, name: str, goal: Target, where: str) -> ChosenCode:
    own, workload = kernel.target, kernel.workload
    if (own.kind, own.arch) == (goal.kind, goal.arch) and kernel.trace is not None:
        record = kernel.record
        facts = getattr(record, "time_s", None), getattr(record, "uid", None)
        return _code(kernel, name, own, kernel.trace, "kernel", *facts)

    def alike(t: Target) -> bool:
        return (t.kind, t.arch) == (goal.kind, goal.arch) and t.triple.split("-")[0] == goal.triple.split(
            "-"
        )[0]

    def use(hit: Hit) -> ChosenCode:
        trace = to_named(workload, hit.record.trace)
        return _code(kernel, name, hit.target, trace, "log", hit.time_s, hit.record.uid)

    found, _ = first(use, lookup.top(where, workload.digest, alike, goal.threads, OTHERS))
    return found or _first_pick(kernel, name, askable(goal), where)


def _first_pick(kernel: Kernel, name: str, goal: Target, where: str) -> ChosenCode:
    workload = kernel.workload
    if backends.runnable(goal):
        from autotune.run.untuned import untuned

        picked = untuned(workload, goal, where).kernel
        return _code(kernel, name, goal, picked.trace or Trace(), picked.chosen_by)
    pick = hook("pick_elsewhere")(workload, goal, where)
    if pick is None:
        return _code(kernel, name, goal, Trace(), "default")
    return _code(kernel, name, goal, to_named(workload, pick.trace), pick.chosen_by)


def _code(
    kernel: Kernel,
    name: str,
    target: Target,
    trace: Trace,
    chosen_by: str,
    time_s: float | None = None,
    record_id: str | None = None,
) -> ChosenCode:
    """Raises ScheduleError for a trace that is not legal."""
    target = askable(target)
    _, packing = programs(kernel.workload.dag, trace, target)
    names = [t.name for t in kernel.workload.dag.inputs]
    packed = {i: replace(arguments(f.params, f.joined)[-1].buffer, name=names[i]) for i, f in packing.items()}
    return ChosenCode(name, target, trace, chosen_by, packed, time_s, record_id)
