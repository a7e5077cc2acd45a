"""Keeps an intermediate row in the memory of the result that is made of it (storage sharing, in place).

``e[j] = ...; ...; y[i, j] = f(e[j])`` becomes ``y[i, j] = ...; ...; y[i, j] = f(y[i, j])``. The result's
lines are fetched while there is still work to do, and the row takes half the cache.

Two conditions. The result must be written once, element by element and whole, by the last reader of the
intermediate; else another iteration's results would be overwritten. No element may be computed twice, in
loops that overlap; the second time would start from the first result.
"""

from __future__ import annotations

import math
from functools import partial

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.ir import (
    Alloc,
    Buffer,
    Loop,
    Stmt,
    Store,
    allocations,
    const,
    in_order,
    path_to,
    walk,
    with_body,
)
from schedules.ir.exprs import loads
from schedules.passes.accesses import moved, reads, uses

# Fewest elements: smaller buffers are better kept in registers.
LEAST_ELEMENTS = 64


def share_storage(s: Stmt, params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> Stmt:
    """``s`` without the intermediate buffers for which a result has room."""
    written = {b.name: b for b in params if b.name in outputs}
    for x in walk(s):
        for read in loads(x):
            written.pop(read.buffer, None)
    stores = [x for x in walk(s) if isinstance(x, Store)]
    once = {n: b for n, b in written.items() if sum(x.buffer == n for x in stores) == 1}
    return _go(s, once) if once else s


def _go(s: Stmt, free: dict[str, Buffer]) -> Stmt:
    s = with_body(s, lambda k: _go(k, free))
    if isinstance(s, Alloc):
        for result in free.values():
            places = _places(s, result)
            if places is not None:
                del free[result.name]
                return moved(s.body, s.buffer.name, result.name, partial(_at, places))
    return s


def _at(places: list[int | Expr], indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return tuple(indices[p] if isinstance(p, int) else p for p in places)


def _places(s: Alloc, result: Buffer) -> list[int | Expr] | None:
    """For each dimension of the result: the dimension of the buffer that runs along it, or the expression of
    outer loops at which it is fixed. None if the buffer cannot lie there."""
    b = s.buffer
    _, body = allocations(s)
    path = path_to(body, lambda x: isinstance(x, Store) and x.buffer == result.name)
    extents = [const(n) or 0 for n in b.shape]
    if path is None or any(isinstance(x, Alloc) for x in path):
        return None
    if b.dtype != result.dtype or math.prod(extents) < LEAST_ELEMENTS:
        return None
    last, around = path[-1], [x for x in path if isinstance(x, Loop)]
    assert isinstance(last, Store)
    read = {x.indices for x in E.loads(last.value) if x.buffer == b.name}
    if len(read) != 1 or not _is_last_reader(body, path, b.name) or not _each_once(last.indices, around):
        return None
    (source,) = read
    inner = {x.var for x in walk(body) if isinstance(x, Loop)}
    where: list[int | Expr] = []
    for i, n in zip(last.indices, result.shape, strict=True):
        if not E.variables(i) & inner:
            if _may_repeat(i):
                return None
            where.append(i)
            continue
        k = next((k for k, e in enumerate(source) if e == i and k not in where), None)
        if k is None or not E.variables(i) <= inner or extents[k] > (const(n) or 0):
            return None
        where.append(k)
    # The last store writes every element of the buffer, so none belongs to another iteration.
    count = math.prod(const(x.extent) or 0 for x in around)
    return where if count == math.prod(extents) else None


def _is_last_reader(body: Stmt, path: tuple[Stmt, ...], buffer: str) -> bool:
    """Whether every other use of the buffer comes before the loops of the last store, and none accumulates in
    it."""
    others = in_order(body)
    at = next(n for n, x in enumerate(others) if any(x is p for p in path))
    for n, x in enumerate(others):
        users = [y for y in walk(x) if uses(y, buffer)]
        if (n > at and users) or (n == at and any(y is not path[-1] for y in users)):
            return False
        if any(isinstance(y, Store) and y.buffer == buffer and reads(y, buffer) for y in users):
            return False
    return True


def _each_once(indices: tuple[Expr, ...], loops: list[Loop]) -> bool:
    """Whether no two iterations of the loops write one element: the indices are digits of a number system."""
    seen: set[str] = set()
    for i in indices:
        terms, _ = affine.linear(i)
        steps = []
        for atom, c in terms.items():
            loop = next((x for x in loops if Var(x.var) == atom), None)
            if loop is None:
                if E.variables(atom) & {x.var for x in loops}:
                    return False  # rounded, or cut off
                continue
            extent = const(loop.extent)
            if extent is None or not isinstance(c, Const) or c.value <= 0 or loop.var in seen:
                return False
            seen.add(loop.var)
            steps.append((int(c.value), extent))
        reach = 0
        for step, extent in sorted(steps):
            if step <= reach:
                return False
            reach += step * (extent - 1)
    return all(x.var in seen or const(x.extent) == 1 for x in loops)


def _may_repeat(e: Expr) -> bool:
    """Whether outer iterations may share a value, as tiles that are moved inwards at an end do."""
    return any(isinstance(x, (E.Select, Load)) or getattr(x, "op", "") in ("min", "max") for x in E.walk(e))
