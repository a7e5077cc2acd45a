"""Moves tiles of streamed results to where cache lines begin, which is known only in the call (ADR 19).

A vector of 16 floats is as long as a line. If an array begins within a line (numpy's begin 16 bytes after
one), each vector covers parts of two lines, and streaming stores send both in pieces of 16 bytes. So tiles
move by the rest of the array's first line, `ir.skew`. Tiles of a transposition move along both axes, because
16 by 16 floats are lines of the input too. Figures: docs/measurements/memory-access.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Buffer,
    Guard,
    Loop,
    Stmt,
    Store,
    const,
    in_order,
    loop_nest,
    rows_are_lines,
    seq,
    skew,
    walk,
    with_body,
)
from schedules.ir.exprs import substitute
from schedules.ir.regions import span
from schedules.ir.strides import contiguous_dimension
from schedules.model import LINE
from schedules.passes.simplify import simplify

Loops = tuple[Loop, ...]


def align_streamed_tiles(s: Stmt, params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> Stmt:
    """``s`` with tiles that write ``outputs`` moved to the beginning of their lines, and of lines of the
    arguments that they read. The outputs must not be read.

    Tiles stay in four cases: a tile is shorter than a line; rows are not whole lines, so each would need its
    own shift; what a tile reads is computed for it, or is not a function of the place that it writes; or
    several statements write parts of a row."""
    written = [x.buffer for x in walk(s) if isinstance(x, Store)]
    given = {p.name: p for p in params if p.name not in written}
    for b in params:
        for axis in range(len(b.shape)) if b.name in outputs else ():
            whole = _Axis(b, axis, given, written.count(b.name) == 1)
            further = _moved(s, whole, (), frozenset())
            s = s if further == s else simplify(further)
    return s


@dataclass(frozen=True)
class _Axis:
    """The axis of an output along which tiles move. ``given``: arguments that nothing writes. ``alone``:
    whether one statement writes all of the output."""

    output: Buffer
    axis: int
    given: Mapping[str, Buffer]
    alone: bool

    @property
    def extent(self) -> int:
        return const(self.output.shape[self.axis]) or 0

    def array(self, store: Store) -> Buffer | None:
        """The array that is contiguous along the axis, if its rows are whole lines; else None."""
        index = store.indices[self.axis]
        given = [(self.given[x.buffer], x.indices) for x in E.loads(store.value) if x.buffer in self.given]
        read = [b for b, at in given if (d := contiguous_dimension(b)) is not None and at[d] == index]
        found = [self.output] if self.axis == contiguous_dimension(self.output) else read[-1:]
        return found[0] if found and rows_are_lines(found[0]) else None


def _moved(s: Stmt, to: _Axis, outer: Loops, tested: frozenset[str]) -> Stmt:
    """``s`` with its tiles moved along an axis by the skew of the array that is contiguous there. Tiles that
    would go beyond the end stay, and the first is also computed in its old place. As tiles are wider than the
    skew, nothing is left out. ``tested``: variables of conditions around ``s``."""
    tile = _tile(s, to.output.name)
    if tile is None:
        around = (*outer, s) if isinstance(s, Loop) else outer
        asked = tested | E.variables(s.cond) if isinstance(s, Guard) else tested
        return with_body(s, lambda x: _moved(x, to, around, asked))
    store, loops = tile
    index, along = store.indices[to.axis], to.array(store)
    own = [x for x in loops if x.var in E.variables(index)]
    width = _width(index, own)
    if along is None or width is None or width * DTYPES[along.dtype].itemsize < LINE or width >= to.extent:
        return s
    others = [i for k, i in enumerate(store.indices) if k != to.axis]
    begin = affine.simplify(E.substitute(index, {x.var: Const(0) for x in own}), {})
    over = [x for x in outer if x.var in E.variables(begin)]
    moving = frozenset(x.var for x in (*own, *over))
    lane = next(Var(x.var) for x in own if affine.linear(index)[0][Var(x.var)] == Const(1))
    if any(x.var in E.variables(i) for x in own for i in others) or not over or tested & moving:
        return s
    if not to.alone and not _covers(begin, width, to.extent, outer):
        return s
    read = [x for x in E.loads(store.value) if x.buffer not in to.given]
    if not all(_there(x, over, s, index, begin, width) for x in read):
        return s
    if not _follows(store.value, index, lane, moving, others):
        return s
    moved = substitute(s, {lane.name: lane + skew(along.name)})
    further, most = begin + skew(along.name), to.extent - width
    first = E.all_of(E.compare("<=", begin, 0), E.compare("<", 0, skew(along.name)))
    here = E.any_of(first, E.compare("<", most, further))
    return seq(Guard(E.compare("<=", further, most), moved), Guard(here, s))


def _tile(s: Stmt, output: str) -> tuple[Store, list[Loop]] | None:
    """(store, loops) if ``s`` is unrolled and vectorized loops around a store of the output; else None."""
    loops, s = loop_nest(s)
    tiled = bool(loops) and all(x.kind in ("unroll", "vectorize") for x in loops)
    return (s, loops) if tiled and isinstance(s, Store) and s.buffer == output else None


def _width(index: Expr, own: list[Loop]) -> int | None:
    """Number of consecutive values that ``index`` takes in these loops, if it takes each once; else None."""
    terms, _ = affine.linear(index)
    steps = [(terms.get(Var(x.var)), const(x.extent)) for x in own]
    rest = [t for t in terms if t not in [Var(x.var) for x in own]]
    if any(x.var in E.variables(t) for x in own for t in rest):
        return None
    width = 1
    for step, count in sorted(((int(c.value), n) for c, n in steps if isinstance(c, Const) and n)):
        if step != width:
            return None
        width *= count
    return width if own and all(isinstance(c, Const) and n for c, n in steps) else None


def _covers(begin: Expr, width: int, extent: int, outer: Loops) -> bool:
    """Whether tiles cover the whole axis in every iteration of the other loops."""
    counts = {Var(x.var): const(x.extent) for x in outer}
    steps = [(counts.get(t), c) for t, c in affine.linear(begin)[0].items() if isinstance(t, Var)]
    for step, count in sorted((int(c.value), n) for n, c in steps if n and isinstance(c, Const)):
        if 0 < step <= width:
            width += step * (count - 1)
    return width >= extent


def _follows(e: Expr, index: Expr, lane: Var, moving: frozenset[str], others: list[Expr]) -> bool:
    """Whether ``e``, as it is written, is a function of the written place. Elsewhere it may have been
    simplified for one tile: the quotient of ``16 t + lane`` by 16 is ``t`` only there."""
    if not E.variables(e) & moving or e in others:
        return True
    if E.dtype_of(e) == E.INDEX:
        step = affine.linear(e)[0].get(lane)
        if isinstance(step, Const):
            rest, _ = affine.linear(affine.simplify(e - step * index, {}))
            return all(_follows(t, index, lane, moving, others) for t in rest)
    parts = E.children(e)
    return bool(parts) and all(_follows(x, index, lane, moving, others) for x in parts)


def _there(x: Load, over: list[Loop], tile: Stmt, index: Expr, begin: Expr, width: int) -> bool:
    """Whether what a tile reads is also there for the next one: it is computed before all tiles, or after
    this or an earlier iteration has read what was there before (`software_pipeline`)."""
    loop = over[0]
    writes = [y for y in walk(loop.body) if isinstance(y, Store) and y.buffer == x.buffer]
    if not writes:
        return True
    stages = list(in_order(loop.body))
    while stages and stages[0] is not tile:
        stages.pop(0)
    after = [y for z in stages[1:] for y in walk(z)]
    step = affine.linear(begin)[0].get(Var(loop.var))
    first = {id(y) for y in writes} - {id(y) for y in after}
    if first or step != Const(width) or index not in x.indices:
        return False
    loops = {y.var: y.extent for y in after if isinstance(y, Loop)}
    places = [span(y.indices[x.indices.index(index)], loops) for y in writes]
    return all(p is not None and _within(p[0] - begin, p[1], width) for p in places)


def _within(start: Expr, count: Expr, width: int) -> bool:
    first, n = const(affine.simplify(start, {})), const(count)
    return first is not None and n is not None and first + n <= width
