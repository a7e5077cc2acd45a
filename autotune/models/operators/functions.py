"""Functions of scalars that te has no name for, and activations."""

from __future__ import annotations

import math
from collections.abc import Callable

from schedules import te
from schedules.dtypes import computed
from schedules.expr import Const, Expr, dtype_of


def _like(x: Expr, value: float) -> Const:
    """A literal of the dtype that ``x`` is computed with."""
    return te.const(value, computed(dtype_of(x)))


# --- numbers ----------------------------------------------------------------------------------


def truncated_quotient(a: Expr, b: Expr) -> Expr:
    """a / b of integers, rounded towards zero as in C; floats are divided."""
    if dtype_of(a) in ("float16", "bfloat16", "float32", "float64"):
        return a / b
    low = a // b
    return te.select(te.all(low < 0, te.not_equal(low * b, a)), low + 1, low)


def c_remainder(a: Expr, b: Expr) -> Expr:
    """The remainder of integers with the sign of ``a``, as in C."""
    r = a % b
    differ = te.any(te.all(a < 0, b > 0), te.all(a > 0, b < 0))
    return te.select(te.all(differ, te.not_equal(r, 0)), r - b, r)


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; NaN of NaN."""
    zero = _like(x, 0)
    return te.select(x > 0, _like(x, 1), te.select(x < 0, _like(x, -1), te.select(te.equal(x, 0), zero, x)))


def without_nan(fold: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """A maximum or a minimum, of a number and NaN the number."""
    return te.select(te.not_equal(a, a), b, te.select(te.not_equal(b, b), a, fold(a, b)))


# --- activations ------------------------------------------------------------------------------


def relu(x: Expr) -> Expr:
    return te.maximum(x, 0)


def gelu(x: Expr) -> Expr:
    """x Φ(x) (Hendrycks and Gimpel, Gaussian error linear units, 2016)."""
    return x * 0.5 * (te.erf(x * math.sqrt(0.5)) + 1.0)


def gelu_tanh(x: Expr) -> Expr:
    """Gelu's approximation by tanh."""
    return x * 0.5 * (te.tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)


def elu(x: Expr, alpha: float = 1.0) -> Expr:
    return te.select(x < 0, te.expm1(x) * alpha, x)


def scaled_elu(x: Expr, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Expr:
    return te.select(x > 0, x, te.expm1(x * input_scale) * alpha) * scale


def selu(x: Expr, alpha: float, gamma: float) -> Expr:
    return te.select(x <= 0, (te.exp(x) * alpha - alpha) * gamma, x * gamma)


def celu(x: Expr, alpha: float = 1.0) -> Expr:
    return te.maximum(x, 0.0) + te.minimum(te.expm1(x / alpha) * alpha, 0.0)


def leaky_relu(x: Expr, alpha: float = 0.01) -> Expr:
    return te.select(x < 0, x * alpha, x)


def leaky_relu_of_nan(x: Expr, negative_slope: float = 0.01) -> Expr:
    """NaN is multiplied too."""
    return te.select(x > 0, x, x * negative_slope)


def prelu(x: Expr, slope: Expr) -> Expr:
    return te.select(x < 0, x * slope, x)


def hard_sigmoid(x: Expr, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    return te.maximum(te.minimum(x * alpha + beta, 1.0), 0.0)


def hard_swish(x: Expr) -> Expr:
    return x * hard_sigmoid(x, 1 / 6, 0.5)


def softplus(x: Expr) -> Expr:
    """log(1 + exp(x)), of which no part overflows."""
    return te.maximum(x, 0.0) + te.log1p(te.exp(-te.abs(x)))


def scaled_softplus(x: Expr, beta: float = 1.0, threshold: float = 20.0) -> Expr:
    """Linear above the threshold, where the difference is below the precision of float32."""
    scaled = x * beta
    return te.select(scaled > threshold, x, softplus(scaled) / beta)


def softsign(x: Expr) -> Expr:
    return x / (te.abs(x) + 1.0)


def mish(x: Expr) -> Expr:
    return x * te.tanh(softplus(x))


def swish(x: Expr, alpha: float = 1.0) -> Expr:
    return x * te.sigmoid(x * alpha)


def thresholded_relu(x: Expr, alpha: float = 1.0) -> Expr:
    return te.select(x > alpha, x, _like(x, 0))


def shrink(x: Expr, bias: float, lambd: float) -> Expr:
    return te.select(x < -lambd, x + bias, te.select(x > lambd, x - bias, _like(x, 0)))


def softshrink(x: Expr, lambd: float = 0.5) -> Expr:
    """NaN stays."""
    return te.select(te.equal(x, x), shrink(x, lambd, lambd), x)


def hardshrink(x: Expr, lambd: float = 0.5) -> Expr:
    """NaN stays."""
    return te.select(te.equal(x, x), shrink(x, 0.0, lambd), x)


# --- signs ------------------------------------------------------------------------------------


def negative(x: Expr) -> Expr:
    """Whether the sign of a float is set: of -0 too."""
    return te.any(x < 0, te.all(te.equal(x, 0), 1.0 / x < 0))


def with_sign(size: Expr, of: Expr) -> Expr:
    """The size of a float with the sign of another."""
    size = te.abs(size)
    return te.select(negative(of), -size, size)
