"""Rules for copies: padding, and operands packed in the panels that a register tile reads."""

from __future__ import annotations

import math

from schedules.dtypes import computed
from schedules.errors import ScheduleError
from schedules.expr import Const, Var
from schedules.ir.nest import reads
from schedules.ir.strides import as_row_major
from schedules.primitives.vectorize import MAX_LANES
from schedules.space.rules.patterns import unit_stride_vars
from schedules.space.sketch_builder import SketchBuilder, extent, innermost

# Panels that are copied together.
PANELS = 4


def schedule_copy(d: SketchBuilder, name: str, *, parallel: bool) -> None:
    """Schedule a copy: vectors along the loop in which its result is contiguous, outer loops parallel."""
    own = d.own_loops(name)
    if not own:
        raise ScheduleError(f"{name} has no loops of its own")
    last = innermost(d, own)
    w = d.lanes_of(d.dtype(d.block(name)))
    n = extent(last)
    if not n or n <= min(8 * w, MAX_LANES):
        d.s.vectorize(last.var)
    else:
        _, i = d.s.split(last.var, (None, 4 * w), "shift")
        d.s.vectorize(i)
    if parallel:
        _share(d, [x.var for x in own if x is not last])


def schedule_packing(d: SketchBuilder, name: str, panel: int, *, parallel: bool) -> None:
    """Schedule a copy in panels. ``panel``: position of the loop over panels. ``parallel``: whether it is
    made whole and before the loops that read it."""
    across = _contiguous_across(d, name) or _contiguous_together(d, name)
    if across is not None:
        _copy_by_squares(d, name, across, parallel)
        return
    if parallel:
        _group_panels(d, name, panel)
    else:
        _read_along_rows(d, name, panel)
    schedule_copy(d, name, parallel=parallel)


def _contiguous_across(d: SketchBuilder, name: str) -> str | None:
    """The loop along which the source is contiguous, if it is not the innermost one and is long enough for
    whole vectors."""
    b = d.block(name)
    own = d.own_loops(name)
    bound = dict(zip((i.var for i in b.iters), b.binds, strict=True))
    along = [bound[v] for x in reads(b) for v in unit_stride_vars(d.s.nest, x) if v in bound]
    w = d.lanes_of(d.dtype(b))
    return next((x.var for x in own[:-1] if Var(x.var) in along and extent(x) >= w), None)


def _contiguous_together(d: SketchBuilder, name: str) -> str | None:
    """Like `_contiguous_across` for loops that are too short one by one but neighbours in source and copy.
    They are fused."""
    b = d.block(name)
    own = {x.var: extent(x) for x in d.own_loops(name)[:-1]}
    bound = dict(zip((i.var for i in b.iters), b.binds, strict=True))
    source = reads(b)[0]  # a copy reads nothing else
    lies, at = as_row_major(d.s.nest.buffer(source.buffer), source.indices)
    together: list[str] = []
    for n, i, loop in zip(reversed(lies.shape), reversed(at), reversed(own), strict=False):
        if bound.get(getattr(i, "name", "")) != Var(loop):
            break
        together.insert(0, loop)
        if Const(own[loop]) != n:
            break  # a part of this dimension only: outer ones are not contiguous with it
    w = d.lanes_of(d.dtype(b))
    if len(together) < 2 or math.prod(own[x] for x in together) < w:
        return None
    return d.s.fuse(*together)


def schedule_turned(d: SketchBuilder, name: str, at: int) -> None:
    """Store a copy so that it goes on in memory along dimension ``at``, which may have any extent, and make
    it before the loops that read it."""
    loops = [x.var for x in d.own_loops(name)]
    last = [*(k for k in range(len(loops)) if k != at), at]
    d.s.reorder_storage(name, last)
    d.s.reorder(*(loops[k] for k in last))
    across = _contiguous_across(d, name)
    if across is None:
        schedule_copy(d, name, parallel=True)
    else:
        _copy_by_squares(d, name, across, True, "shift")


def _copy_by_squares(d: SketchBuilder, name: str, across: str, parallel: bool, tail: str = "guard") -> None:
    """Copy by squares as wide as a register, which code generation transposes in registers. A panel that is
    not decided yet has a multiple of the lanes in which a sum is computed. Of a dtype of storage a register
    has more: squares are only as wide as that, as tails of wide ones would be copied element by element.
    ``tail``: as of `Split`, along the copy."""
    last, dtype = d.own_loops(name)[-1], d.dtype(d.block(name))
    w = d.lanes_of(dtype)
    if (extent(last) or 1) % w:
        w = min(w, d.lanes_of(computed(dtype)))
    outer, steps = d.s.split(across, (None, w), "shift")
    if extent(last) == w:
        pieces, lane = [], last.var
    else:
        piece, lane = d.s.split(last.var, (None, w), tail)
        pieces = [piece]
    d.s.reorder(outer, *pieces, steps, lane)
    d.s.unroll(steps)
    d.s.vectorize(lane)
    if parallel:
        _share(d, [x.var for x in d.own_loops(name)][: -2 - len(pieces)])


def _share(d: SketchBuilder, outer: list[str]) -> None:
    if outer:
        d.parallel(*outer[:2])


def _read_along_rows(d: SketchBuilder, name: str, panel: int) -> None:
    """Let a copy of a few panels read its source in runs as long as all of them together. Caches and
    prefetchers need that where rows are a power of two apart."""
    loops = [x.var for x in d.own_loops(name)]
    rows = loops[panel + 1 : -1]
    if rows:
        d.s.reorder(*rows, loops[panel], loops[-1])


def _group_panels(d: SketchBuilder, name: str, panel: int) -> None:
    """Copy a few panels together, so that the source is read in longer runs. ``panel``: position of the loop
    over panels."""
    loops = [x.var for x in d.loops(name)]
    outer, inner = d.s.split(loops[panel], (None, PANELS))
    d.s.reorder(outer, *loops[panel + 1 : -1], inner, loops[-1])
    d.s.unroll(inner)
