"""Normalisations: reductions of rows and a map, as `schedules/ops/normalize.py` states them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autotune.models.lowering.base import Operand, number, read, stage, stages, within, without
from autotune.models.lowering.movement import reshape
from autotune.models.lowering.reduction import arg_extreme
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr, dtype_of
from schedules.te.tensors import IterVar


def _rows(x: te.Tensor, axes: Sequence[int], value: Callable[..., Any], name: str | tuple[str, ...]) -> Any:
    """A reduction over ``axes``: ``value(element, axes, at)`` of what is read."""
    over = [te.reduce_axis(x.shape[d], f"r{i}") for i, d in enumerate(axes)]
    return stages(without(x.shape, axes), lambda *at: value(x[within(at, axes, over)], tuple(over), at), name)


def _map(
    x: te.Tensor, axes: Sequence[int], value: Callable[..., Expr], name: str, dtype: str = ""
) -> te.Tensor:
    """``value(index, index without axes)`` at every element of ``x``."""
    out = dtype or x.dtype
    return stage(x.shape, lambda *at: te.cast(value(at, without(at, axes)), out), name)


# --- softmax ----------------------------------------------------------------------------------


def softmax(x: te.Tensor, axis: int, log: bool = False, empty_rows: bool = False) -> te.Tensor:
    """exp(x - maximum) / Σ exp(x - maximum) along an axis, or its logarithm. ``empty_rows``: where all is
    -inf it is 0."""
    axes = [axis]
    if log:
        top = _rows(x, axes, lambda v, r, at: te.max(v, axis=r), "row_max")
        total = _rows(x, axes, lambda v, r, at: te.sum(te.exp(v - top[at]), axis=r), "row_sum")
        last = stage(total.shape, lambda *at: te.log(total[at]), "log_sum")
        return _map(x, axes, lambda i, at: x[i] - top[at] - last[at], "log_softmax")
    e, inverse = exponentials(x, axis, empty_rows)
    return _map(e, axes, lambda i, at: e[i] * inverse[at], "softmax", x.dtype)


def exponentials(x: te.Tensor, axis: int, empty_rows: bool = False) -> tuple[te.Tensor, te.Tensor]:
    """(exp(x - maximum along an axis), inverse of its sums along it). ``empty_rows``: where all is -inf both
    are 0, else NaN."""
    axes = [axis]
    top = _rows(x, axes, lambda v, r, at: te.max(v, axis=r), "row_max")
    if empty_rows:
        found, nothing = top, number(0, top.dtype)
        top = stage(
            found.shape, lambda *at: te.select(te.equal(found[at], -te.inf), nothing, found[at]), "top"
        )
    e = _map(x, axes, lambda i, at: te.exp(x[i] - top[at]), "e", computed(x.dtype))
    total = _rows(e, axes, lambda v, r, at: te.sum(v, axis=r), "row_sum")

    def inverse(*at: Expr) -> Expr:
        one = 1.0 / total[at]
        return te.select(te.equal(total[at], 0), number(0, total.dtype), one) if empty_rows else one

    return e, stage(total.shape, inverse, "inv_sum")


# --- moments ----------------------------------------------------------------------------------


def _moments(x: te.Tensor, axes: Sequence[int]) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """(mean, what the rounded mean is off by, variance) along ``axes``, by the corrected two-pass algorithm
    (Chan, Golub and LeVeque, 1983)."""
    n = float(math.prod(x.shape[d] for d in axes))
    total = _rows(x, axes, lambda v, r, at: te.sum(v, axis=r), "row_sum")
    mean = stage(total.shape, lambda *at: total[at] / n, "mean")
    sums = te.reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "sums")

    def deviations(v: Expr, r: tuple[IterVar, ...], at: Sequence[Expr]) -> te.Reduction:
        d = v - mean[tuple(at)]
        return sums((d, d * d), axis=r)

    dev, squares = _rows(x, axes, deviations, ("dev_sum", "sq_dev"))
    off = stage(dev.shape, lambda *at: dev[at] / n, "mean_off")
    var = stage(dev.shape, lambda *at: te.maximum(squares[at] / n - off[at] * off[at], 0.0), "var")
    return mean, off, var


def variance(
    x: te.Tensor, axes: Sequence[int], keepdims: bool, correction: float, root: bool
) -> tuple[te.Tensor, Callable[[], te.Tensor]]:
    """(Σ (x - mean)² / (n - correction) along axes, or its root; maker of the mean)."""
    n = float(math.prod(x.shape[d] for d in axes))
    axes = sorted(axes)
    mean, off, var = _moments(x, axes)
    by = n / (n - correction) if n > correction else math.inf
    shape = [1 if d in axes else m for d, m in enumerate(x.shape)] if keepdims else mean.shape

    def value(*at: Expr) -> Expr:
        v = var[at] if by == 1 else var[at] * number(by, var.dtype)
        return te.cast(te.sqrt(v) if root else v, x.dtype)

    def exact(*at: Expr) -> Expr:
        return te.cast(mean[at] if n == 1 else mean[at] + off[at], x.dtype)  # one may be infinite

    made = stage(mean.shape, value, "std" if root else "var")
    return reshape(made, shape), lambda: reshape(stage(mean.shape, exact, "exact_mean"), shape)


def _inverse_root(x: te.Tensor, eps: float, name: str) -> te.Tensor:
    return stage(x.shape, lambda *at: 1.0 / te.sqrt(x[at] + number(eps, x.dtype)), name)


def layer_norm(
    x: te.Tensor, axis: int, gamma: Operand | None, beta: Operand | None, eps: float
) -> tuple[te.Tensor, Callable[[], te.Tensor], Callable[[], te.Tensor]]:
    """(normalised over the axes from ``axis`` on, makers of its mean and of 1 / √(variance + eps)).
    ``gamma`` and ``beta`` broadcast to ``x``."""
    axes = tuple(range(axis, len(x.shape)))
    mean, off, var = _moments(x, axes)
    inv = _inverse_root(var, eps, "inv_std")

    def value(i: Sequence[Expr], at: Sequence[Expr]) -> Expr:
        z = (x[tuple(i)] - mean[tuple(at)] - off[tuple(at)]) * inv[tuple(at)]
        return _scaled(z, gamma, beta, i)

    kept = (*x.shape[:axis], *[1] * len(axes))

    def exact_mean() -> te.Tensor:
        return reshape(stage(mean.shape, lambda *at: mean[at] + off[at], "exact_mean"), kept)

    return _map(x, axes, value, "layer_norm"), exact_mean, lambda: reshape(inv, kept)


def _scaled(z: Expr, gamma: Operand | None, beta: Operand | None, index: Sequence[Expr]) -> Expr:
    wide = dtype_of(z)
    g = None if gamma is None else te.cast(read(gamma, index), wide)
    b = None if beta is None else te.cast(read(beta, index), wide)
    if b is None:
        return z if g is None else z * g
    return z + b if g is None else te.fma(z, g, b)


def rms_norm(x: te.Tensor, axis: int, gamma: Operand | None, eps: float) -> te.Tensor:
    """x / √(mean of squares + eps) · gamma, over the axes from ``axis`` on."""
    axes = tuple(range(axis, len(x.shape)))
    n = float(math.prod(x.shape[axis:]))
    squares = _rows(x, axes, lambda v, r, at: te.sum(v * v, axis=r), "sq_sum")
    inv = stage(squares.shape, lambda *at: 1.0 / te.sqrt(squares[at] / n + number(eps, x.dtype)), "inv_rms")
    return _map(x, axes, lambda i, at: _scaled(x[tuple(i)] * inv[tuple(at)], gamma, None, i), "rms_norm")


def batch_norm(
    x: te.Tensor, gamma: te.Tensor | None, beta: te.Tensor | None, mean: te.Tensor, var: te.Tensor, eps: float
) -> te.Tensor:
    """x · factor + shift, with a factor and a shift a channel, the second axis. Both are stages over the
    channels alone, so they are constants where the statistics are."""
    wide = computed(x.dtype)
    channels = x.shape[1:2] or (1,)

    def of(t: te.Tensor, c: Expr) -> Expr:
        return te.cast(t[c], wide)

    def factor_of(c: Expr) -> Expr:
        root = te.sqrt(of(var, c) + number(eps, wide))
        return 1.0 / root if gamma is None else of(gamma, c) / root

    factor = stage(channels, factor_of, "bn_factor")

    def shift_of(c: Expr) -> Expr:
        less = of(mean, c) * factor[c]
        return -less if beta is None else of(beta, c) - less

    shift = stage(channels, shift_of, "bn_shift")

    def value(*at: Expr) -> Expr:
        c = at[1] if len(at) > 1 else 0
        return te.cast(x[at] * factor[c] + shift[c], x.dtype)

    return stage(x.shape, value, "batch_norm")


def group_norm(
    x: te.Tensor, groups: int, gamma: te.Tensor | None, beta: te.Tensor | None, eps: float
) -> te.Tensor:
    """Normalised over the channels of a group and all spatial axes. ``gamma`` and ``beta``: one a channel."""
    n, c = x.shape[:2]
    if c % groups:
        raise ValueError(f"{c} channels do not make {groups} groups")
    apart = c > groups or len(x.shape) == 2
    split = reshape(x, (n, groups, c // groups, *x.shape[2:])) if apart else x
    axes = tuple(range(2, len(split.shape)))
    mean, off, var = _moments(split, axes)
    inv = _inverse_root(var, eps, "inv_std")
    each = c // groups

    def value(*at: Expr) -> Expr:
        g = (at[0], at[1] // each if each > 1 else at[1])
        z = (x[at] - mean[g] - off[g]) * inv[g]
        wide = mean.dtype
        by, more = (None if t is None else te.cast(t[at[1]], wide) for t in (gamma, beta))
        if by is not None and more is not None:
            return te.cast(te.fma(z, by, more), x.dtype)
        z = z if by is None else z * by
        return te.cast(z if more is None else z + more, x.dtype)

    return stage(x.shape, value, "group_norm")


def lp_normalization(x: te.Tensor, axis: int, p: int) -> te.Tensor:
    """x / (Σ |x|ᵖ)^(1/p) along an axis; 0 where the norm is 0."""
    axes = [axis]
    total = _rows(x, axes, lambda v, r, at: te.sum(te.abs(v) if p == 1 else v * v, axis=r), "norm_sum")

    def value(i: Sequence[Expr], at: Sequence[Expr]) -> Expr:
        norm = total[tuple(at)] if p == 1 else te.sqrt(total[tuple(at)])
        return te.select(te.equal(norm, 0), number(0, x.dtype), x[tuple(i)] / norm)

    return _map(x, axes, value, "lp_norm")


def local_response(x: te.Tensor, size: int, alpha: float, beta: float, bias: float) -> te.Tensor:
    """x / (bias + alpha / size · Σ x²)^beta, summed over ``size`` channels around each (Krizhevsky et al.,
    2012)."""
    before = (size - 1) // 2
    c = x.shape[1]
    r = te.reduce_axis(size, "r")

    def squares(*at: Expr) -> te.Reduction:
        k = at[1] + r - before
        v = x[(at[0], k, *at[2:])]
        return te.sum(te.select(te.all(k >= 0, k < c), v * v, number(0, x.dtype)), axis=r)

    total = stage(x.shape, squares, "sq_sum")

    def value(*at: Expr) -> Expr:
        return te.cast(x[at] / te.pow(total[at] * (alpha / size) + bias, beta), x.dtype)

    return stage(x.shape, value, "lrn")


def hardmax(x: te.Tensor, axis: int) -> te.Tensor:
    """1 at the first largest element along an axis, else 0."""
    place = arg_extreme(x, axis, keepdims=False, largest=True, last=False)

    def value(*at: Expr) -> Expr:
        here = te.equal(te.cast(at[axis], "int64"), place[without(at, [axis])])
        return te.cast(te.select(here, number(1, x.dtype), number(0, x.dtype)), x.dtype)

    return stage(x.shape, value, "hardmax")
