"""The expressions that stand in statements: read, and with loop variables replaced."""

from __future__ import annotations

from dataclasses import replace

from schedules import expr as E
from schedules.expr import Expr, Load
from schedules.ir.nodes import AllReduce, Guard, Loop, Prefetch, Stmt, Store, with_body


def substitute(s: Stmt, env: dict[str, Expr]) -> Stmt:
    """Replace loop variables in a lowered statement."""
    match s:
        case Loop(extent=n, body=b):
            return replace(s, extent=E.substitute(n, env), body=substitute(b, env))
        case Guard(cond=c, body=b):
            return replace(s, cond=E.substitute(c, env), body=substitute(b, env))
        case Store(indices=ix, value=v):
            ix = tuple(E.substitute(i, env) for i in ix)
            return Store(s.buffer, ix, E.substitute(v, env), s.update)
        case Prefetch(indices=ix):
            return replace(s, indices=tuple(E.substitute(i, env) for i in ix))
    return with_body(s, lambda x: substitute(x, env))


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand in a statement itself, not in its children."""
    match s:
        case Store(indices=ix, value=v) | AllReduce(indices=ix, value=v):
            return (*ix, v)
        case Prefetch(indices=ix):
            return ix
        case Guard(cond=c):
            return (c,)
        case Loop(extent=n):
            return (n,)
    return ()


def loads(s: Stmt) -> tuple[Load, ...]:
    return tuple(x for e in expressions(s) for x in E.loads(e))


