"""Finds the accesses of lowered code to a buffer, and moves them."""

from __future__ import annotations

from collections.abc import Callable

from schedules.expr import Expr
from schedules.ir import Access, Alloc, Guard, Stmt, exprs, walk, with_body
from schedules.ir.exprs import accesses, loads, places
from schedules.loads import Indices, relocated


def reads(s: Stmt, buffer: str) -> bool:
    """Whether the statement itself, not its children, loads from the buffer."""
    return any(x.buffer == buffer for x in loads(s))


def uses(s: Stmt, buffer: str) -> bool:
    """Whether the statement itself, not its children, loads from the buffer or stores to it."""
    return any(x.buffer == buffer for x in accesses(s))


def buffers(s: Stmt) -> set[str]:
    """Every buffer that the statement or one inside it loads from, stores to or allocates."""
    out: set[str] = set()
    for x in walk(s):
        out.update(y.buffer for y in accesses(x))
        if isinstance(x, Alloc):
            out.add(x.buffer.name)
    return out


def moved(
    s: Stmt,
    old: str,
    new: str,
    at: Callable[[Indices], Indices],
    holds: Callable[[Stmt], bool] = lambda _: True,
) -> Stmt:
    """``s`` with every access ``old[i]`` replaced by ``new[at(i)]``. ``holds``: whether a statement may hold
    one."""

    def f(e: Expr) -> Expr:
        return relocated(e, old, new, at)

    def there(x: Access) -> Access:
        return Access(new, at(x.indices)) if x.buffer == old else x

    def go(x: Stmt) -> Stmt:
        if not holds(x):
            return x
        if isinstance(x, Guard):
            return Guard(f(x.cond), go(x.body), x.speculative)
        if places(x):
            x = exprs.moved(exprs.rewritten(x, f), there)
        return with_body(x, go)

    return go(s)
