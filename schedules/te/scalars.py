"""Scalar functions of tensor expressions: literals, casts, conditions and math. `te` exports all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.dtypes import DTYPES, computed, is_storage
from schedules.errors import WorkloadError, suggest
from schedules.expr import INDEX, Const, Expr, ExprLike

# A Python float, for use where a number is; also -inf.
inf = math.inf


def check_dtype(dtype: Any, what: str) -> str:
    """``dtype`` as a name; numpy dtypes are accepted. Raises `WorkloadError` for others."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    try:
        name = "" if dtype is None or isinstance(dtype, str) else np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in DTYPES:
        raise WorkloadError(
            f"{what}: dtype {dtype!r} is not one of {', '.join(DTYPES)}{suggest(dtype, DTYPES)}; "
            "choose one of these"
        )
    return name


def const(value: int | float, dtype: str) -> Const:
    """A literal of ``dtype``, for floats also ``te.inf`` and NaN. Raises `WorkloadError` if an integer dtype
    cannot hold it."""
    check_dtype(dtype, "te.const")
    try:
        if E.is_float(dtype):
            return Const(float(value), dtype)
        fits = int(value) == value and int(value) in DTYPES[dtype].range
    except (OverflowError, ValueError):  # an integer beyond all floats, an infinity or NaN
        fits = False
    if not fits:
        remedy = "choose another dtype"
        if value in (inf, -inf):
            remedy = f'its end is te.{"max" if value > 0 else "min"}_value("{dtype}")'
        raise WorkloadError(f"{value!r} is not a value of {dtype}; {remedy}")
    return Const(bool(value) if dtype == "bool" else int(value), dtype)


def max_value(dtype: str) -> Const:
    """The largest finite value of ``dtype``. For floats ``te.inf`` is larger: a minimum that may meet
    infinities starts there."""
    return const(_finite(dtype, "max"), dtype)


def min_value(dtype: str) -> Const:
    """The lowest finite value of ``dtype``. For floats ``-te.inf`` is lower: a maximum that may meet
    infinities starts there."""
    return const(_finite(dtype, "min"), dtype)


def _finite(dtype: str, end: str) -> int | float:
    row = DTYPES[check_dtype(dtype, f"te.{end}_value")]
    if E.is_float(dtype):
        return row.largest if end == "max" else -row.largest
    return row.range[-1 if end == "max" else 0]


def limit(dtype: str, sign: int) -> Const:
    """The identity of max (sign -1) and of min (sign 1)."""
    if E.is_float(dtype):
        return Const(sign * inf, dtype)
    return max_value(dtype) if sign > 0 else min_value(dtype)


def cast(value: ExprLike, dtype: str) -> Expr:
    """``value`` as ``dtype``. Float to int truncates towards zero and ends at the largest and least. A dtype
    of storage is made by way of the one that it is computed with: float16 and bfloat16 round a float32, int8
    and uint8 keep the low bits of an int32. bool is whether ``value`` is not 0; a condition is 0 or 1.
    Example: ``te.cast(x[i] * scale, "int8")``."""
    e = value if isinstance(value, Expr) else E.wrap(value, "float32" if isinstance(value, float) else INDEX)
    old, new = E.dtype_of(e), check_dtype(dtype, "te.cast")
    if old == new:
        return e
    if new == "bool":
        return E.compare("!=", e, 0)
    if isinstance(e, Const) and e.dtype in (INDEX, "bool"):
        return const(e.value, dtype)
    if is_storage(old) and new != computed(old):
        e = E.widen(e)
    if is_storage(new) and E.dtype_of(e) != computed(new):
        e = E.Cast(computed(new), e)
    return E.Cast(new, e)


