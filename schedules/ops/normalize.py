"""Normalisations: softmax along an axis, layer_norm and rms_norm of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.expr import Expr
from schedules.ops.axes import LETTERS, MOST_AXES, named
from schedules.ops.base import Array, Operator, Param, Params, Types, piecewise, text, wide
from schedules.te.tensors import IterVar

# By default added to the variance in layer_norm, to the mean of squares in rms_norm.
EPS = 1e-5
RMS_EPS = 1e-6


def exponentials(
    x: te.Tensor, axis: int, names: str, stored: str | None = None
) -> tuple[te.Tensor, te.Tensor]:
    """(exp(x - maximum along an axis), inverse of its sums along it). ``names``: of axes, a letter each.
    ``stored``: the dtype that the exponentials are rounded to before anything reads them; None: none."""
    k, r = te.reduce_axis(x.shape[axis], "k"), te.reduce_axis(x.shape[axis], "k")

    def others(of: Sequence[Any]) -> tuple[Any, ...]:
        return (*of[:axis], *of[axis + 1 :])

    def over(name: str, value: Callable[[tuple[Expr, ...]], Any]) -> te.Tensor:
        return te.compute(others(x.shape), named(others(names), lambda *at: value(at)), name)

    def along(t: te.Tensor, at: Sequence[Expr], place: Expr) -> Expr:
        return t[(*at[:axis], place, *at[axis:])]

    top = over("row_max", lambda at: te.max(along(x, at, k), axis=k))

    def value(*at: Expr) -> Expr:
        found = te.exp(x[at] - top[others(at)])
        return found if stored is None else te.cast(found, stored)

    e = te.compute(x.shape, named(names, value), "e")
    total = over("row_sum", lambda at: te.sum(along(e, at, r), axis=r))
    return e, over("inv_sum", lambda at: 1.0 / total[at])  # one division a row


def _shape(p: Params) -> tuple[int, ...]:
    """The shape of softmax's input."""
    return p.get("shape") or (p["m"], p["n"])


def _softmax(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    shape = _shape(p)
    axis, names = range(len(shape))[p["axis"]], LETTERS[: len(shape)]
    x = te.placeholder(shape, types.input, "x")
    e, inv = exponentials(x, axis, names)

    def value(*at: Expr) -> Expr:
        return te.cast(e[at] * inv[(*at[:axis], *at[axis + 1 :])], types.output)

    return [x, te.compute(shape, named(names, value), "y")]


def soft(x: Array) -> Array:
    """The softmax along the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _softmax_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    y = piecewise(soft, types.output, np.moveaxis(inputs[0], p["axis"], -1))
    return [np.ascontiguousarray(np.moveaxis(y, -1, p["axis"]))]


def _check_softmax(p: Params) -> str | None:
    n = len(_shape(p))
    if not 2 <= n <= MOST_AXES:
        return f"shape={text(_shape(p))} has {n} axes, not 2 to {MOST_AXES}; join some, or add one of 1"
    if not -n <= p["axis"] < n:
        return f"axis={p['axis']} is outside {-n}..{n - 1}, the axes of {text(_shape(p))}"
    return None


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
    inv = te.compute((m,), lambda i: 1.0 / te.sqrt(var[i] + p["eps"]), "inv_std")

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
        return np.asarray(d / np.sqrt((d * d).mean(1, keepdims=True) + p["eps"]) * gamma + beta)

    return [piecewise(rows, types.output, inputs[0])]


def _rms_norm(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n = p["m"], p["n"]
    x, gamma = te.placeholder((m, n), types.input, "x"), te.placeholder((n,), types.input, "gamma")
    k = te.reduce_axis(n, "k")
    squares = te.compute((m,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "sq_sum")
    inv = te.compute((m,), lambda i: 1.0 / te.sqrt(squares[i] / n + p["eps"]), "inv_rms")
    y = te.compute((m, n), lambda i, j: te.cast(x[i, j] * inv[i] * gamma[j], types.output), "y")
    return [x, gamma, y]


def _rms_norm_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    gamma = wide(inputs[1])

    def rows(x: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + p["eps"]) * gamma)

    return [piecewise(rows, types.output, inputs[0])]


def _eps(default: float) -> Param:
    doc = "added below the root, so that it is never 0"
    return Param("eps", doc, default, "float", minimum=0, optional=True)


# Parameters that operators of this file share.
_MN = (Param("m", "rows"), Param("n", "columns, normalised over"))

SOFTMAX = Operator(
    "softmax",
    "x(m,n), or x(shape) → exp(x − maximum) / sum of these, along an axis",
    (
        Param("m", "rows", instead="shape"),
        Param("n", "columns", instead="shape"),
        Param("shape", "the input's extents", kind="list", optional=True),
        Param("axis", "the axis that is normalised over", -1, minimum=-MOST_AXES, optional=True),
    ),
    _softmax,
    _softmax_reference,
    lambda p: 5 * math.prod(_shape(p)),  # max, −, exp, +, ÷
    dtypes=FLOATS,
    check=_check_softmax,
    shorthands=(("dim", ("axis",)),),
)
LAYER_NORM = Operator(
    "layer_norm",
    "x(m,n), gamma(n), beta(n) → (x − mean) / √(variance + eps) · gamma + beta, over n",
    (*_MN, _eps(EPS)),
    _layer_norm,
    _layer_norm_reference,
    lambda p: int(8 * p["m"] * p["n"] + 5 * p["m"]),  # a sum, −×+ of deviations, −××+; 5 a row: the formula
    dtypes=FLOATS,
)
RMS_NORM = Operator(
    "rms_norm",
    "x(m,n), gamma(n) → x / √(mean of squares + eps) · gamma, over n",
    (*_MN, _eps(RMS_EPS)),
    _rms_norm,
    _rms_norm_reference,
    lambda p: int(4 * p["m"] * p["n"] + 4 * p["m"]),  # ×+ of squares, ××; 4 a row
    dtypes=FLOATS,
)
