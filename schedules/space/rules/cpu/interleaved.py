"""Rule for reductions of interleaved rows: a row goes through memory in runs shorter than a vector, between
those of its neighbours. So lie the groups of channels of an image with channels last.

Such a reduction is done in two (rfactor): partial results, one for each place of a run, whose lanes go over
the runs of neighbouring rows; then their reduction.
"""

from __future__ import annotations

from copy import copy

from schedules import affine
from schedules.errors import ScheduleError
from schedules.expr import Const, Load, Var
from schedules.ir import Block, Nest
from schedules.ir.nest import apart, find_block
from schedules.ir.strides import goes_on, known_strides
from schedules.schedule import Schedule
from schedules.space.rules.patterns import extents, is_row_reduction, is_short_window, operands, spatial
from schedules.space.sketch_builder import SketchBuilder


def split_interleaved(d: SketchBuilder) -> None:
    """Split all reductions of interleaved rows. Call it before any stage is scheduled."""
    found = {n: x for n in d.s.blocks() if (x := _interleaved(d, d.block(n))) is not None}
    trial = copy(d.s)  # a step may be refused
    try:
        partials = [_split(trial, d.block(name), x) for name, x in found.items()]
        for buffer, rank in dict.fromkeys((x.buffer, len(x.indices)) for x in found.values() if _is_split(x)):
            trial.merge_dims(buffer, rank - 2, 2)
    except ScheduleError:
        return
    d.s = trial
    d.roots |= {*found, *partials}
    d.windows |= {*partials}


def _split(s: Schedule, b: Block, run: Load) -> str:
    """Make the run of a row that ``run`` loads an axis of partial results, and one with the last axis of the
    rows. Returns their block."""
    loops = s.loops(b.name)
    rows = len(spatial(b))
    inner = next(v for i, v in zip(b.iters, loops, strict=True) if i.var == _run(run))
    partial = s.rfactor(b.name, inner)
    s.reorder(loops[rows - 1], inner, *(v for v in loops[rows:] if v != inner))
    s.merge_axes(loops[rows - 1], inner)
    for w in find_block(s.nest, partial).writes:
        s.merge_dims(w.buffer, rows - 1, 2)
    return partial


def _interleaved(d: SketchBuilder, b: Block) -> Load | None:
    """A load of a reduction of rows that are interleaved."""
    lanes = d.lanes_of(d.dtype(b))
    if not is_row_reduction(d.s.nest, b) or is_short_window(d.s.nest, b) or not apart(b):
        return None
    return next((x for x in operands(b) if _is_interleaved(d.s.nest, b, x, lanes)), None)


def _is_interleaved(nest: Nest, b: Block, x: Load, lanes: int) -> bool:
    """Whether a load goes along the last axis of the rows, and within a step of that along one of the
    reduction, both from end to end. The latter is shorter than a vector, and some other one is not."""
    n, axes = extents(b), spatial(b)
    if not x.indices or not axes:
        return False
    lies = nest.buffer(x.buffer)
    if known_strides(lies)[-1] != 1 or (_is_split(x) and not goes_on(lies, len(x.indices) - 2)):
        return False
    row, run = axes[-1], _run(x)
    long = any(n[i.var] >= lanes for i in b.iters if i.kind == "reduce" and i.var != run)
    if run in axes or run not in n or not long or not 1 < n[run] < lanes or n[row] < 2:
        return False
    shape = lies.shape
    if _is_split(x):
        return x.indices[-2] == Var(row) and shape[-2:] == (Const(n[row]), Const(n[run]))
    terms, start = affine.linear(x.indices[-1])
    steps = {Var(row): Const(n[run]), Var(run): Const(1)}
    return terms == steps and start == Const(0) and shape[-1] == Const(n[row] * n[run])


def _is_split(x: Load) -> bool:
    """Whether the rows and their runs are two dimensions of what is loaded."""
    return len(x.indices) > 1 and isinstance(x.indices[-1], Var)


def _run(x: Load) -> str:
    """The axis along which a load goes in single steps; "" if there is none."""
    terms, _ = affine.linear(x.indices[-1])
    return next((a.name for a, c in terms.items() if isinstance(a, Var) and c == Const(1)), "")
