"""Arithmetic that Python has no operator for, as folded expressions."""

from __future__ import annotations

from schedules.dtypes import is_float
from schedules.expr.nodes import INDEX, Expr, ExprLike, Fma, _pair, binary


def ceildiv(a: ExprLike, b: ExprLike) -> Expr:
    """``a / b`` rounded up, for integers."""
    return binary("ceildiv", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The smaller of two values; NaN if one is NaN.
    In `compute`, operands of different dtypes raise `WorkloadError`. Example: ``te.minimum(x[i], y[i])``."""
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The larger of two values; NaN if one is NaN.
    In `compute`, operands of different dtypes raise `WorkloadError`. Example: ``te.maximum(x[i], 0.0)``."""
    return binary("max", a, b)


def fma(a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
    """``a * b + c`` in one operation. Raises TypeError unless all are of one floating-point dtype."""
    ea, eb, d = _pair(a, b)
    ec, _, dc = _pair(c, ea)
    if d != dc or d == INDEX or not is_float(d):
        raise TypeError(f"needs three operands of one floating-point dtype, got {d} and {dc}; use te.cast")
    return Fma(ea, eb, ec)
