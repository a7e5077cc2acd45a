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
they are read, so that memory is one stream an operand. It is the loop nest of what GGML and MLAS have by hand
for weights of four bits, derived from the expression alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schedules import expr as E
from schedules.expr import Const, Hole, Load, Var
from schedules.ir import Block
from schedules.ir.nest import behind, reads, writers
from schedules.primitives.base import as_expr
from schedules.space.rules.cpu.copies import schedule_copy
from schedules.space.rules.cpu.prefetching import prefetch_groups
from schedules.space.rules.parts import copy_read
from schedules.space.rules.patterns import (
    depends,
    extents,
    is_gathered,
    operands,
    sole_reader,
    spatial,
    unit_stride_vars,
    vector_axis,
)
from schedules.space.sketch_builder import SketchBuilder, extent

# Vectors of a panel, and of them those that are computed together.
PANEL = (1, 2, 4, 8)
TOGETHER = 4
# Most rows of a tile: each has registers of its own for both sums.
ROWS = 8
# Unrolled steps of the innermost reduction that are offered. Codes of few bits lie several in a byte: as many
# steps have constants for shifts and masks.
STEPS = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Level:
    """A reduction of the nest. ``axis``: {axis of the outputs: its own axis}."""

    name: str
    axis: dict[str, str]


def find_nested(d: SketchBuilder) -> None:
    """Note all reductions that are read by reductions alone (`SketchBuilder.nested`), if that is chosen. Call
    it before any stage is scheduled."""
    inner = {y: p for p in d.s.blocks() if (y := _reduction_around(d, d.block(p))) is not None}
    for y in inner:
        if y in inner.values():
            continue
        chain = [y]
        while chain[-1] in inner:
            chain.append(inner[chain[-1]])
        if _lanes(d, chain) and d.choose(f"{y}.sums", ("", "nested")):
            d.nested[y] = tuple(chain)


def _reduction_around(d: SketchBuilder, p: Block) -> str | None:
    """The reduction that alone reads the results of a reduction, one in each of its iterations."""
    y = sole_reader(d.s.nest, p)
    if p.reducer is None or y is None or y.reducer is None or len(y.writes) != 1:
        return None
    places = {x.indices for x in reads(y) if x.buffer == p.writes[0].buffer}
    n = extents(y)
    need = {v for v in n if n[v] > 1}
    for at in places:
        used = [i.name for i in at if isinstance(i, Var)]
        whole = all(isinstance(i, Var) or i == Const(0) for i in at)
        if len(places) > 1 or not whole or len(set(used)) < len(used) or not need <= set(used):
            return None
    return y.name if any(i.kind == "reduce" and n[i.var] > 1 for i in y.iters) else None


def _lanes(d: SketchBuilder, chain: Sequence[str]) -> str | None:
    """The axis of the outputs that fills vectors. None if no vector is full."""
    y = d.block(chain[0])
    v = vector_axis(y)
    return v if v is not None and extents(y)[v] >= d.lanes_of(d.dtype(y)) else None


def _levels(d: SketchBuilder, chain: Sequence[str], consumer: str) -> list[Level]:
    """The reductions from the outermost on, with their axes for each of the consumer."""
    axes = spatial(d.block(consumer))
    out = [Level(chain[0], dict(zip(axes, spatial(d.block(chain[0])), strict=True)))]
    for name in chain[1:]:
        p, y = d.block(name), d.block(out[-1].name)
        at = next(x.indices for x in reads(y) if x.buffer == p.writes[0].buffer)
        place = {i.name: v for i, v in zip(at, spatial(p), strict=True) if isinstance(i, Var)}
        out.append(Level(name, {a: place[v] for a, v in out[-1].axis.items() if v in place}))
    return out


def schedule_nested(d: SketchBuilder, chain: Sequence[str], consumer: str) -> None:
    """Schedule reductions, each read by the one before it in ``chain``, in tiles of what ``consumer`` stores.
    It reads the first of them at its own iterations."""
    c, levels = d.block(consumer), _levels(d, chain, consumer)
    d.done |= set(chain)
    n, axes, w = extents(c), spatial(c), d.lanes_of(d.dtype(d.block(chain[-1])))
    v = vector_axis(c)
    assert v is not None
    first = chain[0]
    panel = d.choice(f"{first}.panel", [w * k for k in PANEL if w * k <= n[v]] or [w])
    vec = d.divisor(f"{first}.vec", as_expr(panel), cap=TOGETHER * w, least=w)
    packed = _pack(d, levels, v, panel)
    rows = next((a for a in reversed(axes) if a != v and n[a] > 1 and _reuses(d, levels, a)), "")
    tile = d.choice(f"{first}.{rows}", range(1, min(ROWS, n[rows]) + 1)) if rows else 1
    tail = "guard" if packed else "shift"
    outer, inner = [], []
    for axis, loop in zip(axes, [x.var for x in d.loops(consumer)], strict=True):
        if axis == v:
            o, i = d.s.split(loop, (None, panel), tail)
        elif axis == rows:
            o, i = d.s.split(loop, (None, tile), "shift")
        else:
            outer.append(loop)
            continue
        outer.append(o)
        inner.append((axis, i))
    lanes = next(i for a, i in inner if a == v)
    runs, lanes = d.s.split(lanes, (None, vec))
    others = [i for a, i in inner if a != v]
    d.s.reorder(*outer, *others, runs, lanes)
    tiles = d.fused(outer)
    for x in (*others, runs):
        d.s.unroll(x)
    d.s.vectorize(lanes)
    at, walk = tiles, ""
    for k, level in enumerate(levels):
        d.s.compute_at(level.name, at)
        at = _sum(d, level, v, vec, innermost=k == len(levels) - 1)
        walk = walk or d.own_apart(level.name)[0][-1]
    prefetch_groups(d, walk, first)
    for name in packed:
        schedule_copy(d, name, parallel=True)
    d.parallel(tiles)


