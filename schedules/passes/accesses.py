"""Finds the accesses of lowered code to a buffer, and moves them."""

from __future__ import annotations

from collections.abc import Callable

from schedules import expr as E
from schedules.expr import Expr, Load
from schedules.ir import Alloc, AllReduce, Guard, Stmt, Store, walk, with_body
from schedules.ir.exprs import loads, places

Indices = tuple[Expr, ...]


def reads(s: Stmt, buffer: str) -> bool:
    """Whether the statement itself, not its children, loads from the buffer."""
    return any(x.buffer == buffer for x in loads(s))


def uses(s: Stmt, buffer: str) -> bool:
    """Whether the statement itself, not its children, loads from the buffer or stores to it."""
    return any(p.buffer == buffer for p in places(s)) or reads(s, buffer)


def buffers(s: Stmt) -> set[str]:
    """Every buffer that the statement or one inside it loads from, stores to or allocates."""
    out: set[str] = set()
    for x in walk(s):
        out.update(y.buffer for y in loads(x))
        out.update(p.buffer for p in places(x))
        if isinstance(x, Alloc):
            out.add(x.buffer.name)
    return out


def moved(s: Stmt, old: str, new: str, at: Callable[[Indices], Indices]) -> Stmt:
    """``s`` with every access ``old[i]`` replaced by ``new[at(i)]``."""

    def f(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == old:
            return Load(new, at(tuple(E.rewrite(i, f) for i in e.indices)), e.dtype)
        return None

    def go(x: Stmt) -> Stmt:
        match x:
            case Store(buffer=b, indices=ix, value=v):
                ix = tuple(E.rewrite(i, f) for i in ix)
                to = (new, at(ix)) if b == old else (b, ix)
                return Store(*to, E.rewrite(v, f), x.update)
            case AllReduce(buffer=b, indices=ix, op=op, value=v):
                ix = tuple(E.rewrite(i, f) for i in ix)
                to = (new, at(ix)) if b == old else (b, ix)
                return AllReduce(*to, op, E.rewrite(v, f), x.var, x.extent)
            case Guard(cond=c, body=body, speculative=sp):
                return Guard(E.rewrite(c, f), go(body), sp)
        return with_body(x, go)

    return go(s)
