"""Sizes that a call tells, where a stage computes with them: in its values, and in the indices of its loads.

There a size is its variable (`variable`), an integer of index arithmetic as an axis is: ``x[n - 1, j]`` is the
last row, ``te.cast(n, "float32")`` a number of elements, ``t < n`` a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, computed, is_float
from schedules.expr import INDEX, Binary, Cast, Const, Expr, Var
from schedules.te.scalars import cast

if TYPE_CHECKING:
    from schedules.te.compute_dag import Stage


def variable(size: str) -> str:
    """The name of the variable of a size, which no axis and no loop has."""
    return f"{size}.size"


def in_variables(e: Expr) -> Expr:
    """An expression of names of sizes as one of their variables."""
    return E.rewrite(e, lambda x: Var(variable(x.name)) if isinstance(x, Var) else None)


def with_sizes(e: Expr, sizes: Mapping[str, int]) -> Expr:
    """An expression with numbers for the variables of sizes, as it would be if they had been written there.
    ``sizes``: {variable: number}.

    >>> with_sizes(te.cast(Var("n.size"), "float32"), {"n.size": 3})
    3.0
    """

    def visit(x: Expr) -> Expr | None:
        if E.variables(x).isdisjoint(sizes):
            return x
        if isinstance(x, Var):
            return Const(sizes[x.name])
        if isinstance(x, Cast):
            through = isinstance(x.a, Cast) and x.a.dtype == computed(x.dtype)
            a = x.a.a if isinstance(x.a, Cast) and through else x.a
            number = with_sizes(a, sizes) if E.dtype_of(a) == INDEX else a
            if isinstance(number, Const) and (is_float(x.dtype) or number.value in DTYPES[x.dtype].range):
                return cast(number, x.dtype)
        return None

    return E.rewrite(e, visit)


def stage_with_sizes(s: Stage, sizes: Mapping[str, int]) -> Stage:
    """A stage with `with_sizes` of its values."""
    if all(E.variables(v).isdisjoint(sizes) for v in s.values):
        return s
    return replace(s, values=tuple(with_sizes(v, sizes) for v in s.values))


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
