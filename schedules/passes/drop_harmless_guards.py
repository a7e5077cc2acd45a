"""Drops guards whose absence does no harm.

A block that computes a tile of an intermediate buffer may run outside its domain if it writes only elements
that nobody reads, and reads only what is allocated: the padding of the tile. The values there are garbage,
and stay outside the domain. Guards on reductions are never dropped, as garbage would be summed.
"""

from __future__ import annotations

from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Expr, Load, Select
from schedules.ir import Alloc, Buffer, Guard, Loop, Stmt, Store, with_body
from schedules.passes.simplify import Ranges, inside

Shapes = dict[str, tuple[int, ...]]


def drop_harmless_guards(s: Stmt, params: tuple[Buffer, ...]) -> Stmt:
    """``s`` without the speculative guards that are harmless to drop."""
    shapes = {b.name: _ints(b) for b in params}
    return _go(s, {}, shapes, frozenset(b.name for b in params))


def _ints(b: Buffer) -> tuple[int, ...]:
    return tuple(int(E.evaluate(n, {})) for n in b.shape)


def _go(s: Stmt, ranges: Ranges, shapes: Shapes, params: frozenset[str]) -> Stmt:
    match s:
        case Loop(body=b):
            return replace(s, body=_go(b, inside(s, ranges), shapes, params))
        case Alloc(buffer=buf, body=b):
            return Alloc(buf, _go(b, ranges, shapes | {buf.name: _ints(buf)}, params))
        case Guard(body=b) if s.speculative:
            inner = _go(b, ranges, shapes, params)
            keep = E.conjuncts(s.cond)
            for c in keep:
                others = tuple(x for x in keep if x is not c)
                if _harmless(inner, ranges, shapes, params, others):
                    keep = others
            return replace(s, cond=E.all_of(*keep), body=inner) if keep else inner
    return with_body(s, lambda k: _go(k, ranges, shapes, params))


def _harmless(
    s: Stmt, ranges: Ranges, shapes: Shapes, params: frozenset[str], conds: tuple[Expr, ...]
) -> bool:
    match s:
        case Store(buffer=name, indices=ix, value=v):
            if name in params:
                return False
            return _inside(name, ix, ranges, shapes, conds) and all(
                _safe(e, ranges, shapes, conds) for e in (*ix, v)
            )
        case Guard(cond=c, body=b):
            return _safe(c, ranges, shapes, conds) and _harmless(
                b, ranges, shapes, params, (*conds, *E.conjuncts(c))
            )
        case Alloc(buffer=buf, body=b):
            return _harmless(b, ranges, shapes | {buf.name: _ints(buf)}, params, conds)
        case Loop():
            return False
    return all(_harmless(k, ranges, shapes, params, conds) for k in getattr(s, "stmts", ()))


def _safe(e: Expr, ranges: Ranges, shapes: Shapes, conds: tuple[Expr, ...]) -> bool:
    """Whether no load of ``e`` can leave its buffer and no integer division can trap."""
    match e:
        case Select(cond=c, a=a, b=b):
            return (
                _safe(c, ranges, shapes, conds)
                and _safe(a, ranges, shapes, (*conds, *E.conjuncts(c)))
                and _safe(b, ranges, shapes, conds)
            )
        case Load(buffer=name, indices=ix):
            # Garbage that is read as an index may be another value at each use, so no clamp holds it.
            if any(map(E.loads, ix)) or not _inside(name, ix, ranges, shapes, conds):
                return False
        case E.Binary(op="//" | "%", b=b) if not (isinstance(b, E.Const) and b.value != 0):
            return False
    return all(_safe(k, ranges, shapes, conds) for k in E.children(e))


def _inside(name: str, ix: tuple[Expr, ...], ranges: Ranges, shapes: Shapes, conds: tuple[Expr, ...]) -> bool:
    for i, n in zip(ix, shapes[name], strict=True):
        r = affine.refine(conds, i, affine.bounds(affine.simplify(i, ranges), ranges), ranges)
        if r is None or r[0] < 0 or r[1] >= n:
            return False
    return True


