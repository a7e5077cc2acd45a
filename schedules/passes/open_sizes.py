"""Makes a nest with sizes that a call tells ready for the other passes (ADR 79).

While a nest is scheduled, such a size is a hole that no decision fills. From here on it is a variable of
known bounds. Loops over tiles end with the last tile that has work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.errors import ScheduleError
from schedules.expr import Binary, Compare, Const, Expr, Hole, Var
from schedules.ir import (
    Alloc,
    Block,
    Buffer,
    Guard,
    Iter,
    Loop,
    Nest,
    Stmt,
    blocks,
    const,
    size_hole,
    size_ranges,
    size_variable,
    walk,
    with_body,
)


def close_sizes(nest: Nest) -> Nest:
    """``nest`` with the variables of its sizes in place of their holes."""
    if not nest.sizes:
        return nest
    ranges = size_ranges(nest.sizes)
    of = {size_hole(s.name): size_variable(s.name) for s in nest.sizes}

    def known(e: Expr) -> Expr:
        if not E.holes(e):
            return e
        return affine.simplify(E.rewrite(e, lambda x: of.get(x) if isinstance(x, Hole) else None), ranges)

    def buffer(b: Buffer) -> Buffer:
        given = None if b.given is None else tuple(map(known, b.given))
        return replace(b, shape=tuple(map(known, b.shape)), given=given)

    body = _mapped(nest.body, known)
    return replace(nest, buffers=tuple(map(buffer, nest.buffers)), body=_trimmed(body, ranges))


def _mapped(s: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """A nest with ``f`` of each of its expressions."""
    if isinstance(s, Loop):
        return replace(s, extent=f(s.extent), body=_mapped(s.body, f))
    if isinstance(s, Block):
        return replace(
            s,
            iters=tuple(Iter(i.var, f(i.extent), i.kind) for i in s.iters),
            binds=tuple(map(f, s.binds)),
            writes=tuple(replace(w, indices=tuple(map(f, w.indices))) for w in s.writes),
            values=tuple(map(f, s.values)),
            where=tuple(map(f, s.where)),
        )
    return with_body(s, lambda x: _mapped(x, f))


def _trimmed(s: Stmt, ranges: affine.Ranges) -> Stmt:
    """``for v in range(N): S(min(v * 8, n - 8))`` becomes ``for v in range(min(N, ceildiv(n, 8))): ...``: the
    tiles beyond are the last one again. Loops over tiles with guards end likewise, where all are beyond.

    Only where every block inside ends there. The end is that of the axis which is bound: that of a merged
    axis is a multiple of the size."""
    if not isinstance(s, Loop):
        return with_body(s, lambda x: _trimmed(x, ranges))
    if s.instruction is not None:  # its loops are whole, or a tail
        return s
    body = _trimmed(s.body, ranges)
    if s.kind == "serial":
        inner = {x.var: _counts(x) for x in walk(body) if isinstance(x, Loop)}
        runs = any(isinstance(x, Loop) and x.instruction is not None for x in walk(body))
        ends = {_end(b, s.var, inner, runs) for b in blocks(body)}
        end = ends.pop() if len(ends) == 1 else None
        if end is not None:
            return replace(s, extent=affine.simplify(E.minimum(s.extent, end), ranges), body=body)
    return replace(s, body=body)


def _counts(loop: Loop) -> affine.Range:
    """The range of a loop's variable; the largest there is where its extent is no number."""
    n = const(loop.extent)
    return 0, (1 << 62) if n is None else n - 1


def _end(b: Block, var: str, inner: affine.Ranges, runs: bool) -> Expr | None:
    """How many iterations of a loop have work for a block; None where that can't be told. ``runs``: whether
    it holds an instruction, whose whole runs `partition` then finds along it."""
    own = [(i, e) for i, e in zip(b.iters, b.binds, strict=True) if var in E.variables(e)]
    if len(own) != 1 or not affine.has_size(own[0][0].extent):
        return None
    ((it, bind),) = own
    within = [x for x in E.walk(bind) if isinstance(x, Binary) and x.op == "min" and var in E.variables(x)]
    if len(within) > 1:
        return None
    base = bind
    if within:
        tile = affine.simplify(it.extent - within[0].b, {})
        if not isinstance(tile, Const) or var in E.variables(within[0].b):
            return None
        base = within[0].a
    elif not (runs or E.variables(bind) & inner.keys()):
        return None  # the loop of single elements: `tighten_bounds` has its guard
    step, rest = affine.isolate(base, var)
    least = affine.extreme(rest, inner, 0)
    if not isinstance(step, Const) or step.value <= 0 or least is None or var in E.variables(least):
        return None
    return E.ceildiv(it.extent - least, step)


