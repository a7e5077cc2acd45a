"""Makes one division of several: ``x // a // b`` is ``x // (a * b)`` for numbers above 0.

Loops over threads are one loop of several axes, each of which is a quotient of quotients. Unrolled code has
these in every statement, and compilers take their time for each.
"""

from __future__ import annotations

from schedules import expr as E
from schedules.expr import Binary, Const, Expr
from schedules.ir import Stmt
from schedules.ir.exprs import rewrite


def nested_divisions(s: Stmt) -> Stmt:
    """``s`` with each quotient of a quotient as one."""
    return rewrite(s, divided_once)


def divided_once(e: Expr) -> Expr:
    """``e`` with each quotient of a quotient as one."""
    return E.rewrite(e, _divided_once)


def _divided_once(e: Expr) -> Expr | None:
    x, by, depth = e, 1, 0
    while isinstance(x, Binary) and x.op == "//" and isinstance(x.b, Const) and int(x.b.value) > 0:
        by, depth = by * int(x.b.value), depth + 1
        x = x.a
    if depth < 2 or E.dtype_of(e) != E.INDEX:
        return None
    return divided_once(x) // by
