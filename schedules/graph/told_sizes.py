"""Index arithmetic with open sizes, where a rewrite asks what an axis is at each size.

Values of a DAG have a `SizeHole` for a size, extents know theirs (`schedules.te.extent`). Both become
variables of known bounds here, so that a proof sees that an axis ends before its size does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeGuard

from schedules import affine
from schedules import expr as E
from schedules.expr import INDEX, Binary, Compare, Const, Expr, Select, Var
from schedules.te.dims import Dim, SizeHole
from schedules.te.extent import Extent
from schedules.te.infeasible import Range, impossible, negation
from schedules.te.sizes_in_values import variable


def in_variables(e: Expr) -> Expr:
    """An expression with a variable for each open size."""
    return E.rewrite(e, lambda x: _of(x.dim) if isinstance(x, SizeHole) else _of(x) if _is_open(x) else None)


def in_holes(e: Expr) -> Expr:
    """An expression with a `SizeHole` for each open size, as values of a DAG have them."""
    return E.rewrite(e, lambda x: SizeHole(_of(x).name, x) if _is_open(x) else None)


def _is_open(x: Expr) -> TypeGuard[Dim]:
    return isinstance(x, Dim) and x.open is not False


def _of(dim: Dim) -> Var:
    return Var(variable(dim.name or f"n{id(dim)}"))


def ranges_of(e: Expr) -> dict[str, Range]:
    """The bounds of the variables of the sizes in an expression."""
    dims = {x.dim if isinstance(x, SizeHole) else x for x in E.walk(e) if isinstance(x, (SizeHole, Dim))}
    return {_of(d).name: (d.lo, d.hi) for d in dims}


def size_of(e: Expr) -> int | None:
    """Arithmetic of numbers and open sizes as an extent, or as a number; None for others."""
    if not all(isinstance(x, (Const, SizeHole, Binary)) for x in E.walk(e)):
        return None
    e = affine.simplify(E.rewrite(e, lambda x: x.dim if isinstance(x, SizeHole) else None), {})
    return int(e.value) if isinstance(e, Const) else Extent(e) + 0  # which may be a number at all sizes


def least_of(n: int) -> int:
    """The least of the numbers that an extent is at open sizes, as far as its bounds tell."""
    if not isinstance(n, Extent):
        return int(n)
    known = ranges_of(n.expr)
    found = affine.bounds(affine.simplify(in_variables(n.expr), known), known)
    return found[0] if found is not None else -(2**40)


def ordered(numbers: Sequence[int]) -> tuple[int, ...] | None:
    """Extents in the order that they have at all sizes; None if they have none."""
    every = sorted(numbers, key=lambda n: (int(n), least_of(n)))
    return tuple(every) if all(least_of(b - a) >= 0 for a, b in pairwise(every)) else None


class WithSizes:
    """What is known of axes from 0 to below ``ends``, which may depend on open sizes. ``ranges``: bounds of
    axes and of sizes. ``conds``: that axes end before their sizes do."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        opened = {v: n for v, n in ends.items() if isinstance(n, Extent)}
        self.ranges: dict[str, Range] = {v: (0, max(int(n) - 1, 0)) for v, n in ends.items()}
        for n in opened.values():
            self.ranges |= ranges_of(n.expr)
        self.conds = tuple(E.compare("<", Var(v), in_variables(n.expr)) for v, n in opened.items())

    def never(self, cond: Expr) -> bool:
        """Whether a condition on axes holds at no size."""
        conds = (in_variables(_balanced(cond)), *self.conds)
        return impossible(conds, self.ranges | ranges_of(cond))

    def simplified(self, e: Expr) -> Expr:
        """An equal expression without what sizes decide. One without a size stays as it is."""
        if not E.holes(e) and not self.conds:
            return e
        kids = E.children(e)
        new = tuple(map(self.simplified, kids))
        e = e if all(a is b for a, b in zip(kids, new, strict=True)) else E.rebuild(e, new)
        match e:
            case Select(cond=c, a=a, b=b):
                return b if self.never(c) else a if self.never(negation(c)) else e
            case Binary(op="min" | "max" as op, a=a, b=b) if E.dtype_of(e) == INDEX:
                over = self.never(E.compare("<", a, b)), self.never(E.compare("<", b, a))
                return e if not any(over) else a if over[op == "min"] else b
            case Binary(op="%", a=a, b=b) if E.dtype_of(e) == INDEX:
                inside = self.never(E.compare("<", a, 0)) and self.never(E.compare("<=", b, a))
                return a if inside else e
        return e


def _balanced(cond: Expr) -> Expr:
    """A condition whose comparisons have nothing on both sides, such as a number of the call."""

    def one(x: Expr) -> Expr | None:
        if isinstance(x, Compare) and E.dtype_of(x.a) == INDEX:
            return E.compare(x.op, affine.simplify(x.a - x.b, {}), 0)
        return None

    return E.rewrite(cond, one)