def whole_from(nest: Nest) -> Expr:
    """The condition under which every tile that a split shifts inside fits: ``8 <= n`` of ``min(i * 8, n -
    8)``. ``nest``: as it was scheduled. With closed sizes a tile as long as the largest size would be missed,
    of which the only place is ``n - 8``."""
    of = {size_hole(s.name): size_variable(s.name) for s in nest.sizes}
    ends = (
        E.rewrite(x.b, lambda h: of.get(h) if isinstance(h, Hole) else None)
        for b in blocks(nest.body)
        for e in b.binds
        for x in E.walk(e)
        if isinstance(x, Binary) and x.op == "min" and E.holes(x.b)
    )
    return E.all_of(*dict.fromkeys(E.compare("<=", 0, e) for e in ends))


def whole_lanes(s: Stmt, ranges: affine.Ranges) -> Stmt:
    """Vectors and unrolled loops whose extent a call tells, with as many lanes as there may be, and a guard.
    What the guard inside of them says already is left out: in ``for j in lanes of min(8, n): if i * 8 + j <
    n``, j is below n."""
    if isinstance(s, Loop) and s.kind in ("vectorize", "unroll") and const(s.extent) is None:
        most = affine.most(s.extent, ranges)
        if most is not None:
            lane = {s.var: (0, most - 1)}
            ends = (E.compare("<", Var(s.var), n) for n in _sides(s.extent))
            own = [c for c in ends if affine.decide(c, {**ranges, **lane}) is not True]
            own = [c for c in own if not _says(s.body, c, ranges)]
            inner = whole_lanes(s.body, ranges)
            return replace(s, extent=Const(most), body=Guard(E.all_of(*own), inner) if own else inner)
    return with_body(s, lambda x: whole_lanes(x, ranges))


def _sides(e: Expr) -> list[Expr]:
    """What an index is the minimum of."""
    if isinstance(e, Binary) and e.op == "min":
        return [*_sides(e.a), *_sides(e.b)]
    return [e]


def _says(s: Stmt, cond: Expr, ranges: affine.Ranges) -> bool:
    """Whether a statement does nothing where ``cond``, ``a < b``, does not hold, as its guard tells. Loops
    count from 0."""
    if not (isinstance(s, Guard) and isinstance(cond, Compare)):
        return False
    above = dict.fromkeys(E.variables(s.cond) - ranges.keys(), (0, 1 << 62)) | {**ranges}
    gaps = (c.a - c.b for c in E.conjuncts(s.cond) if isinstance(c, Compare) and c.op == "<")
    less = (affine.bounds(affine.simplify(cond.a - cond.b - gap, ranges), above) for gap in gaps)
    return any(r is not None and r[1] <= 0 for r in less)


def largest(s: Stmt, ranges: affine.Ranges) -> Stmt:
    """Buffers between stages with room for the largest size. ``ranges``: of sizes, and of loops around.
    Raises ScheduleError where no bound of an extent is known."""
    if isinstance(s, Loop):
        return replace(s, body=largest(s.body, _within(s, ranges)))
    if not isinstance(s, Alloc):
        return with_body(s, lambda x: largest(x, ranges))
    every = ranges
    for x in walk(s.body):  # extents of what is touched may speak of loops inside
        every = _within(x, every) if isinstance(x, Loop) else every

    def room(n: Expr) -> Expr:
        most = const(n) or affine.most(n, every)
        if most is None:
            raise ScheduleError(
                f"buffer {s.buffer.name} has {E.show(n)} elements, of which no bound is known"
            )
        return Const(most)

    shape = tuple(map(room, s.buffer.shape))
    return Alloc(replace(s.buffer, shape=shape), largest(s.body, ranges))


def _within(loop: Loop, ranges: affine.Ranges) -> affine.Ranges:
    """Ranges of variables in a loop."""
    most = affine.most(loop.extent, ranges)
    return ranges if most is None else {**ranges, loop.var: (0, max(most - 1, 0))}
