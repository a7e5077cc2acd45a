"""The functions of floating point that expressions may call, in one table.

A row says what a function means, how far a right kernel may be from it, and how it hands on the errors of its
arguments. Its code on CPUs is in `autotune/codegen/llvm/vector_math.py`, its slope in
`schedules/te/reverse_mode/slopes.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

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
    exact arguments are exact. ``c``: its name in the libraries of C, where that is another."""

    name: str
    of: Callable[..., Array]
    error: float = 0.0
    change: Callable[..., Array] | None = None
    open: Callable[..., Array] = lambda a, e: np.isinf(e)
    arity: int = 1
    cheap: bool = False
    whole: bool = False
    c: str = ""


_erf_of_number = np.frompyfunc(math.erf, 1, 1)
# Slope of erf at 0.
_SQRT_PI = 2 / math.sqrt(math.pi)


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


FUNCTIONS = {
    row.name: row
    for row in (
        Function("exp", np.exp, 6.0, lambda a, e, v: unbounded(np.where(e > 0, v * np.expm1(e), 0))),
        Function("log", np.log, 6.0, _log_change, _near_zero),
        Function("sqrt", np.sqrt, 6.0, _sqrt_change, _near_zero, whole=True),
        Function("tanh", np.tanh, 10.0, _rises(np.tanh, _tanh_slope), lambda a, e: np.isinf(e) & np.isnan(a)),
        Function(
            "erf", _erf, 32.0,
            _rises(_erf, lambda a, e: _SQRT_PI * np.exp(-np.square(np.maximum(np.abs(a) - e, 0)))),
            lambda a, e: np.isinf(e) & np.isnan(a),
        ),
        Function(
            "sigmoid", _sigmoid, 12.0,  # its slope s (1 - s) changes by at most exp(e)
            _rises(_sigmoid, lambda a, e: _sigmoid(a) * _sigmoid(-np.asarray(a)) * np.exp(e)),
            lambda a, e: np.isinf(e) & np.isnan(a),
        ),
        Function("sin", np.sin, 8.0, _turns(np.cos), _leaves),
        Function("cos", np.cos, 8.0, _turns(np.sin), _leaves),
        Function("tan", np.tan, 10.0, _tan_change, _leaves),
        Function("pow", _pow, 32.0, _pow_change, _pow_open, arity=2),
        Function("fmod", np.fmod, change=_fmod_change, open=_fmod_open, arity=2),
        Function(
            "log1p", np.log1p, 4.0,
            lambda a, e, v: _log_change(1 + a, e, v), lambda a, e: _near_zero(1 + a, e),
        ),
        Function(
            "expm1", np.expm1, 6.0,
            lambda a, e, v: unbounded(np.where(e > 0, np.exp(a) * np.expm1(e), 0)),
        ),
        Function("abs", np.abs, change=lambda a, e, v: e, cheap=True, c="fabs"),
        Function("floor", np.floor, cheap=True),
        Function("ceil", np.ceil, cheap=True),
        Function("round", np.rint, cheap=True, c="rint"),
    )
}  # fmt: skip
