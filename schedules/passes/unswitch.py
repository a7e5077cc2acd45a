"""Takes a select out of loops that do not decide it (loop unswitching).

``for j: B[j] = select(c, x, y)`` becomes ``if c: for j: B[j] = x`` and ``if not c: for j: B[j] = y`` if ``c``
does not depend on ``j``. A row of a padded copy is then a copy or a fill, and its lanes need no masks. If
``c`` depends on ``j`` but outer loops can tell that all iterations choose ``x``, those run without a select:
all tiles except the last, or those on no border.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from schedules import affine
from schedules import expr as E
from schedules.expr import Compare, Const, Expr, Logic, Select
from schedules.ir import Guard, Loop, Stmt, Store, seq, with_body
from schedules.passes.simplify import Ranges, loop_range


def unswitch(s: Stmt, but: Collection[str] = ()) -> Stmt:
    """``s`` with every nest of loops around a single store of such a select split in two, ``but`` where it
    stores to one of these buffers."""
    found = _choice(s, {}, but) if isinstance(s, Loop) else None
    if found is None:
        return with_body(s, lambda x: unswitch(x, but))
    choice, inside = found
    always = _always(choice.cond, inside)
    if isinstance(always, Const):  # this loop would have to be split, but an inner one may not
        return with_body(s, lambda x: unswitch(x, but))
    if always == choice.cond:
        return _split(s, choice)
    return seq(Guard(always, _store(s, choice.a)), Guard(Logic("not", (always,)), _rows(s)))


def _rows(s: Stmt) -> Stmt:
    """A nest in which some iterations choose otherwise, split at loops that do not decide the select."""
    found = _choice(s, {}) if isinstance(s, Loop) else None
    if found is None:
        return s
    choice, inside = found
    if E.variables(choice.cond) & inside.keys():
        return with_body(s, _rows)
    return _split(s, choice)


def _split(s: Stmt, choice: Select) -> Stmt:
    """The nest once for either side of the select."""
    there = Guard(choice.cond, _store(s, choice.a))
    return seq(there, Guard(Logic("not", (choice.cond,)), _store(s, choice.b)))


def _choice(s: Stmt, inside: Ranges, but: Collection[str] = ()) -> tuple[Select, Ranges] | None:
    """(the select that a perfect nest stores, ranges of its loops), if its condition loads nothing and it is
    stored elsewhere ``but`` in these buffers; else None."""
    match s:
        case Loop(kind="serial" | "unroll" | "vectorize", var=v, extent=n, body=b):
            r = loop_range(n, inside)
            return None if r is None else _choice(b, inside | {v: r}, but)
        case Store(buffer=to, value=Select(cond=c) as choice) if to not in but and not E.loads(c):
            return choice, inside
    return None


def _always(cond: Expr, inside: Ranges) -> Expr:
    """A condition under which ``cond`` holds in all iterations of the loops ``inside``, as far as is
    known."""
    return E.all_of(*(_throughout(c, inside) for c in E.conjuncts(cond)))


def _throughout(c: Expr, inside: Ranges) -> Expr:
    if not E.variables(c) & inside.keys():
        return c
    if not (isinstance(c, Compare) and c.op in ("<", "<=") and E.dtype_of(c.a) == E.INDEX):
        return E.FALSE
    least, most = affine.extreme(c.b, inside, 0), affine.extreme(c.a, inside, 1)
    return E.FALSE if least is None or most is None else E.compare(c.op, most, least)


def _store(s: Stmt, value: E.Expr) -> Stmt:
    """The nest with another value in its store."""
    if isinstance(s, Loop):
        return replace(s, body=_store(s.body, value))
    assert isinstance(s, Store)
    return replace(s, value=value)