def _reuses(d: SketchBuilder, levels: Sequence[Level], axis: str) -> bool:
    """Whether an operand is the same along an axis of the outputs."""
    return any(
        axis in level.axis and not depends(x, level.axis[axis])
        for level in levels
        for x in operands(d.block(level.name))
    )


def _sum(d: SketchBuilder, level: Level, v: str, vec: int | Hole, innermost: bool) -> str:
    """Put the reduction outside its tile. Returns the loop in which the next reduction is computed: that over
    the vectors of the tile."""
    b = d.block(level.name)
    reduce, points = d.own_apart(level.name)
    lanes = next(x for x in points if x in behind(b, level.axis[v]))
    rows = [x for x in points if x != lanes]
    runs, lanes = d.s.split(lanes, (None, vec))
    steps = _unrolled(d, level.name, reduce[-1]) if innermost else reduce[-1:]
    order = (runs, *rows) if not innermost else (*rows, runs)
    d.s.reorder(*reduce[:-1], *steps, *order, lanes)
    for x in order:
        d.s.unroll(x)
    d.s.vectorize(lanes)
    for w in d.block(level.name).writes:  # lanes side by side
        at = w.indices.index(Var(level.axis[v]))
        if at != len(w.indices) - 1:
            d.s.reorder_storage(w.buffer, [*(k for k in range(len(w.indices)) if k != at), at])
    d.s.decompose_reduction(level.name, [*reduce[:-1], *steps][0])
    return runs


def _unrolled(d: SketchBuilder, name: str, loop: str) -> list[str]:
    """Unroll some steps of a reduction: [outer, inner], or [loop] if there is one step."""
    n = extent(next(x for x in d.loops(name) if x.var == loop))
    steps = [k for k in STEPS if n % k == 0]
    if len(steps) == 1:
        return [loop]
    outer, inner = d.s.split(loop, (None, d.choice(f"{name}.steps", steps)))
    d.s.unroll(inner)
    return [outer, inner]


def _pack(d: SketchBuilder, levels: Sequence[Level], v: str, panel: int | Hole) -> list[str]:
    """Copy operands in panels, in the order in which the nest reads them. Returns the copies."""
    found: list[tuple[Level, Load]] = []
    for level in levels:
        for x in operands(d.block(level.name)):
            if _can_be_packed(d, level, x, v):
                found.append((level, x))
    if not found:
        return []
    apart = all(level.axis[v] in unit_stride_vars(d.s.nest, x) for level, x in found)
    if d.choose(f"{levels[0].name}.pack", ("root", "none") if apart else ("root",)) == "none":
        return []
    return [_pack_one(d, levels, level, x, v, panel) for level, x in found]


def _can_be_packed(d: SketchBuilder, level: Level, x: Load, v: str) -> bool:
    own = level.axis[v]
    alone = sum(own in E.variables(i) for i in x.indices) == 1 and any(i == Var(own) for i in x.indices)
    return x.buffer in d.s.nest.params and alone and not is_gathered(x)


def _pack_one(
    d: SketchBuilder, levels: Sequence[Level], level: Level, x: Load, v: str, panel: int | Hole
) -> str:
    """Copy an operand in panels along ``v``: before them what no reduction walks through, behind them the
    rest, that of the outermost reduction first."""
    order = _order(d, levels, level)
    rank = len(x.indices)
    at = next(k for k, i in enumerate(x.indices) if i == Var(level.axis[v]))

    def depth(k: int) -> int:
        return max((order[r] for r in E.variables(x.indices[k]) if r in order), default=-1)

    others = sorted((k for k in range(rank) if k != at), key=depth)
    before = [k for k in others if depth(k) < 0]
    name = copy_read(d, level.name, x)
    d.s.pack(name, [panel if k == at else 0 for k in range(rank)], [*before, at, *others[len(before) :], rank])
    d.done.add(name)
    return name


def _order(d: SketchBuilder, levels: Sequence[Level], level: Level) -> dict[str, int]:
    """{axis of a reduction that some reduction walks along: how deep in the nest that is}."""
    walked: dict[str, int] = {}
    place: dict[str, int] = {}
    for k, here in enumerate(levels):
        b = d.block(here.name)
        if k:
            made = b.writes[0].buffer
            at = next(x.indices for x in reads(d.block(levels[k - 1].name)) if x.buffer == made)
            place = {
                own: place[i.name]
                for i, own in zip(at, spatial(b), strict=True)
                if isinstance(i, Var) and i.name in place
            }
        for i in b.iters:
            if i.kind == "reduce":
                place[i.var] = len(walked)
                walked[f"{k}.{i.var}"] = 0
        if here is level:
            return place
    return place