def select(cond: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """``a`` where ``cond`` holds, else ``b``. Only the chosen side is evaluated."""
    c = _cond(cond, "te.select")
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        like = "float32" if isinstance(a, float) or isinstance(b, float) else INDEX
        return E.select(c, E.wrap(a, like), E.wrap(b, like))
    return E.select(c, a, b)


if_then_else = select


def _cond(c: Any, what: str) -> Expr:
    if isinstance(c, Expr) and E.dtype_of(c) == "bool":
        return c
    got = f"the Python bool {c}" if isinstance(c, bool) else E.show(c) if isinstance(c, Expr) else repr(c)
    raise WorkloadError(
        f"{what} needs a condition over axes or elements, got {got}; compare with <, <=, >, >=, "
        "te.equal or te.not_equal (== compares the expressions' text, not their values)"
    )


def equal(a: ExprLike, b: ExprLike) -> Expr:
    """Whether two values are equal."""
    return E.compare("==", a, b)


def not_equal(a: ExprLike, b: ExprLike) -> Expr:
    """Whether two values differ."""
    return E.compare("!=", a, b)


def all(*conds: Expr) -> Expr:
    """Whether every condition holds."""
    return E.all_of(*(_cond(c, "te.all") for c in conds))


def any(*conds: Expr) -> Expr:
    """Whether some condition holds."""
    return E.any_of(*(_cond(c, "te.any") for c in conds))


def logical_not(cond: Expr) -> Expr:
    """Whether a condition does not hold."""
    c = _cond(cond, "te.logical_not")
    return Const(not c.value, "bool") if isinstance(c, Const) else E.Logic("not", (c,))


def fma(a: ExprLike, b: ExprLike, c: ExprLike) -> Expr:
    """``a * b + c`` in floating point, in one instruction if the processor has it: the product is then not
    rounded, else it is. All else is rounded as written.

    Raises WorkloadError for operands of different dtypes or integers. Example: ``te.fma(x[i], scale[i],
    shift[i])``."""
    try:
        return E.fma(a, b, c)
    except TypeError as err:
        raise WorkloadError(f"te.fma: {err}") from None


minimum = E.minimum
maximum = E.maximum


def _call(fn: str, x: Any) -> Expr:
    if isinstance(x, (int, float)) and not isinstance(x, bool):
        x = Const(float(x), "float32")
    if not isinstance(x, Expr) or not E.is_float(E.dtype_of(x)):
        got = f"dtype {E.dtype_of(x)}" if isinstance(x, Expr) else repr(x)
        raise WorkloadError(
            f'te.{fn} needs a floating-point expression, got {got}; use te.cast(x, "float32")'
        )
    return E.Call(fn, E.widen(x))


def exp(x: ExprLike) -> Expr:
    """e to the power of x. Raises `WorkloadError` unless x is floating point."""
    return _call("exp", x)


def log(x: ExprLike) -> Expr:
    """The natural logarithm of x. Raises `WorkloadError` unless x is floating point."""
    return _call("log", x)


def sqrt(x: ExprLike) -> Expr:
    """The square root of x. Raises `WorkloadError` unless x is floating point."""
    return _call("sqrt", x)


def tanh(x: ExprLike) -> Expr:
    """The hyperbolic tangent of x. Raises `WorkloadError` unless x is floating point."""
    return _call("tanh", x)


def erf(x: ExprLike) -> Expr:
    """The error function of x. Raises `WorkloadError` unless x is floating point."""
    return _call("erf", x)


def sigmoid(x: ExprLike) -> Expr:
    """1 / (1 + exp(-x)). Raises `WorkloadError` unless x is floating point."""
    return _call("sigmoid", x)


def floor(x: ExprLike) -> Expr:
    """The largest whole number that is not above x. Raises `WorkloadError` unless x is floating point."""
    return _call("floor", x)


def abs(x: ExprLike) -> Expr:
    """|x|, of integers too."""
    if isinstance(x, Expr) and not E.is_float(E.dtype_of(x)):
        x = E.widen(x)
        return E.select(x < 0, -x, x)
    return _call("abs", x)
