"""Rule for reductions of reductions: ``y[n] = sum over g of s[n, g] * (sum over t of x[g, t] * w[n, g, t])``.

So is a product whose weights are scaled by groups: the sum of a group is scaled, and summed again. The inner
reduction is computed inside the loops of the outer one, a few vectors of outputs at a time::

    for tiles of outputs (parallel):
      sum = 0
      for g:
        for vectors of the tile:
          part = 0
          for t: part += x[g, t] * w[g, t, vector]
          sum += s[g, vector] * part

All partial results are in registers. What is known ahead is packed in panels of a tile, in the order in which
it is read, so that memory is one stream an operand. So are the kernels of GGML and MLAS for weights of four
bits; here it follows from the expression alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from schedules import expr as E
from schedules.dtypes import is_storage
from schedules.expr import Cast, Expr, Hole, Load, Var
from schedules.ir import Block
from schedules.ir.nest import behind, reads
from schedules.primitives.base import as_expr
from schedules.primitives.stage_factor import factors
from schedules.space.rules.cpu.copies import schedule_copy
from schedules.space.rules.cpu.nested_dots import Dots, compute_factor, dots_for, fit_signs, prepare_dots
from schedules.space.rules.cpu.nested_levels import (
    NestLevel,
    digit_axes,
    inner_reductions,
    levels_of,
    pack_panels,
    packable,
    split_digits,
)
from schedules.space.rules.cpu.prefetching import prefetch_groups
from schedules.space.rules.parts import lanes_last
from schedules.space.rules.patterns import (
    depends,
    extents,
    operands,
    spatial,
    unit_stride_vars,
    uses,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Vectors of a panel, and the most of them that are computed together. Wider panels are read no faster.
PANEL = (1, 2, 4)
TOGETHER = 4
# Panels for each thread, at least, where only the widest are offered.
PANELS = 2
# Most rows of a tile: each has registers of its own for both sums.
ROWS = 8
# Unrolled steps of the innermost reduction that are offered, and runs of an instruction along it.
STEPS = (1, 2, 4, 8, 16, 32)
STEPS_OF_DOTS = (1, 2, 4, 8)


def find_nested(d: SketchBuilder) -> None:
    """Note all reductions that reductions alone read (`SketchBuilder.nested`), if that is chosen. Call it
    before any stage is scheduled."""
    inner = inner_reductions(d)
    for y in (y for y in d.s.blocks() if y not in inner.values()):
        chain = [y]
        while chain[-1] in inner:
            chain.append(inner[chain[-1]])
        b = d.block(y)
        v = vector_axis(b)
        if v is None or extents(b)[v] < d.lanes_of(d.dtype(b)):
            continue  # no vector is full
        if len(chain) == 1 and not _is_of_stored_weights(d, b, v):
            continue
        if d.choose(f"{y}.sums", ("", "nested" if len(chain) > 1 else "panels")):
            d.nested[y] = tuple(chain)
            fit_signs(d, chain[-1], _own_axis(d, chain, v))
            split_digits(d, chain[-1])


def _own_axis(d: SketchBuilder, chain: Sequence[str], v: str) -> str:
    """The axis of the innermost reduction that is axis ``v`` of the outermost one."""
    for outer, inner in pairwise(chain):
        p = d.block(inner)
        at = next(x.indices for x in reads(d.block(outer)) if x.buffer == p.writes[0].buffer)
        v = dict(zip(at, spatial(p), strict=True))[Var(v)]
    return v


def _is_of_stored_weights(d: SketchBuilder, b: Block, v: str) -> bool:
    """Whether a reduction reads what is known ahead, kept in fewer bits than it is computed in, for a few
    rows: memory then takes as long as the sums. Codes that are unpacked are products by no other rule, so
    that they may serve any number of rows."""
    if b.reducer is None:
        return False
    codes = {x for f in factors(b.values[0]) if _is_unpacked(f) for x in E.loads(f)}
    return any(
        is_storage(x.dtype) and x.buffer in d.s.dag.constants and Var(v) in x.indices
        and (x in codes or uses(b, x) <= ROWS)
        for x in operands(b)
    )  # fmt: skip


def _is_unpacked(e: Expr) -> bool:
    """Whether a factor is more than what is read, whatever it is cast to."""
    while isinstance(e, Cast):
        e = e.a
    return not isinstance(e, Load)


def schedule_nested(d: SketchBuilder, chain: Sequence[str], consumer: str) -> None:
    """Schedule reductions, each read by the one before it in ``chain``, in tiles of what ``consumer`` stores.
    It reads the first of them at its own iterations."""
    c, levels = d.block(consumer), levels_of(d, chain, consumer)
    d.done |= set(chain)
    n, axes, first = extents(c), spatial(c), chain[0]
    v = vector_axis(c)
    assert v is not None
    found = dots_for(d, levels[-1], v)
    way = d.choose(f"{chain[-1]}.with", ("", *found)) if found else ""
    w = max(d.lanes_of(d.dtype(d.block(x.name))) for x in levels)
    dots = None
    if way:
        dots = prepare_dots(d, levels, v, found[way])
        w = max(w, dots.lanes)
    panel = _panel(d, first, n[v], w)
    vec = d.divisor(f"{first}.vec", as_expr(panel), cap=TOGETHER * w, least=w)
    packed = _packed(d, levels, v, panel, dots)
    rows = next((a for a in reversed(axes) if a != v and n[a] > 1 and _reuses(d, levels, a)), "")
    tile = d.choice(f"{first}.{rows}", range(1, min(ROWS, n[rows]) + 1)) if rows else 1
    outer: dict[str, str] = {}
    others, runs, lanes = [], "", ""
    for axis, loop in zip(axes, [x.var for x in d.loops(consumer)], strict=True):
        if axis == v:
            o, inside = d.s.split(loop, (None, panel), "guard" if packed else "shift")
            runs, lanes = d.s.split(inside, (None, vec))
        elif axis == rows:
            o, i = d.s.split(loop, (None, tile), "shift")
            others.append(i)
        else:
            o = loop
        outer[axis] = o
    again = _read_again(d, levels, v, axes, packed)
    by_panels, by_rows = [outer[a] for a in axes if a not in again], [outer[a] for a in again]
    d.s.reorder(*by_panels, *by_rows, *others, runs, lanes)
    if _is_open(d, levels[0], again):
        tiles, shared = by_rows[-1], by_panels
    else:
        tiles = d.fused((*by_panels, *by_rows))
        shared = [tiles]
    for x in (*others, runs):
        d.s.unroll(x)
    d.s.vectorize(lanes)
    _sums(d, levels, v, vec, tiles, dots)
    for name in packed:
        schedule_copy(d, name, parallel=True)
    d.parallel(*shared)


def _panel(d: SketchBuilder, name: str, n: int, w: int) -> int | Hole:
    """Outputs of a panel, of ``n`` and in vectors of ``w``. It is no choice where there are many: so weights
    lie in one way, whatever rows they serve, and programs for one row and for many can share them."""
    wide = [w * k for k in PANEL if w * k <= n] or [w]
    return d.choice(f"{name}.panel", wide if n < PANELS * d.threads * wide[-1] else wide[-1:])


def _read_again(
    d: SketchBuilder, levels: Sequence[NestLevel], v: str, axes: Sequence[str], packed: Sequence[str]
) -> list[str]:
    """Axes of the outputs along which tiles read the same of each copy in panels along ``v``. Their loops are
    inside: a panel stays in the second cache, where all of them would not. If a call tells how long one of
    these is, threads share the panels alone, which must be enough."""
    buffers = {w.buffer for name in packed for w in d.block(name).writes}
    read = [(x, y.axis) for y in levels for x in operands(d.block(y.name)) if x.buffer in buffers]
    again = [a for a in axes if a != v and not any(depends(x, own.get(a, "")) for x, own in read)]
    outputs = extents(d.block(levels[0].name))[levels[0].axis[v]]
    if _is_open(d, levels[0], again) and outputs < d.threads * PANEL[-1] * d.lanes_of("float32"):
        return []
    return again if packed else []


def _is_open(d: SketchBuilder, level: NestLevel, axes: Sequence[str]) -> bool:
    """Whether a call tells the extent of one of these axes of the outputs."""
    return any((level.name, level.axis[a]) in d.open for a in axes)


def _reuses(d: SketchBuilder, levels: Sequence[NestLevel], axis: str) -> bool:
    """Whether an operand is the same along an axis of the outputs."""
    return any(
        axis in level.axis and not depends(x, level.axis[axis])
        for level in levels
        for x in operands(d.block(level.name))
    )


def _packed(
    d: SketchBuilder, levels: Sequence[NestLevel], v: str, panel: int | Hole, dots: Dots | None
) -> list[str]:
    """Copy operands in panels, if that is chosen. Returns the copies."""
    found = [
        (level, x)
        for level in levels
        for x in dict.fromkeys(operands(d.block(level.name)))
        if packable(d, level, x, v)
    ]
    if not found:
        return []
    lie = dots is None and not any(x.buffer in d.copies for _, x in found)
    lie = lie and all(level.axis[v] in unit_stride_vars(d.s.nest, x) for level, x in found)
    if d.choose(f"{levels[0].name}.pack", ("root", "none") if lie else ("root",)) == "none":
        return []
    terms = {} if dots is None else {dots.source: (dots.term, dots.instruction.terms)}
    return [pack_panels(d, levels, level, x, v, panel, *terms.get(level.name, ("", 0))) for level, x in found]


def _sums(
    d: SketchBuilder, levels: Sequence[NestLevel], v: str, vec: int | Hole, tiles: str, dots: Dots | None
) -> None:
    """Compute each reduction in the loops of the one around it, from the tile of outputs on."""
    *around, inner = [x for x in levels if not x.is_factor]
    at, groups = tiles, ""
    for level in around:
        d.s.compute_at(level.name, at)
        at = _outer_sum(d, level, v, vec)
        groups = groups or d.own_apart(level.name)[0][-1]
    d.s.compute_at(inner.name, at)
    walked = _inner_sum(d, inner, v, None if around else vec, dots)
    stored = any(
        is_storage(d.s.nest.buffer(x.buffer).dtype) for y in levels for x in operands(d.block(y.name))
    )
    prefetch_groups(d, groups or walked, levels[0].name, stored)


def _outer_sum(d: SketchBuilder, level: NestLevel, v: str, vec: int | Hole) -> str:
    """Put a reduction outside its tile. Returns the loop over vectors of the tile, in which the next
    reduction is computed."""
    reduce, rows, lanes = _loops(d, level, v)
    runs, lanes = d.s.split(lanes, (None, vec))
    d.s.reorder(*reduce, runs, *rows, lanes)
    for x in (runs, *rows):
        d.s.unroll(x)
    d.s.vectorize(lanes)
    lanes_last(d, level.name, level.axis[v])
    d.s.decompose_reduction(level.name, reduce[0])
    return runs


def _inner_sum(d: SketchBuilder, level: NestLevel, v: str, vec: int | Hole | None, dots: Dots | None) -> str:
    """Put the innermost reduction outside its vectors, or outside the instruction that it is. Some steps of
    it are unrolled. Of digits, as those of the codes in a byte, all are: shifts and masks are then constants.
    ``vec``: the lanes of its vectors where it is alone, and has all of the tile. Returns its outermost
    loop."""
    b = d.block(level.name)
    reduce, points, lanes = _loops(d, level, v)
    axes = digit_axes(d, level, v) if dots is None else dots.digits
    digits = [x for x in reduce if any(x in behind(b, a) for a in axes)]
    terms = [x for x in reduce if dots is not None and x in behind(b, dots.term)]
    walked = [x for x in reduce if x not in digits and x not in terms]
    if dots is not None and not walked and not digits:  # the terms are the whole sum: once round it
        once, term = d.s.split(terms[0], (None, dots.instruction.terms))
        walked, terms = [once], [term]
    elif walked:
        walked += _unrolled(d, level.name, walked.pop(), STEPS if dots is None else STEPS_OF_DOTS)
    wide = vec if dots is None else dots.lanes
    if wide is not None:
        runs, lanes = d.s.split(lanes, (None, wide))
        points.append(runs)
    d.s.reorder(*walked, *digits, *points, lanes, *terms)
    for x in (*digits, *points):
        d.s.unroll(x)
    lanes_last(d, level.name, level.axis[v])
    loops = [*walked, *digits]
    if dots is None:
        d.s.vectorize(lanes)
        d.s.decompose_reduction(level.name, loops[0])
        return loops[0]
    if dots.staged:
        compute_factor(d, level, v, dots, loops[max(len(walked) - 1, 0)])
    init = d.s.decompose_reduction(level.name, loops[0])
    d.s.vectorize(d.own_loops(init)[-1].var)
    d.done.add(init)
    d.s.tensorize(lanes, dots.instruction)
    return loops[0]


def _loops(d: SketchBuilder, level: NestLevel, v: str) -> tuple[list[str], list[str], str]:
    """The loops of a reduction: (those that reduce, those over rows, that over outputs side by side)."""
    reduce, points = d.own_apart(level.name)
    lanes = next(x for x in points if x in behind(d.block(level.name), level.axis[v]))
    return reduce, [x for x in points if x != lanes], lanes


def _unrolled(d: SketchBuilder, name: str, loop: str, counts: Sequence[int]) -> list[str]:
    """Unroll some steps of a reduction: [outer, inner], or [loop] if there is one step."""
    n = extent(next(x for x in d.loops(name) if x.var == loop))
    steps = [k for k in counts if n % k == 0]
    if len(steps) == 1:
        return [loop]
    outer, inner = d.s.split(loop, (None, d.choice(f"{name}.steps", steps)))
    d.s.unroll(inner)
    return [outer, inner]
