"""Sizes that a call tells, where a stage computes with them: in its values, and in the indices of its loads.

There a size is a hole that no decision fills, as in a nest: an integer of index arithmetic, but no axis.
``x[n - 1, j]`` is the last row, ``te.cast(n, "float32")`` a number of elements, ``t < n`` a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, computed, is_float
from schedules.expr import INDEX, Binary, Cast, Const, Expr, Hole, Var
from schedules.te.scalars import cast

if TYPE_CHECKING:
    from schedules.te.compute_dag import Stage


def variable(size: str) -> str:
    """The name of the variable of a size, and of its hole, which no axis and no loop has."""
    return f"{size}.size"


def in_variables(e: Expr) -> Expr:
    """An expression of names of sizes as one of their variables."""
    return E.rewrite(e, lambda x: Var(variable(x.name)) if isinstance(x, Var) else None)


def without_holes(e: Expr) -> Expr:
    """A value with the variables of sizes for their holes, as proofs and loops have them."""
    return E.rewrite(e, lambda x: Var(x.name) if isinstance(x, Hole) else None) if E.holes(e) else e


def with_sizes(e: Expr, sizes: Mapping[str, int]) -> Expr:
    """A value with numbers for the holes, or the variables, of sizes, as it would be if they had been written
    there. ``sizes``: {variable: number}.

    >>> with_sizes(te.cast(Hole("n.size"), "float32"), {"n.size": 3})
    3.0
    """

    def visit(x: Expr) -> Expr | None:
        if (E.holes(x) | E.variables(x)).isdisjoint(sizes):
            return x
        if isinstance(x, (Hole, Var)):
            return Const(sizes[x.name])
        if isinstance(x, Cast):
            through = isinstance(x.a, Cast) and x.a.dtype == computed(x.dtype)
            a = x.a.a if isinstance(x.a, Cast) and through else x.a
            number = with_sizes(a, sizes) if E.dtype_of(a) == INDEX else a
            if isinstance(number, Const) and (is_float(x.dtype) or number.value in DTYPES[x.dtype].range):
                return cast(number, x.dtype)
        return None

    return E.rewrite(e, visit)


def speaks_of_sizes(s: Stage) -> bool:
    """Whether a size stands in what a stage computes, not only in how much that is."""
    return any(map(E.holes, (*s.values, *s.where, *s.places)))


def stage_with_sizes(s: Stage, sizes: Mapping[str, int]) -> Stage:
    """A stage with `with_sizes` of its values."""
    if not speaks_of_sizes(s):
        return s
    values, where, places = (
        tuple(with_sizes(v, sizes) for v in every) for every in (s.values, s.where, s.places)
    )
    return replace(s, values=values, where=where, places=places)


def flaw_of_arithmetic(e: Expr, ranges: affine.Ranges) -> str:
    """What is wrong with the arithmetic of a value at some of the sizes; nothing if it is right at each.
    ``ranges``: of the axes and of the variables of sizes."""
    if affine.leaves(e, ranges, DTYPES["int64"].range[-1]) is not None:
        return f"{E.show(e)} may leave 64 bits, the range of sizes and axes; compute in float64"
    for x in E.walk(e):
        if isinstance(x, Binary) and x.op in ("//", "%", "ceildiv") and affine.has_size(x.b):
            r = affine.value_bounds(x.b, ranges)
            if r is None or r[0] <= 0 <= r[1]:
                return (
                    f"{E.show(x)} may divide by 0 at some size; divide by te.maximum({E.show(x.b)}, 1), "
                    "or raise the least size"
                )
    return ""
