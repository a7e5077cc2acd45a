"""Keeps only the last steps of what a scan carries on (storage folding, as in Halide).

``for t: y[t, i] = a * y[t - 1, i]`` needs one row of y if nothing reads it afterwards::

    for t: y[0, i] = a * y[0, i]

Where a step reads k steps back, k + 1 rows are enough, used in turns: row ``t % (k + 1)``. k are where each
element of a row is read for the last time before its place is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import Alloc, Buffer, Guard, Loop, Seq, Stmt, Store, const, kids, walk
from schedules.ir.deps import recovered
from schedules.ir.exprs import expressions, loads
from schedules.ir.regions import Span, covers, dense, footprint
from schedules.ir.strides import resized
from schedules.passes.accesses import moved

Indices = tuple[Expr, ...]
# Most rows that are kept in turns: more are kept whole.
MOST_ROWS = 16


@dataclass(frozen=True)
class _Access:
    """A place that is read or stored to: with the loops around it, outermost first, its statement, and the
    number of the statement in program order."""

    indices: Indices
    stores: bool
    loops: tuple[Loop, ...]
    where: Stmt
    order: int


def reads_earlier(loop: Loop, b: Buffer) -> bool:
    """Whether an iteration may read elements of a buffer that earlier iterations stored: some that it reads
    are not surely among those that it stores itself."""
    inner = {x.var: x.extent for x in walk(loop.body) if isinstance(x, Loop)}
    places = [x.indices for x in walk(loop.body) if isinstance(x, Store) and x.buffer == b.name]
    made = [footprint([p], inner, b.shape, clip=False) for p in places if dense(p, inner)]
    for s in walk(loop.body):
        for x in loads(s):
            if x.buffer != b.name or (isinstance(s, Store) and s.update and x.indices == s.indices):
                continue
            need = [
                _clipped(n, size)
                for n, size in zip(footprint([x.indices], inner, b.shape, clip=False), b.shape, strict=True)
            ]
            if not any(all(map(covers, have, need)) for have in made):
                return True
    return False


def _clipped(s: Span, size: Expr) -> Span:
    """The part of a span that is inside of a dimension, where it is known."""
    at, n, end = const(s[0]), const(s[1]), const(size)
    if at is None or n is None or end is None:
        return s
    first = max(at, 0)
    return Const(first), Const(max(min(at + n, end) - first, 0))


def fold(s: Alloc) -> Stmt:
    """The allocation with fewer rows, where a loop in it goes over them in order."""
    for d in range(len(s.buffer.shape)):
        rows = _rows(s, d)
        if rows is not None and rows < (const(s.buffer.shape[d]) or 0):
            return _kept(s, d, rows)
    return s


def _kept(s: Alloc, d: int, rows: int) -> Alloc:
    def at(indices: Indices) -> Indices:
        turn = Const(0) if rows == 1 else indices[d] % rows
        return (*indices[:d], turn, *indices[d + 1 :])

    shape = (*s.buffer.shape[:d], Const(rows), *s.buffer.shape[d + 1 :])
    return Alloc(resized(s.buffer, shape), moved(s.body, s.buffer.name, s.buffer.name, at))


def _rows(s: Alloc, d: int) -> int | None:
    """How many rows of dimension ``d`` are enough; None if that is not known."""
    found = list(_accesses(s.body, s.buffer.name, (), [0]))
    stores = [x for x in found if x.stores]
    if not stores:
        return None
    first = affine.simplify(stores[0].indices[d], {})
    steps = _steps(first, stores[0].loops)
    if steps is None:
        return None
    loops, sign = steps
    inside, behind = list[tuple[_Access, int]](), list[int]()
    for x in found:
        gap = const(affine.simplify(first - x.indices[d], {}))
        if not any(E.variables(Var(y.var)) & E.variables(x.indices[d]) for y in x.loops):
            end = const(affine.simplify(E.substitute(first, {y.var: y.extent - 1 for y in loops}), {}))
            last = const(affine.simplify(x.indices[d], {}))
            if x.stores or end is None or last is None or x.order < max(y.order for y in stores):
                return None
            behind.append((end - last) * sign)
        elif gap is None:
            return None
        elif not all(any(y is z for z in x.loops) for y in loops):
            return None
        else:
            inside.append((x, gap * sign))
    if any(lag for x, lag in inside if x.stores) or any(lag < 0 for _, lag in inside):
        return None
    if any(lag < 0 for lag in behind):
        return None
    moving = any(
        y.var in E.variables(i) for x, _ in inside for y in loops for k, i in enumerate(x.indices) if k != d
    )
    alike = not moving and len({_others(x.indices, d) for x, _ in inside}) == 1
    if not _together(inside, loops) and not (alike and all(_once(x, loops[0]) for x in stores)):
        return None
    back = max([lag for _, lag in inside] + behind)
    rows = back + 1
    if back == 1 and not any(behind) and _in_place(inside, loops[-1], d):
        rows = 1
    return rows if rows <= MOST_ROWS else None


def _others(indices: Indices, d: int) -> Indices:
    return tuple(_simple(i) for k, i in enumerate(indices) if k != d)


def _simple(e: Expr) -> Expr:
    return affine.simplify(e, {})


def _steps(e: Expr, around: tuple[Loop, ...]) -> tuple[list[Loop], int] | None:
    """The loops, outermost first, of which each next iteration makes an index greater by one (sign 1) or
    smaller (-1)."""
    terms, _ = affine.linear(e)
    loops = [x for x in around if x.var in E.variables(e)]
    if not loops or any(x.kind not in ("serial", "unroll") for x in loops):
        return None
    if {Var(x.var) for x in loops} != set(terms):
        return None
    expected = 1
    sign = 0
    for x in reversed(loops):
        c, n = const(terms[Var(x.var)]), const(x.extent)
        if c is None or n is None or abs(c) != expected or (sign and (c > 0) != (sign > 0)):
            return None
        sign = 1 if c > 0 else -1
        expected *= n
    return loops, sign


def _together(inside: list[tuple[_Access, int]], loops: list[Loop]) -> bool:
    """Whether no other loop stands around those of the steps, or between them: a step is done before the next
    begins, and none is run again."""
    return all([y.var for y in x.loops[: len(loops)]] == [y.var for y in loops] for x, _ in inside)


def _once(store: _Access, steps: Loop) -> bool:
    """Whether nothing is stored twice in the loops of the steps: tiles that are moved inwards store again, of
    what may be gone then."""
    around = {x.var: x.extent for x in store.loops[[x.var for x in store.loops].index(steps.var) :]}
    return len(recovered(list(map(_simple, store.indices)), around)) == len(around)


def _in_place(inside: list[tuple[_Access, int]], loop: Loop, d: int) -> bool:
    """Whether an element is read for the last time before the next step stores at its place."""
    stores = [x for x, _ in inside if x.stores]
    if len(stores) != 1:
        return False
    (store,) = stores
    around = {x.var: x.extent for x in store.loops}
    if len(recovered(list(map(_simple, store.indices)), around)) < len(around):
        return False  # tiles that are moved inwards store again, of values that are gone then
    parts = _parts(loop.body)
    own = next(n for n, p in enumerate(parts) if any(y is store.where for y in walk(p)))
    for x, lag in inside:
        if x.stores:
            continue
        part = next(n for n, p in enumerate(parts) if any(y is x.where for y in walk(p)))
        if part != own:
            if (part < own) != (lag == 1):
                return False
        elif _others(x.indices, d) != _others(store.indices, d) or x.loops != store.loops:
            return False
        elif (x.order <= store.order) != (lag == 1):
            return False
    return True


def _parts(s: Stmt) -> list[Stmt]:
    while isinstance(s, (Alloc, Guard)):
        s = s.body
    return list(s.stmts) if isinstance(s, Seq) else [s]


def _accesses(s: Stmt, name: str, around: tuple[Loop, ...], count: list[int]) -> Iterator[_Access]:
    count[0] += 1
    order = count[0]
    for e in expressions(s):
        for x in E.walk(e):
            if isinstance(x, Load) and x.buffer == name:
                yield _Access(x.indices, False, around, s, order)
    if isinstance(s, Store) and s.buffer == name:
        yield _Access(s.indices, True, around, s, order)
    inner = (*around, s) if isinstance(s, Loop) else around
    for k in kids(s):
        yield from _accesses(k, name, inner, count)
