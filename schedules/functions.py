"""The functions of floating point that expressions may call, in one table.

A row says what a function means, how far a right kernel may be from it, how it hands on the errors of its
arguments, its slope, and what `te` says of it. Its code on CPUs is in `autotune/codegen/llvm/vector_math.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from schedules import expr as E
from schedules.expr import Call, Const, Expr

# Numbers, or numpy arrays that broadcast.
Array = Any


@dataclass(frozen=True, slots=True)
class Function:
    """One row. ``of``: its meaning on numpy arrays, in their dtype. ``error``: the largest error of a right
    kernel in units of u, half the distance between 1 and the next number: of our own on CPUs, and what OpenCL
    allows devices; 0 if it is exact. ``change``: the largest change of the result ``v`` by errors of the
    arguments, ``change(*arguments, *errors, v)``; None for a step, which is taken at both ends and has no
    slope. ``open``: where a right kernel may have any number or NaN, ``open(*arguments, *errors)``.
    ``arity``: number of arguments. ``cheap``: one instruction of few cycles. ``whole``: whole results of
    exact arguments are exact. ``c``: its name in the libraries of C, where that is another. ``slope``: that
    along each argument, None where that is no input, from the arguments and the result; None for a step.
    ``doc``: a sentence or two for the help of the function of `te` that has its name, which follows from it;
    empty where that does more than call it."""

    name: str
    of: Callable[..., Array]
    error: float = 0.0
    change: Callable[..., Array] | None = None
    open: Callable[..., Array] = lambda a, e: np.isinf(e)
    arity: int = 1
    cheap: bool = False
    whole: bool = False
    c: str = ""
    slope: Callable[[tuple[Expr, ...], Expr], tuple[Expr | None, ...]] | None = None
    doc: str = ""


_erf_of_number = np.frompyfunc(math.erf, 1, 1)
# Slope of erf at 0.
_SQRT_PI = 2 / math.sqrt(math.pi)
_LN2, _LN10 = math.log(2), math.log(10)


def _erf(x: Array) -> Array:
    return np.asarray(_erf_of_number(np.asarray(x, np.float64)), np.float64).astype(np.asarray(x).dtype)


def _sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1, np.exp(-np.abs(x))) / (1 + np.exp(-np.abs(x)))


def _pow(x: Array, y: Array) -> Array:
    """As in C. For one exponent of 0.5 numpy takes the root, which is -0 of -0 and NaN of -inf."""
    as_root = (y == 0.5) & ((x == 0) | np.isinf(x))
    return np.power(np.where(as_root, np.abs(x), x), y)


# --- how errors of arguments change results ---------------------------------------------------


def unbounded(e: Array) -> Array:
    """``e`` with inf for NaN, such as of an infinite error times 0: anything is right."""
    return np.where(np.isnan(e), np.inf, e) if np.isnan(e).any() else e


def _rises(f: Callable[[Array], Array], slope: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """The change of an increasing function. ``slope(a, e)``: its largest within an error of at most 1, for
    which differences between the ends would have no digits."""

    def change(a: Array, e: Array, v: Array) -> Array:
        few = np.minimum(e, 1)
        near = slope(a, few) * few
        if not (e > 1).any():
            return near
        low, high = np.where(np.isinf(e), -np.inf, a - e), np.where(np.isinf(e), np.inf, a + e)
        return np.where(e > 1, np.maximum(v - f(low), f(high) - v), near)

    return change


def _tanh_slope(a: Array, e: Array) -> Array:
    a = np.asarray(a)
    return np.minimum(4 * _sigmoid(2 * a) * _sigmoid(-2 * a) * np.exp(2 * e), 1)


def _sqrt_change(a: Array, e: Array, v: Array) -> Array:
    low = np.sqrt(np.maximum(a - e, 0))
    return np.where(e > 0, np.maximum(v - low, np.sqrt(a + e) - v), 0)


def _log_change(a: Array, e: Array, v: Array) -> Array:
    return np.where(e > 0, np.where(a > e, e / (a - e), np.inf), 0)


def _near_zero(a: Array, e: Array) -> Array:
    """Where the argument of a root or a logarithm may be negative."""
    return np.isinf(e) | ((np.abs(a) <= e) & (e > 0))


def _turns(of_slope: Callable[[Array], Array]) -> Callable[..., Array]:
    """The change of sine or cosine, whose slope changes by at most e within e."""
    return lambda a, e, v: np.minimum(2, np.minimum(1, np.abs(of_slope(a)) + e) * e)


def _leaves(a: Array, e: Array) -> Array:
    """Where the argument of a periodic function may be infinite."""
    return np.isinf(np.abs(a) + e) & np.isfinite(a)


def _tan_change(a: Array, e: Array, v: Array) -> Array:
    nearest = np.abs(np.cos(a)) - e  # the least size of the cosine within e
    return np.where(e > 0, np.where(nearest > 0, e / np.square(np.maximum(nearest, 1e-300)), np.inf), 0)


def _pow_change(a: Array, b: Array, ea: Array, eb: Array, v: Array) -> Array:
    """Of x^y = exp(y ln x), by the change of its exponent; where the base may reach 0, by both ends."""
    size = np.abs(a)
    base = np.where(ea > 0, (np.abs(b) + eb) * _log_change(size, ea, v), 0)
    power = np.where(eb > 0, eb * np.abs(np.log(size)), 0)
    return np.where((ea > 0) | (eb > 0), unbounded(np.abs(v) * np.expm1(unbounded(base + power))), 0)


def _pow_open(a: Array, b: Array, ea: Array, eb: Array) -> Array:
    """A base that may be 0 or negative, or an exponent of a negative base that may not be whole."""
    return np.isinf(ea) | np.isinf(eb) | ((ea > 0) & (np.abs(a) <= ea)) | ((eb > 0) & ~(a > 0))


def _fmod_change(a: Array, b: Array, ea: Array, eb: Array, v: Array) -> Array:
    """Of a - q b with a whole q: as far as both move it, unless q may be another."""
    size, by = np.abs(v), np.abs(b)
    q = np.abs(np.rint((a - v) / b))
    slip = unbounded(ea + q * eb)
    stays = (slip < by - eb - size) & ((q == 0) | (slip < size))
    return np.where((ea > 0) | (eb > 0), np.where(stays, slip, size + by + eb), 0)


def _fmod_open(a: Array, b: Array, ea: Array, eb: Array) -> Array:
    """A divisor that may be 0, or a dividend that may be infinite."""
    return _near_zero(b, eb) | _leaves(a, ea)


def _atan2_change(y: Array, x: Array, ey: Array, ex: Array, v: Array) -> Array:
    """Of an angle, by how far the point moves from where it lies; a whole turn where it may pass the origin
    or the negative half of the axis."""
    by, size = np.hypot(ey, ex), np.hypot(y, x)
    passes = (by >= size) | ((np.abs(y) <= ey) & (ey > 0) & ((x < ex) | np.signbit(x)))
    angle = np.arcsin(np.minimum(by / np.where(size > 0, size, 1), 1))
    return np.where(by > 0, np.where(passes, 2 * math.pi, angle), 0)


def _beyond_one(a: Array, e: Array) -> Array:
    """Where an argument that is cut off at ±1 may lie beyond."""
    return np.isinf(e) | ((np.abs(a) + e >= 1) & (np.abs(a) - e <= 1) & (e > 0))


def _inside_one(slope: Callable[[Array], Array]) -> Callable[..., Array]:
    """The change of a function between -1 and 1, whose slope is that of the product (1 - a) (1 + a)."""

    def change(a: Array, e: Array, v: Array) -> Array:
        far = np.abs(a) + e
        return np.where(e > 0, np.where(far < 1, e / slope((1 - far) * (1 + far)), np.inf), 0)

    return change


def _acosh_change(a: Array, e: Array, v: Array) -> Array:
    low = a - e
    there = (e > 0) & (a + e >= 1)  # else it is NaN
    return np.where(there, np.where(low > 1, e / np.sqrt((low - 1) * (low + 1)), np.inf), 0)


def _cbrt_change(a: Array, e: Array, v: Array) -> Array:
    """By the largest slope, or by the two sides of 0, which are farthest apart."""
    least = np.abs(a) - e
    by_slope = np.where(least > 0, e / (3 * np.square(np.cbrt(np.maximum(least, 1e-300)))), np.inf)
    return np.where(e > 0, np.minimum(by_slope, 2 * np.cbrt(e / 2)), 0)


def _bends(of_slope: Callable[[Array], Array]) -> Callable[..., Array]:
    """The change of sinh or cosh: twice its slope in the middle, times sinh(e / 2)."""
    return lambda a, e, v: unbounded(np.where(e > 0, 2 * of_slope(np.abs(a) + e / 2) * np.sinh(e / 2), 0))


# --- slopes -----------------------------------------------------------------------------------


def _pow_slope(args: tuple[Expr, ...], result: Expr) -> tuple[Expr | None, ...]:
    x, y = args
    if isinstance(y, Const):
        lower = E.power(x, float(y.value) - 1)
        return lower if y.value == 1.0 else E.binary("*", y, lower), None
    lower = E.binary("*", y, Call("pow", (x, E.binary("-", y, 1.0))))
    nothing = E.all_of(E.compare("==", x, 0.0), E.compare("<=", 0.0, y))  # the logarithm is infinite there
    along_y = E.select(nothing, 0.0, E.binary("*", result, Call("log", (x,))))
    return E.select(E.compare("==", y, 0.0), 0.0, lower), along_y


def _fmod_slope(args: tuple[Expr, ...], result: Expr) -> tuple[Expr | None, ...]:
    """Of x - q y: the slopes 1 and -q, by the whole number q."""
    x, y = args
    return E.wrap(1.0, E.dtype_of(x)), Call("round", (E.binary("/", E.binary("-", result, x), y),))


def _atan2_slope(args: tuple[Expr, ...], result: Expr) -> tuple[Expr | None, ...]:
    """At the origin 0, as in torch."""
    y, x = args
    square = y * y + x * x
    origin = E.compare("==", square, 0.0)
    return E.select(origin, 0.0, x / square), E.select(origin, 0.0, -1.0 * y / square)


def _hypot_slope(args: tuple[Expr, ...], result: Expr) -> tuple[Expr | None, ...]:
    """At the origin 0."""
    origin = E.compare("==", result, 0.0)
    return tuple(E.select(origin, 0.0, x / result) for x in args)


def _one_over_root(square: Expr) -> Expr:
    return 1.0 / Call("sqrt", (square,))


def _around_one(x: Expr) -> Expr:
    """1 - x², with all digits near ±1."""
    return (1.0 - x) * (1.0 + x)


def _abs_slope(args: tuple[Expr, ...], result: Expr) -> tuple[Expr | None, ...]:
    x, one = args[0], E.wrap(1.0, E.dtype_of(args[0]))
    below = E.select(E.compare("<", x, 0.0), -1.0, E.wrap(0.0, E.dtype_of(x)))
    return (E.select(E.compare("<", 0.0, x), one, below),)


def _tf32(x: Array) -> Array:
    """By the bits of a float32: half of the last bit that stays is added to it, and the rest is cut off."""
    with np.errstate(over="ignore"):
        near = np.asarray(x, np.float32)
    rounded = ((near.view(np.int32) + np.int32(1 << 12)) & np.int32(-1 << 13)).view(np.float32)
    return np.where(np.isnan(near), near, rounded).astype(np.asarray(x).dtype)


def _tf32_change(a: Array, e: Array, v: Array) -> Array:
    """By both ends, between which it rises."""
    low, high = np.nextafter(a - e, -np.inf), np.nextafter(a + e, np.inf)
    return np.where(e > 0, np.maximum(v - _tf32(low), _tf32(high) - v), 0)


FUNCTIONS = {
    row.name: row
    for row in (
        Function(
            "exp", np.exp, 6.0, lambda a, e, v: unbounded(np.where(e > 0, v * np.expm1(e), 0)),
            slope=lambda x, y: (y,), doc="e to the power of x. On CPUs within 2 ulp.",
        ),
        Function(
            "log", np.log, 6.0, _log_change, _near_zero,
            slope=lambda x, y: (1.0 / x[0],), doc="The natural logarithm of x. On CPUs within 1 ulp.",
        ),
        Function(
            "sqrt", np.sqrt, 6.0, _sqrt_change, _near_zero, whole=True,
            slope=lambda x, y: (0.5 / y,), doc="The square root of x, rounded once.",
        ),
        Function(
            "tanh", np.tanh, 10.0, _rises(np.tanh, _tanh_slope), lambda a, e: np.isinf(e) & np.isnan(a),
            slope=lambda x, y: (1.0 - y * y,), doc="The hyperbolic tangent of x. On CPUs within 3 ulp.",
        ),
        Function(
            "erf", _erf, 32.0,
            _rises(_erf, lambda a, e: _SQRT_PI * np.exp(-np.square(np.maximum(np.abs(a) - e, 0)))),
            lambda a, e: np.isinf(e) & np.isnan(a),
            slope=lambda x, y: (Call("exp", (-(x[0] * x[0]),)) * _SQRT_PI,),
            doc="The error function of x. On CPUs within 8 ulp.",
        ),
        Function(
            "sigmoid", _sigmoid, 12.0,  # its slope s (1 - s) changes by at most exp(e)
            _rises(_sigmoid, lambda a, e: _sigmoid(a) * _sigmoid(-np.asarray(a)) * np.exp(e)),
            lambda a, e: np.isinf(e) & np.isnan(a),
            slope=lambda x, y: (y * (1.0 - y),), doc="1 / (1 + exp(-x)). On CPUs within 4 ulp.",
        ),
        Function(
            "sin", np.sin, 8.0, _turns(np.cos), _leaves, slope=lambda x, y: (Call("cos", x),),
            doc="The sine of x in radians, of any size: arguments are reduced by as many digits of pi as "
            "they need. On CPUs within 1 ulp.",
        ),
        Function(
            "cos", np.cos, 8.0, _turns(np.sin), _leaves, slope=lambda x, y: (-Call("sin", x),),
            doc="The cosine of x in radians, of any size, as `sin`. On CPUs within 1 ulp.",
        ),
        Function(
            "tan", np.tan, 10.0, _tan_change, _leaves, slope=lambda x, y: (1.0 + y * y,),
            doc="The tangent of x in radians, of any size, as `sin`. On CPUs within 2 ulp.",
        ),
        Function("pow", _pow, 32.0, _pow_change, _pow_open, arity=2, slope=_pow_slope),
        Function(
            "fmod", np.fmod, change=_fmod_change, open=_fmod_open, arity=2, slope=_fmod_slope,
            doc="The remainder of x / y with the sign of x, as C's fmod: x - q y, where q is the quotient "
            "rounded towards 0. Exact for quotients of any size; NaN where x is infinite or y is 0.",
        ),
        Function(
            "log1p", np.log1p, 4.0,
            lambda a, e, v: _log_change(1 + a, e, v), lambda a, e: _near_zero(1 + a, e),
            slope=lambda x, y: (1.0 / (1.0 + x[0]),),
            doc="log(1 + x), with all digits near 0 too. On CPUs within 2 ulp.",
        ),
        Function(
            "expm1", np.expm1, 6.0,
            lambda a, e, v: unbounded(np.where(e > 0, np.exp(a) * np.expm1(e), 0)),
            slope=lambda x, y: (y + 1.0,),
            doc="exp(x) - 1, with all digits near 0 too. On CPUs within 2 ulp.",
        ),
        Function(
            "exp2", np.exp2, 6.0, lambda a, e, v: unbounded(np.where(e > 0, v * np.expm1(e * _LN2), 0)),
            slope=lambda x, y: (y * _LN2,), doc="2 to the power of x. On CPUs within 2 ulp.",
        ),
        Function(
            "atan2", np.arctan2, 12.0, _atan2_change, lambda y, x, ey, ex: np.isinf(ey) | np.isinf(ex),
            arity=2, slope=_atan2_slope,
            doc="The angle in radians, from -pi to pi, of the point whose height is x and which lies y to "
            "the right: C's atan2(x, y), with its special values. On CPUs within 2 ulp.",
        ),
        Function(
            "log2", np.log2, 6.0, lambda a, e, v: _log_change(a, e, v) / _LN2, _near_zero,
            slope=lambda x, y: (1.0 / (x[0] * _LN2),),
            doc="The logarithm of x to the base 2. Exact of powers of 2; on CPUs within 1 ulp.",
        ),
        Function(
            "log10", np.log10, 6.0, lambda a, e, v: _log_change(a, e, v) / _LN10, _near_zero,
            slope=lambda x, y: (1.0 / (x[0] * _LN10),),
            doc="The logarithm of x to the base 10. On CPUs within 1 ulp.",
        ),
        Function(
            "cbrt", np.cbrt, 4.0, _cbrt_change, slope=lambda x, y: (1.0 / (3.0 * y * y),),
            doc="The cube root of x, negative where x is. On CPUs within 1 ulp.",
        ),
        Function(
            "hypot", np.hypot, 8.0, lambda a, b, ea, eb, v: ea + eb,
            lambda a, b, ea, eb: np.isinf(ea) | np.isinf(eb), arity=2, slope=_hypot_slope,
            doc="The length of the hypotenuse, the square root of x² + y², of which no part overflows. "
            "Infinite where one of them is. On CPUs within 2 ulp.",
        ),
        Function(
            "asin", np.arcsin, 8.0, _inside_one(np.sqrt), _beyond_one,
            slope=lambda x, y: (_one_over_root(_around_one(x[0])),),
            doc="The angle in radians, from -pi/2 to pi/2, whose sine is x. NaN beyond -1 and 1. On CPUs "
            "within 2 ulp.",
        ),
        Function(
            "acos", np.arccos, 8.0, _inside_one(np.sqrt), _beyond_one,
            slope=lambda x, y: (-1.0 * _one_over_root(_around_one(x[0])),),
            doc="The angle in radians, from 0 to pi, whose cosine is x. NaN beyond -1 and 1. On CPUs within "
            "2 ulp.",
        ),
        Function(
            "atan", np.arctan, 10.0,
            _rises(np.arctan, lambda a, e: 1 / (1 + np.square(np.maximum(np.abs(a) - e, 0)))),
            lambda a, e: np.isinf(e) & np.isnan(a),
            slope=lambda x, y: (1.0 / (1.0 + x[0] * x[0]),),
            doc="The angle in radians, from -pi/2 to pi/2, whose tangent is x. On CPUs within 2 ulp.",
        ),
        Function(
            "sinh", np.sinh, 8.0, _bends(np.cosh), slope=lambda x, y: (Call("cosh", x),),
            doc="The hyperbolic sine of x. On CPUs within 2 ulp.",
        ),
        Function(
            "cosh", np.cosh, 8.0, _bends(np.sinh), slope=lambda x, y: (Call("sinh", x),),
            doc="The hyperbolic cosine of x. On CPUs within 2 ulp.",
        ),
        Function(
            "asinh", np.arcsinh, 8.0,
            _rises(np.arcsinh, lambda a, e: 1 / np.hypot(1, np.maximum(np.abs(a) - e, 0))),
            slope=lambda x, y: (1.0 / Call("hypot", (x[0], E.wrap(1.0, E.dtype_of(x[0])))),),
            doc="The inverse of `sinh`. On CPUs within 3 ulp.",
        ),
        Function(
            "acosh", np.arccosh, 8.0, _acosh_change,
            lambda a, e: np.isinf(e) | ((a - e <= 1) & (a + e >= 1) & (e > 0)),
            slope=lambda x, y: (_one_over_root((x[0] - 1.0) * (x[0] + 1.0)),),
            doc="The inverse of `cosh`, of which both signs have one; NaN below 1. On CPUs within 3 ulp.",
        ),
        Function(
            "atanh", np.arctanh, 10.0, _inside_one(lambda product: product), _beyond_one,
            slope=lambda x, y: (1.0 / _around_one(x[0]),),
            doc="The inverse of `tanh`. NaN beyond -1 and 1. On CPUs within 3 ulp.",
        ),
        Function("abs", np.abs, change=lambda a, e, v: e, cheap=True, c="fabs", slope=_abs_slope),
        Function("floor", np.floor, cheap=True, doc="The largest whole number that is not above x. Exact."),
        Function("ceil", np.ceil, cheap=True, doc="The least whole number that is not below x. Exact."),
        Function("trunc", np.trunc, cheap=True, doc="The whole number next to x towards 0. Exact."),
        Function(
            "round", np.rint, cheap=True, c="rint",
            doc="The nearest whole number, of two the even one: ``te.round(2.5)`` is 2. Exact.",
        ),
        Function(
            "tf32", _tf32, change=_tf32_change,
            open=lambda a, e: np.isinf(e) | ((np.abs(a) + e > 3.4e38) & (e > 0)), cheap=True,
            slope=lambda x, y: (E.wrap(1.0, E.dtype_of(x[0])),),
            doc="The nearest number with 10 bits of mantissa and the exponent of float32, of two the one "
            "away from 0: what matrix units of NVIDIA GPUs multiply in place of float32. Exact.",
        ),
    )
}  # fmt: skip


def is_costly(values: Iterable[Expr]) -> bool:
    """Whether values are worth keeping: special functions or divisions."""
    return any(
        (isinstance(x, Call) and not FUNCTIONS[x.fn].cheap) or (isinstance(x, E.Binary) and x.op == "/")
        for v in values
        for x in E.walk(v)
    )
