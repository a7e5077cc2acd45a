"""Row-wise normalisations: softmax, layer_norm, rms_norm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.ops.base import Array, Operator, Param, Params, Types, piecewise, wide
from schedules.te.tensors import IterVar

# Added to the variance in layer_norm, to the mean of squares in rms_norm.
EPS = 1e-5
RMS_EPS = 1e-6


def _softmax(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n = p["m"], p["n"]
    x = te.placeholder((m, n), types.input, "x")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), "row_max")
    e = te.compute((m, n), lambda i, j: te.exp(x[i, j] - top[i]), "e")
    total = te.compute((m,), lambda i: te.sum(e[i, r], axis=r), "row_sum")
    inv = te.compute((m,), lambda i: 1.0 / total[i], "inv_sum")  # one division a row
    return [x, te.compute((m, n), lambda i, j: te.cast(e[i, j] * inv[i], types.output), "y")]


def _softmax_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    def rows(x: Array) -> Array:
        e = np.exp(x - x.max(1, keepdims=True))
        return np.asarray(e / e.sum(1, keepdims=True))

    return [piecewise(rows, types.output, inputs[0])]


def _layer_norm(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n = p["m"], p["n"]
    x = te.placeholder((m, n), types.input, "x")
    gamma = te.placeholder((n,), types.input, "gamma")
    beta = te.placeholder((n,), types.input, "beta")
    k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
    total = te.compute((m,), lambda i: te.sum(x[i, k], axis=k), "row_sum")
    mean = te.compute((m,), lambda i: total[i] / n, "mean")
    # The mean is rounded, and so is its sum. Its error is the mean of the deviations from it, which are small
    # (the corrected two-pass algorithm: Chan, Golub and LeVeque, 1983).
    sums = te.reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "sums")

    def deviations(i: IterVar) -> te.Reduction:
        d = x[i, r] - mean[i]
        return sums((d, d * d), axis=r)

    dev, squares = te.compute((m,), deviations, ("dev_sum", "sq_dev"))
    off = te.compute((m,), lambda i: dev[i] / n, "mean_off")
    var = te.compute((m,), lambda i: te.maximum(squares[i] / n - off[i] * off[i], 0.0), "var")
    inv = te.compute((m,), lambda i: 1.0 / te.sqrt(var[i] + EPS), "inv_std")

    def scaled(i: IterVar, j: IterVar) -> te.Expr:
        z = (x[i, j] - mean[i] - off[i]) * inv[i]
        return te.cast(te.fma(z, gamma[j], beta[j]), types.output)

    y = te.compute((m, n), scaled, "y")
    return [x, gamma, beta, y]


def _layer_norm_reference(
    p: Params, types: Types, layout: str | None, inputs: Sequence[Array]
) -> list[Array]:
    gamma, beta = map(wide, inputs[1:])

    def rows(x: Array) -> Array:
        d = x - x.mean(1, keepdims=True)
        return np.asarray(d / np.sqrt((d * d).mean(1, keepdims=True) + EPS) * gamma + beta)

    return [piecewise(rows, types.output, inputs[0])]


def _rms_norm(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n = p["m"], p["n"]
    x, gamma = te.placeholder((m, n), types.input, "x"), te.placeholder((n,), types.input, "gamma")
    k = te.reduce_axis(n, "k")
    squares = te.compute((m,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "sq_sum")
    inv = te.compute((m,), lambda i: 1.0 / te.sqrt(squares[i] / n + RMS_EPS), "inv_rms")
    y = te.compute((m, n), lambda i, j: te.cast(x[i, j] * inv[i] * gamma[j], types.output), "y")
    return [x, gamma, y]


def _rms_norm_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    gamma = wide(inputs[1])

    def rows(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + RMS_EPS) * gamma)

    return [piecewise(rows, types.output, inputs[0])]


# Parameters that operators of this file share.
_MN = (Param("m", "rows"), Param("n", "columns, normalised over"))

SOFTMAX = Operator(
    "softmax",
    "x(m,n) → exp(x − row max) / row sum",
    _MN,
    _softmax,
    _softmax_reference,
    lambda p: int(5 * p["m"] * p["n"]),  # max, −, exp, +, ÷
    dtypes=FLOATS,
)
LAYER_NORM = Operator(
    "layer_norm",
    "x(m,n), gamma(n), beta(n) → (x − mean) / √(variance + 1e-5) · gamma + beta, over n",
    _MN,
    _layer_norm,
    _layer_norm_reference,
    lambda p: int(8 * p["m"] * p["n"] + 5 * p["m"]),  # a sum, −×+ of deviations, −××+; 5 a row: the formula
    dtypes=FLOATS,
)
RMS_NORM = Operator(
    "rms_norm",
    "x(m,n), gamma(n) → x / √(mean of squares + 1e-6) · gamma, over n",
    _MN,
    _rms_norm,
    _rms_norm_reference,
    lambda p: int(4 * p["m"] * p["n"] + 4 * p["m"]),  # ×+ of squares, ××; 4 a row
    dtypes=FLOATS,
)
