"""Folds what loop ranges prove: guards, indices, and loops of one iteration."""

from __future__ import annotations

from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Const, Expr
from schedules.ir import (
    Alloc,
    Copy,
    Guard,
    Loop,
    Seq,
    Stmt,
    Store,
    const,
    seq,
)
from schedules.ir.exprs import rewritten, substitute

Ranges = dict[str, affine.Range]


def simplify(s: Stmt, ranges: Ranges | None = None) -> Stmt:
    """``s`` without guards that always hold and statements that never run, and with folded indices."""
    out = _go(s, ranges or {})
    return out if out is not None else Seq(())


def loop_range(extent: Expr, ranges: Ranges) -> affine.Range | None:
    """The range of a loop variable, None if its extent has no known bounds."""
    r = affine.bounds(extent, ranges)
    return None if r is None else (0, max(r[1] - 1, 0))


def inside(loop: Loop, ranges: Ranges) -> Ranges:
    """The ranges of variables in the body of a loop."""
    r = loop_range(loop.extent, ranges)
    more = affine.quotients(loop.var, loop.extent, ranges) if affine.has_size(loop.extent) else {}
    return ranges if r is None else ranges | {loop.var: r} | more


def _go(s: Stmt, ranges: Ranges) -> Stmt | None:
    match s:
        case Loop(var=v, extent=n, body=b):
            n = affine.simplify(n, ranges)
            if const(n) is not None and int(const(n) or 0) <= 0:
                return None
            inner = inside(replace(s, extent=n), ranges)
            if n == Const(1) and not s.kind.startswith("blockIdx"):  # a grid of one block stays a grid
                return _go(substitute(b, {v: Const(0)}), ranges)
            body = _go(b, inner)
            return None if body is None else Loop(v, n, body, s.kind, s.annotations)
        case Guard(cond=c, body=b):
            parts = [p for x in E.conjuncts(c) if (p := affine.simplify(x, ranges)) != E.TRUE]
            if E.FALSE in parts:
                return None
            body = _go(b, ranges)
            if body is None or not parts:
                return body
            return replace(s, cond=E.all_of(*parts), body=body)
        case Seq(stmts=xs):
            new = [y for x in xs if (y := _go(x, ranges)) is not None]
            return seq(*new) if new else None
        case Alloc(buffer=buf, body=b):
            body = _go(b, ranges)
            if body is None:
                return None
            buf = replace(buf, shape=tuple(affine.simplify(n, ranges) for n in buf.shape))
            if buf.strides is not None:
                buf = replace(buf, strides=tuple(affine.simplify(n, ranges) for n in buf.strides))
            return Alloc(buf, body)
        case Store(buffer=name, indices=ix, value=value, update=update):
            ix = tuple(affine.simplify(i, ranges) for i in ix)
            return Store(name, ix, affine.simplify(value, ranges), update)
        case Copy():
            return rewritten(s, lambda e: affine.simplify(e, ranges))
    return s
