"""Move tiles of streamed results to where lines of memory begin, which only the call shows.

A vector of 16 floats is a line long. Where arrays begin within a line (numpy's begin 16 bytes after one) each
is a piece of two lines, and stores around the caches send both, in pieces of 16 bytes: a row of softmax takes
half as long again. So tiles move on by what is left of the array's first line, `ir.skew`. Those of a
transposition move along both axes: 16 by 16 floats are lines of the input, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.dtypes import ITEMSIZE
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Buffer,
    Guard,
    Loop,
    Stmt,
    Store,
    const,
    in_order,
    rows_are_lines,
    seq,
    skew,
    walk,
    with_body,
)
from schedules.model import LINE
from schedules.passes.simplify import simplify, substitute
from schedules.regions import span

Loops = tuple[Loop, ...]


def begin_with_lines(s: Stmt, params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> Stmt:
    """``s`` where the tiles that write ``outputs``, which nothing reads, begin with the lines of these, and
    with those of the arguments that they read. Not where tiles are less than a line; where rows are no whole
    lines, so that each would need a shift of its own; where what a tile reads is computed for it; or where
    several statements write parts of a row."""
    written = [x.buffer for x in walk(s) if isinstance(x, Store)]
    given = {p.name: p for p in params if p.name not in written}
    for b in params:
        for axis in range(len(b.shape)) if b.name in outputs else ():
            whole = _Axis(b, axis, given, written.count(b.name) == 1)
            further = _moved(s, whole, ())
            s = s if further == s else simplify(further)
    return s


@dataclass(frozen=True)
class _Axis:
    """Where tiles move: an output's axis. ``given``: arguments that nothing writes. ``alone``: one statement
    writes all of the output."""

    output: Buffer
    axis: int
    given: Mapping[str, Buffer]
    alone: bool

    @property
    def extent(self) -> int:
        return const(self.output.shape[self.axis]) or 0

    def array(self, store: Store) -> Buffer | None:
        """The array that is contiguous along the axis, if its rows are whole lines."""
        index = store.indices[self.axis]
        named = [x.buffer for x in E.loads(store.value) if x.indices[-1:] == (index,)]
        read = [self.given[n] for n in named if n in self.given]
        found = [self.output] if self.axis + 1 == len(store.indices) else read[-1:]
        return found[0] if found and rows_are_lines(found[0]) else None


def _moved(s: Stmt, to: _Axis, outer: Loops) -> Stmt:
    """``s`` with its tiles moved along an axis by the skew of the array that is contiguous there. Those that
    would go beyond the end stay where they are, and the first is computed there, too: tiles are wider than
    the skew, so nothing is left out."""
    tile = _tile(s, to.output.name)
    if tile is None:
        around = (*outer, s) if isinstance(s, Loop) else outer
        return with_body(s, lambda x: _moved(x, to, around))
    store, loops = tile
    index, along = store.indices[to.axis], to.array(store)
    own = [x for x in loops if x.var in E.variables(index)]
    width = _width(index, own)
    if along is None or width is None or width * ITEMSIZE[along.dtype] < LINE or width >= to.extent:
        return s
    others = frozenset().union(*(E.variables(i) for k, i in enumerate(store.indices) if k != to.axis))
    begin = affine.simplify(E.substitute(index, {x.var: Const(0) for x in own}), {})
    if any(x.var in others for x in own) or not (to.alone or _covers(begin, to.extent - width, outer)):
        return s
    over = [x for x in outer if x.var in E.variables(begin)]
    read = [x for x in E.loads(store.value) if x.buffer not in to.given]
    if not over or not all(_there(x, over, s, index, begin, width) for x in read):
        return s
    lane = next(x for x in own if affine.linear(index)[0][Var(x.var)] == Const(1))
    moved = substitute(s, {lane.var: Var(lane.var) + skew(along.name)})
    further, most = begin + skew(along.name), to.extent - width
    first = E.all_of(E.compare("<=", begin, 0), E.compare("<", 0, skew(along.name)))
    here = E.any_of(first, E.compare("<", most, further))
    return seq(Guard(E.compare("<=", further, most), moved), Guard(here, s))


def _tile(s: Stmt, output: str) -> tuple[Store, list[Loop]] | None:
    """The store and the loops, if ``s`` is unrolled and vectorized loops around a store of the output."""
    loops = []
    while isinstance(s, Loop) and s.kind in ("unroll", "vectorize"):
        loops.append(s)
        s = s.body
    return (s, loops) if loops and isinstance(s, Store) and s.buffer == output else None


def _width(index: Expr, own: list[Loop]) -> int | None:
    """How many values in a row ``index`` takes while these loops run, if it takes each once."""
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


def _covers(begin: Expr, last: int, outer: Loops) -> bool:
    """Whether tiles go from the beginning of the axis to its end, whatever else is written."""
    counts = {x.var: const(x.extent) for x in outer}
    r = affine.bounds(begin, {v: (0, n - 1) for v, n in counts.items() if n})
    return r is not None and r[0] == 0 and r[1] is not None and r[1] >= last


def _there(x: Load, over: list[Loop], tile: Stmt, index: Expr, begin: Expr, width: int) -> bool:
    """Whether what a tile reads is there for the next one, too: it is computed before all tiles, or in the
    place of what this iteration has read, after that (`software_pipeline`)."""
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
    return first is not None and n is not None and first >= 0 and first + n <= width
