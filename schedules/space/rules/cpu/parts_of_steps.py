"""A stage within a step of a scan, in loops of its own: in vectors, and its sums in registers."""

from __future__ import annotations

from collections.abc import Sequence

from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Load, Var
from schedules.ir import Loop
from schedules.ir.nest import vars_bound
from schedules.space.rules.cpu.copies import schedule_packing
from schedules.space.rules.cpu.packed_operands import pack_operand
from schedules.space.rules.cpu.sums_ahead import is_read_in_part, skip_unread
from schedules.space.rules.patterns import (
    depends,
    is_gathered,
    operands,
    spatial,
    unit_stride_vars,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Most lanes of a loop that becomes vectors as it is.
MOST_LANES = 64


def schedule_in_step(d: SketchBuilder, name: str, step: str, lanes: bool) -> None:
    """Schedule the loops of a block that are inside of loop ``step``: the last one of its axes in vectors,
    sums outside of these. ``lanes``: whether vectors are wanted."""
    own = _inside(d, name, step)
    if not own:
        return
    b = d.block(name)
    reduce = [x for x in own if x.var in vars_bound(b, "reduce")]
    points = [x for x in own if x not in reduce]
    packed = _packed(d, name, own) if reduce and points and lanes else None
    if reduce and packed is None and (not points or not lanes or not _along_points(d, name)):
        _dots(d, name, reduce, points)
        return
    if not lanes or not points:
        return
    last = next((x for x in reversed(points) if extent(x) != 1), points[-1])
    rest = [x.var for x in points if x is not last]
    w = d.lanes_of(d.dtype(b))
    if (0 < extent(last) <= MOST_LANES and not reduce) or extent(last) == 0:
        outer, inner = [], last.var
    else:
        vectors = (1, 2, 4, 8, 16) if reduce else (1, 2, 4)  # functions in many vectors compile for long
        fits = [w * k for k in vectors if w * k <= extent(last)] or [extent(last)]
        cut = not reduce and (_chooses(d, name, last.var) or is_read_in_part(d, name))
        tail = "guard" if reduce or cut else "shift"
        vec = d.choice(f"{name}.vec", fits)
        o, inner = d.s.split(last.var, (None, vec), tail)
        outer = [o]
        if cut or reduce:
            d.s.partition(o)
        if packed is not None:
            copy, panel = pack_operand(d, name, *packed, vec)
            schedule_packing(d, copy, panel, parallel=True)
            d.done.add(copy)
    in_order(d, name, [*rest, *outer, *(x.var for x in reduce), inner])
    d.s.vectorize(inner)
    if outer:
        skip_unread(d, name, {spatial(b)[-1]: vec})
    if reduce and b.init:
        d.s.decompose_reduction(name, reduce[0].var)  # now in vectors too, so that sums stay in registers


def _chooses(d: SketchBuilder, name: str, loop: str) -> bool:
    """Whether what a block computes differs along a loop, as before and behind a diagonal: most vectors are
    on one side of it, and need not ask."""
    b = d.block(name)
    axes = {i.var for i, e in zip(b.iters, b.binds, strict=True) if loop in E.variables(e)}
    return any(
        E.dtype_of(c.a) == E.INDEX and axes & E.variables(c)
        for v in b.values
        for x in E.walk(v)
        if isinstance(x, E.Select)
        for c in E.conjuncts(x.cond)
        if isinstance(c, E.Compare)
    )


def _packed(d: SketchBuilder, name: str, own: Sequence[Loop]) -> tuple[Load, str] | None:
    """(What a sum reads at every step anew and lies in memory before the first one, its axis in vectors), if
    it is packed in the order in which it is read: so it is copied once, and read from end to end."""
    b = d.block(name)
    v = vector_axis(b)
    inside = {x.var for x in own}
    moving = {i.var for i, e in zip(b.iters, b.binds, strict=True) if not E.variables(e) <= inside}
    if v is None:
        return None
    for x in operands(b):
        at = [n for n, i in enumerate(x.indices) if v in E.variables(i)]
        still = x.buffer in d.s.nest.params and not any(depends(x, a) for a in moving)
        if still and not is_gathered(x) and len(at) == 1 and x.indices[at[0]] == Var(v):
            if any(depends(x, i.var) for i in b.iters if i.kind == "reduce"):
                return (x, v) if d.choose(f"{name}.weights", ("packed", "as they lie")) == "packed" else None
    return None


def in_order(d: SketchBuilder, name: str, loops: list[str]) -> None:
    """Bring loops of a block into an order, if they are in another one."""
    if [x.var for x in d.loops(name) if x.var in loops] != loops:
        d.s.reorder(*loops)


def _inside(d: SketchBuilder, name: str, step: str) -> list[Loop]:
    loops = d.loops(name)
    at = next(n for n, x in enumerate(loops) if x.var == step)
    return loops[at + 1 :]


def _along_points(d: SketchBuilder, name: str) -> bool:
    """Whether what a sum reads lies side by side along its last axis, or is the same there."""
    b = d.block(name)
    v = vector_axis(b)
    return v is not None and all(v in unit_stride_vars(d.s.nest, x) or not depends(x, v) for x in operands(b))


def _dots(d: SketchBuilder, name: str, reduce: list[Loop], points: list[Loop]) -> None:
    """Partial sums in the lanes of vectors, which are added up at the end of each sum."""
    b = d.block(name)
    last = reduce[-1]
    w = d.lanes_of(d.dtype(b))
    if extent(last) < w:
        return
    fits = [w * k for k in (1, 2, 4) if w * k <= extent(last)]
    _, lane = d.s.split(last.var, (None, d.choice(f"{name}.lanes", fits)))
    try:
        partial = d.s.rfactor(name, lane)
    except ScheduleError:
        return
    *rest, last_lane = d.loops(name)
    inside = [x.var for x in rest if x.var in vars_bound(d.block(name), "spatial")]
    if points:
        d.s.compute_at(partial, inside[-1])
        d.s.decompose_reduction(name, last_lane.var)
        d.s.vectorize(last_lane.var)
    sums, own = d.own_apart(partial)
    in_order(d, partial, [*sums, *own])
    for x in own[:-1]:
        d.s.unroll(x)
    d.s.vectorize(own[-1])
    if sums:
        d.s.partition(sums[-1])
        d.s.decompose_reduction(partial, sums[0])
    if not points:
        d.s.decompose_reduction(name, last_lane.var)
        d.s.vectorize(last_lane.var)
