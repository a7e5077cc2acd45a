"""Normalisations: reductions of rows and a map, as `schedules/ops/normalize.py` states them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autotune.models.operators.axes import reshape, without
from autotune.models.operators.base import Operand, UnsupportedForm, number, read, stage
from autotune.models.operators.known import Value
from autotune.models.operators.node import OnnxNode, OperatorNode, TorchNode
from autotune.models.operators.reduction import arg_extreme, reduce, rows
from autotune.models.operators.table import Axes, Axis, Cast, Floats, aten, onnx_op
from schedules import te
from schedules.dtypes import DTYPES, computed
from schedules.expr import Expr, dtype_of
from schedules.te.tensors import IterVar

Maker = Callable[[], te.Tensor]


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
        top = rows(x, axes, lambda v, r, at: te.max(v, axis=r), "row_max")
        total = rows(x, axes, lambda v, r, at: te.sum(te.exp(v - top[at]), axis=r), "row_sum")
        last = stage(total.shape, lambda *at: te.log(total[at]), "log_sum")
        return _map(x, axes, lambda i, at: x[i] - top[at] - last[at], "log_softmax")
    e, inverse = exponentials(x, axis, empty_rows)
    return _map(e, axes, lambda i, at: e[i] * inverse[at], "softmax", x.dtype)


def exponentials(
    x: te.Tensor, axis: int, empty_rows: bool = False, stored: str | None = None
) -> tuple[te.Tensor, te.Tensor]:
    """(exp(x - maximum along an axis), inverse of its sums along it). ``empty_rows``: where all is -inf both
    are 0, else NaN. ``stored``: the dtype that the exponentials are rounded to before anything reads them;
    None: none."""
    axes = [axis]
    top = rows(x, axes, lambda v, r, at: te.max(v, axis=r), "row_max")
    if empty_rows:
        found, nothing = top, number(0, top.dtype)
        top = stage(
            found.shape, lambda *at: te.select(te.equal(found[at], -te.inf), nothing, found[at]), "top"
        )
    e = _map(x, axes, lambda i, at: te.exp(x[i] - top[at]), "e", stored or computed(x.dtype))
    total = rows(e, axes, lambda v, r, at: te.sum(v, axis=r), "row_sum")

    def inverse(*at: Expr) -> Expr:
        one = 1.0 / total[at]
        return te.select(te.equal(total[at], 0), number(0, total.dtype), one) if empty_rows else one

    return e, stage(total.shape, inverse, "inv_sum")


# --- moments ----------------------------------------------------------------------------------


def _moments(x: te.Tensor, axes: Sequence[int]) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """(mean, what the rounded mean is off by, variance) along ``axes``, by the corrected two-pass algorithm
    (Chan, Golub and LeVeque, 1983)."""
    n = float(math.prod(x.shape[d] for d in axes))
    total = rows(x, axes, lambda v, r, at: te.sum(v, axis=r), "row_sum")
    mean = stage(total.shape, lambda *at: total[at] / n, "mean")
    sums = te.reducer((0.0, 0.0), lambda a, b: (a[0] + b[0], a[1] + b[1]), "sums")

    def deviations(v: Expr, r: tuple[IterVar, ...], at: Sequence[Expr]) -> te.Reduction:
        d = v - mean[tuple(at)]
        return sums((d, d * d), axis=r)

    dev, squares = rows(x, axes, deviations, ("dev_sum", "sq_dev"))
    off = stage(dev.shape, lambda *at: dev[at] / n, "mean_off")
    var = stage(dev.shape, lambda *at: te.maximum(squares[at] / n - off[at] * off[at], 0.0), "var")
    return mean, off, var


def variance(
    x: te.Tensor, axes: Sequence[int], keepdims: bool, correction: float, root: bool
) -> tuple[te.Tensor, Maker]:
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
) -> tuple[te.Tensor, Maker, Maker]:
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


@onnx_op("RMSNormalization", inputs=("x", "gamma"), names={"eps": "epsilon"})
def rms_norm(x: te.Tensor, axis: Axis, gamma: Operand | None, eps: float) -> te.Tensor:
    """x / √(mean of squares + eps) · gamma, over the axes from ``axis`` on."""
    axes = tuple(range(axis, len(x.shape)))
    n = float(math.prod(x.shape[axis:]))
    squares = rows(x, axes, lambda v, r, at: te.sum(v * v, axis=r), "sq_sum")
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


# Version 18 has a scale a group; the function of ONNX states that.
@onnx_op(
    "GroupNormalization", since=21, inputs=("x", "gamma", "beta"),
    names={"groups": "num_groups", "eps": "epsilon"},
)  # fmt: skip
@aten("group_norm.default")
def group_norm(
    x: Floats, groups: int, gamma: te.Tensor | None = None, beta: te.Tensor | None = None, eps: float = 1e-5,
    cudnn: bool = True,
) -> te.Tensor:  # fmt: skip
    """Normalised over the channels of a group and all spatial axes. ``gamma`` and ``beta``: one a channel.
    ``cudnn`` is not looked at."""
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


@onnx_op("LpNormalization")
def lp_normalization(x: te.Tensor, axis: Axis, p: int = 2) -> te.Tensor:
    """x / (Σ |x|ᵖ)^(1/p) along an axis; 0 where the norm is 0."""
    if p not in (1, 2):
        raise UnsupportedForm(f"p={p} is not 1 or 2")
    axes = [axis]
    total = rows(x, axes, lambda v, r, at: te.sum(te.abs(v) if p == 1 else v * v, axis=r), "norm_sum")

    def value(i: Sequence[Expr], at: Sequence[Expr]) -> Expr:
        norm = total[tuple(at)] if p == 1 else te.sqrt(total[tuple(at)])
        return te.select(te.equal(norm, 0), number(0, x.dtype), x[tuple(i)] / norm)

    return _map(x, axes, value, "lp_norm")


@onnx_op("LRN")
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


# --- rows -------------------------------------------------------------------------------------


@onnx_op("Softmax", "LogSoftmax", "Hardmax")
def _softmax(node: OnnxNode, x: te.Tensor, *, axis: Axis) -> te.Tensor:
    """Before version 13 all axes from ``axis`` on are one."""

    def apply(y: te.Tensor, d: int) -> te.Tensor:
        return hardmax(y, d) if node.op == "Hardmax" else softmax(y, d, node.op == "LogSoftmax")

    if node.version >= 13:
        return apply(x, axis)
    flat = reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return reshape(apply(flat, 1), x.shape)


@aten(
    "_softmax.default", "_log_softmax.default", "softmax.int", "log_softmax.int", "_safe_softmax.default",
    along=True,
)  # fmt: skip
def _softmax_of(node: TorchNode, x: Cast, dim: Axis, wide: Any = None, dtype: Any = None) -> te.Tensor:
    """Safe ones give 0 for rows of -inf alone."""
    return softmax(x, dim, "log" in node.name, empty_rows="safe" in node.name)


@onnx_op("BatchNormalization", since=7)
def _onnx_batch_norm(
    node: OnnxNode, x: te.Tensor, scale: te.Tensor, bias: te.Tensor, mean: te.Tensor, var: te.Tensor, *,
    epsilon: float, training_mode: bool = False, spatial: bool = True,
) -> te.Tensor:  # fmt: skip
    if training_mode:
        raise UnsupportedForm("training_mode=1 is not supported")
    node.only(1)
    if not spatial:
        raise UnsupportedForm("spatial=0 is not supported")
    return batch_norm(x, scale, bias, mean, var, epsilon)


@onnx_op("LayerNormalization")
def _onnx_layer_norm(
    node: OnnxNode, x: te.Tensor, scale: Value, bias: Operand | None = None, *, axis: Axis = -1,
    epsilon: float,
) -> list[te.Tensor | None]:  # fmt: skip
    return _with_moments(node, layer_norm(x, axis, node.operand(scale), bias, epsilon))


@aten("layer_norm.default", "native_layer_norm.default")
def _layer_norm(
    node: TorchNode, x: Floats, shape: Sequence[int], w: Operand | None = None, b: Operand | None = None,
    eps: float = 1e-5, cudnn: bool = True,
) -> list[te.Tensor | None]:  # fmt: skip
    return _with_moments(node, layer_norm(x, len(x.shape) - len(shape), w, b, eps))


def _with_moments(node: OperatorNode, made: tuple[te.Tensor, Maker, Maker]) -> list[te.Tensor | None]:
    """The outputs of a layer norm, of its moments those that are used."""
    y, *moments = made
    return [y, *(make() if i in node.used else None for i, make in enumerate(moments, 1))]


@aten("rms_norm.default")
def _rms_norm(
    x: Floats, shape: Sequence[int], w: Operand | None = None, eps: float | None = None
) -> te.Tensor:
    return rms_norm(x, len(x.shape) - len(shape), w, eps if eps is not None else DTYPES[x.dtype].epsilon)


@onnx_op("InstanceNormalization", since=6)
def _onnx_instance_norm(x: te.Tensor, scale: te.Tensor, bias: te.Tensor, *, epsilon: float) -> te.Tensor:
    return group_norm(x, x.shape[1], scale, bias, epsilon)


@aten("native_group_norm.default")
def _native_group_norm(
    node: TorchNode, x: Floats, w: te.Tensor | None, b: te.Tensor | None, n: int, c: int, size: int,
    groups: int, eps: float,
) -> list[te.Tensor | None]:  # fmt: skip
    node.only(1)
    return [group_norm(x, groups, w, b, eps), None, None]


@aten("instance_norm.default")
def _instance_norm(
    x: Floats, w: te.Tensor | None, b: te.Tensor | None, mean: te.Tensor | None, var: te.Tensor | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn: bool,
) -> te.Tensor:  # fmt: skip
    if not use_input_stats:
        return _by_statistics(x, w, b, mean, var, eps)
    if mean is not None:
        raise UnsupportedForm("it updates its running statistics: export module.eval()")
    return group_norm(x, x.shape[1], w, b, eps)


@aten("_native_batch_norm_legit_no_training.default", "native_batch_norm.default")
def _batch_norm(
    node: TorchNode, x: Floats, w: te.Tensor | None, b: te.Tensor | None, mean: te.Tensor | None,
    var: te.Tensor | None, *how: Any,
) -> list[te.Tensor | None]:  # fmt: skip
    """``how``: whether it is in training, which one of them leaves out, the momentum, the epsilon."""
    if how[:-2] and how[0]:
        raise UnsupportedForm("it is in training: export module.eval()")
    node.only(1)
    return [_by_statistics(x, w, b, mean, var, how[-1]), None, None]


@aten("_native_batch_norm_legit_functional.default")
def _batch_norm_in_training(node: TorchNode, *args: Any) -> list[te.Tensor | None]:
    """It takes the statistics of the batch, and moves those that it keeps."""
    raise UnsupportedForm("it is in training: export module.eval()")


@aten("_native_batch_norm_legit.no_stats")
def _batch_norm_of_batch(
    node: TorchNode, x: Floats, w: te.Tensor | None, b: te.Tensor | None, training: bool, momentum: float,
    eps: float,
) -> list[te.Tensor | None]:  # fmt: skip
    """Without running statistics: those of the batch itself."""
    node.only(1)
    var, mean = variance(x, [d for d in range(len(x.shape)) if d != 1], False, 0.0, root=False)
    return [batch_norm(x, w, b, mean(), var, eps), None, None]


def _by_statistics(
    x: te.Tensor, w: te.Tensor | None, b: te.Tensor | None, mean: te.Tensor | None, var: te.Tensor | None,
    eps: float,
) -> te.Tensor:  # fmt: skip
    if mean is None or var is None:
        raise UnsupportedForm("it has no running statistics")
    return batch_norm(x, w, b, mean, var, eps)


@aten("linalg_vector_norm.default", along=True)
def _vector_norm(
    node: TorchNode, x: Cast, order: float = 2, dim: Axes | None = None, keepdim: bool = False,
    dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    one, none = number(1, x.dtype), number(0, x.dtype)
    by = float(order)
    known: dict[float, tuple[Any, Any, Any]] = {
        2: (te.sum, lambda v: v * v, te.sqrt), 1: (te.sum, te.abs, None), math.inf: (te.max, te.abs, None),
        -math.inf: (te.min, te.abs, None), 0: (te.sum, lambda v: te.select(te.equal(v, 0), none, one), None),
    }  # fmt: skip
    plain = (te.sum, lambda v: te.pow(te.abs(v), by), lambda v: te.pow(v, 1 / by))
    fold, before, after = known.get(order, plain)
    return reduce(x, dim or range(len(x.shape)), keepdim, fold, before, after, "norm")


@aten("dist.default")
def _dist(node: TorchNode, x: Value, y: Value, order: float = 2) -> te.Tensor:
    """The norm of a difference."""
    of_both = replace(node, shape=np.broadcast_shapes(x.shape, y.shape))
    return _vector_norm(node, of_both.elementwise(lambda a, b: a - b, x, y), order)


@aten("var.correction", "std.correction", "var_mean.correction", "std_mean.correction", along=True)
def _variance(
    node: TorchNode, x: Floats, dim: Axes | None = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> te.Tensor | list[te.Tensor]:  # fmt: skip
    less = 1.0 if correction is None else float(correction)
    var, mean = variance(x, dim or range(len(x.shape)), keepdim, less, root=node.name.startswith("std"))
    return [var, mean()] if node.name.endswith("_mean") else var
