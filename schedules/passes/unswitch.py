"""Take a choice that no iteration changes out of the loops around it (loop unswitching).

``for j: B[j] = select(c, x, y)`` becomes ``if c: for j: B[j] = x`` and ``if not c: for j: B[j] = y`` where
``c`` does not depend on ``j``: a row of a padded copy is a copy or a fill, and its lanes need no masks.
"""

from __future__ import annotations

from dataclasses import replace

from schedules import expr as E
from schedules.expr import Logic, Select
from schedules.ir import Guard, Loop, Stmt, Store, seq, with_body


def unswitch(s: Stmt) -> Stmt:
    """``s`` with every nest of loops around a single store of such a choice split in two."""
    choice = _choice(s, frozenset()) if isinstance(s, Loop) else None
    if choice is None:
        return with_body(s, unswitch)
    there = Guard(choice.cond, _store(s, choice.a))
    return seq(there, Guard(Logic("not", (choice.cond,)), _store(s, choice.b)))


def _choice(s: Stmt, inside: frozenset[str]) -> Select | None:
    """The choice that a perfect nest stores, if no loop from here on decides it."""
    match s:
        case Loop(kind="serial" | "unroll" | "vectorize", var=v, body=b):
            return _choice(b, inside | {v})
        case Store(value=Select(cond=c) as choice) if not E.loads(c) and not E.variables(c) & inside:
            return choice
    return None


def _store(s: Stmt, value: E.Expr) -> Stmt:
    """The nest with another value in its store."""
    if isinstance(s, Loop):
        return replace(s, body=_store(s.body, value))
    assert isinstance(s, Store)
    return replace(s, value=value)
