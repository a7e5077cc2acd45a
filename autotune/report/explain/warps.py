"""Sections on what the warps of a GPU's kernels do, counted by the interpreter of grids."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.report.explain.counters import Countable, countable, iterations, ones, points
from autotune.results.explanation import Row, Section
from schedules.errors import AutotuneError
from schedules.gpu_architectures import features
from schedules.ir import bound_to, const, in_order, walk
from schedules.ir.interp import InterpError
from schedules.ir.warps import BufferCounts, KernelCounts, watch
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space.estimate.gpu.rates import WARP
from schedules.units import percent, size

# Instances of the nest's blocks that are run: about a second if that can be had, at most some seconds.
WANTED, MOST = 40_000, 150_000
ENDS = 2  # blocks of the grid that are run: the first and the last


def sections(schedule: Schedule) -> list[Section]:
    """A section for each kernel; or one that says why nothing was counted."""
    found = countable(schedule, MOST, WANTED, _instances)
    if found is None:
        why = f"two blocks of the grid compute {_instances(schedule):,} points, which are too many to be "
        return [_none(f"{why}interpreted (at most {MOST:,})", schedule)]
    try:
        known = None if schedule.target is None else features(schedule.target)
        program = lower_simt(found.schedule.nest, known)
        kernels = watch(program, ones(program.params), WARP, ends=True)
    except (AutotuneError, InterpError) as err:
        return [_none(f"the interpreter does not run it: {err}", schedule)]
    return [_section(n, k, schedule, found) for n, k in enumerate(kernels)]


def _instances(schedule: Schedule) -> int:
    """Instances of the nest's blocks in the first and the last block of each kernel's grid."""
    total = 0
    for kernel in in_order(schedule.nest.body):
        grid = math.prod(const(x.extent) or 1 for x in walk(kernel) if bound_to(x, "blockIdx"))
        total += sum(n for _, n in iterations(kernel)) * min(ENDS, grid) // grid
    return total


def _none(why: str, schedule: Schedule) -> Section:
    row = Row("problem", f"none: {why}", "definition", {"points": points(schedule.dag)})
    return Section("Counted: what warps access", (row,))


def _section(n: int, k: KernelCounts, schedule: Schedule, found: Countable) -> Section:
    where = f"in {k.blocks} of {k.of_blocks:,} blocks"
    if found.changed:
        where += f" of a smaller problem with the same trace: {found.words}"
    numbers = {"blocks": k.blocks, "of_blocks": k.of_blocks}
    rows = [Row("counted", where, "definition", numbers | {x: new for x, (_, new) in found.changed.items()})]
    rows += [_global(k.of("global")), _shared(k.of("shared")), _conflicts(k.of("shared"))]
    read, written = _bytes(k.of("local"))
    text = f"arrays of threads: {size(read)} read, {size(written)} written"
    rows.append(Row("moved in registers", text, "counter", {"read_bytes": read, "written_bytes": written}))
    part = k.divergent / k.branches if k.branches else 0.0
    text = f"in {k.divergent:,} of {k.branches:,} branches the threads of a warp differ: {percent(part)}"
    if not k.divergent:
        text = f"none: the threads of a warp agree in all {k.branches:,} branches"
    rows.append(Row("divergence", text, "counter", {
        "branches": k.branches, "divergent": k.divergent, "share": part,
    }))  # fmt: skip
    return Section(f"Kernel {n}, counted: what the threads of warps access", tuple(rows))


def _global(buffers: Sequence[BufferCounts]) -> Row:
    read, written = _bytes(buffers)
    cost, least = sum(b.cost for b in buffers), sum(b.least for b in buffers)
    share = least / cost if cost else 1.0
    text = f"{size(read)} read, {size(written)} written, {percent(share)} of the sectors would do"
    worst = max(buffers, key=lambda b: b.cost / b.least, default=None)
    if worst is not None and worst.cost > worst.least:
        text += f"; {worst.name} takes {worst.cost / worst.least:.3g} times as many as it needs"
    numbers = {"read_bytes": read, "written_bytes": written, "sectors": cost, "least": least, "share": share}
    return Row("global memory", text, "counter", numbers)


def _shared(buffers: Sequence[BufferCounts]) -> Row:
    read, written = _bytes(buffers)
    text = f"{size(read)} read, {size(written)} written" if buffers else "not used"
    return Row("moved in shared", text, "counter", {"read_bytes": read, "written_bytes": written})


def _conflicts(buffers: Sequence[BufferCounts]) -> Row:
    cost, least = sum(b.cost for b in buffers), sum(b.least for b in buffers)
    factor = cost / least if least else 1.0
    text = "none"
    if cost > least:
        text = f"{cost:,} turns where {least:,} would do, {factor:.3g} times: "
        bad = sorted((b for b in buffers if b.cost > b.least), key=lambda b: b.least - b.cost)
        text += ", ".join(f"{b.name} {b.cost / b.least:.3g}" for b in bad)
    numbers = {"turns": cost, "least": least, "factor": factor}
    return Row("bank conflicts", text, "counter", numbers)


def _bytes(buffers: Sequence[BufferCounts]) -> tuple[int, int]:
    return sum(b.read_bytes for b in buffers), sum(b.written_bytes for b in buffers)
