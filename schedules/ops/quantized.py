"""Products of quantized numbers, quantized again: quantized_matmul, quantized_conv2d.

A number is ``scale * (integer - zero point)``. The sum over k of ``(a - za) * (b - zb)`` is that of ``a b``,
less ``za`` times the sum of b, less ``zb`` times that of a, and ``K * za * zb`` (B. Jacob et al.,
*Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference*, CVPR 2018,
section 2.3). All of that is exact in int32 below 2^31. Padding is with zero points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr
from schedules.ops.axes import named
from schedules.ops.base import Array, Operator, Param, Params, Types, flag
from schedules.ops.conv import CONV2D, D2
from schedules.ops.matmul import MATMUL
from schedules.ops.window import (
    apart,
    channels_last,
    in_layout,
    in_order,
    pad,
    pad_array,
    reach,
    taps,
    windows,
)

_PER_CHANNEL = flag("per_channel", "1 when each channel of the result has a scale, 0 when there is one", 1)
_WEIGHT_ZEROS = flag("weight_zeros", "1 when each channel of the weights has a zero point, 0 when it is 0")
STORED = ("uint8", "int8")


class _Parameters:
    """Inputs beside the factors: ``scale`` (of ``n`` channels, or one), ``a_zero``, ``y_zero``, and
    ``w_zero`` (n) of weights that have zero points."""

    def __init__(self, p: Params, types: Types, n: int) -> None:
        self.scale = te.placeholder((n,) if p["per_channel"] else (), "float32", "scale")
        self.x_zero, self.y_zero = (te.placeholder((), types.input, name) for name in ("x_zero", "y_zero"))
        self.w_zero = te.placeholder((n,), "int8", "w_zero") if p["weight_zeros"] else None

    @property
    def inputs(self) -> list[te.Tensor]:
        """In the order of arguments."""
        more = [] if self.w_zero is None else [self.w_zero]
        return [self.scale, self.x_zero, self.y_zero, *more]

    def result(
        self, dot: Expr, of_w: Expr, of_x: Expr | None, terms: int, channel: Expr, dtype: str
    ) -> Expr:
        """A sum of products, corrected, scaled and quantized. ``of_w``, ``of_x``: the sums of the factors,
        each of which is multiplied with the other one's zero point."""
        zero = te.cast(self.x_zero[()], "int32")
        total = dot - zero * of_w
        if self.w_zero is not None and of_x is not None:
            total = total - te.cast(self.w_zero[channel], "int32") * (of_x - zero * terms)
        scale = self.scale[channel] if self.scale.shape else self.scale[()]
        return requantized(total, scale, self.y_zero[()], dtype)


def requantized(total: Expr, scale: Expr, zero: Expr, dtype: str) -> Expr:
    """``total`` (int32) times ``scale`` (float32), rounded, halves to even; then the zero point is added,
    then it is cut off at the ends of ``dtype``, and then it is an integer."""
    low, high = float(DTYPES[dtype].range[0]), float(DTYPES[dtype].range[-1])
    y = te.round(te.cast(total, "float32") * scale) + te.cast(zero, "float32")
    return te.cast(te.cast(te.clip(y, low, high), "int32"), dtype)


def _requantized_array(total: Array, scale: Array, zero: Array, dtype: str) -> Array:
    """`requantized` of int64 sums, which wrap to int32."""
    with np.errstate(over="ignore", invalid="ignore"):
        y = np.rint(total.astype(np.int32).astype(np.float32) * scale) + zero.astype(np.float32)
    ends = DTYPES[dtype].range[0], DTYPES[dtype].range[-1]
    return np.nan_to_num(np.clip(y, *ends), nan=0.0).astype(dtype)


# --- matmul ---------------------------------------------------------------------------------------


def _matmul(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    m, n, k = p["m"], p["n"], p["k"]
    ta, tb = p["transpose_a"], p["transpose_b"]
    a = te.placeholder((k, m) if ta else (m, k), types.input, "a")
    b = te.placeholder((n, k) if tb else (k, n), "int8", "b")
    more = _Parameters(p, types, n)
    r = te.reduce_axis(k, "k")

    def of_a(i: Expr) -> Expr:
        return te.cast(a[r, i] if ta else a[i, r], "int32")

    def of_b(j: Expr) -> Expr:
        return te.cast(b[j, r] if tb else b[r, j], "int32")

    dot = te.compute((m, n), lambda i, j: te.sum(of_a(i) * of_b(j), axis=r), "dot")
    sum_b = te.compute((n,), lambda j: te.sum(of_b(j), axis=r), "sum_b")
    sum_a = te.compute((m,), lambda i: te.sum(of_a(i), axis=r), "sum_a") if p["weight_zeros"] else None

    def value(i: Expr, j: Expr) -> Expr:
        return more.result(dot[i, j], sum_b[j], None if sum_a is None else sum_a[i], k, j, types.output)

    return [a, b, *more.inputs, te.compute((m, n), value, "c")]


def _centered(x: Array, w: Array, inputs: Sequence[Array]) -> tuple[Array, Array]:
    """Data and weights, whose last axis is channels, less their zero points, as int64."""
    x_zero, _, *w_zero = (v.astype(np.int64) for v in inputs[3:])
    return x.astype(np.int64) - x_zero, w.astype(np.int64) - (w_zero[0] if w_zero else 0)


def _matmul_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    a = inputs[0].T if p["transpose_a"] else inputs[0]
    a, b = _centered(a, inputs[1].T if p["transpose_b"] else inputs[1], inputs)
    return [_requantized_array(a @ b, inputs[2], inputs[4], types.output)]


# --- convolution ----------------------------------------------------------------------------------


def _conv(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    b, ci, co, groups = p["b"], p["ci"], p["co"], p["groups"]
    each, out = ci // groups, co // groups
    r = [te.reduce_axis(n, name) for n, name in zip(D2.kernels(p), D2.tap, strict=True)]
    c = te.reduce_axis(each, "c")
    nchw = layout == "NCHW"
    x = te.placeholder(in_order(layout, b, D2.sizes(p), ci), types.input, "x")
    w = te.placeholder((co, each, *D2.kernels(p)) if nchw else (*D2.kernels(p), each, co), "int8", "w")
    more = _Parameters(p, types, co)
    z = pad(x, D2.sides(p), more.x_zero[()], layout, D2.size)

    def of_w(o: Expr) -> Expr:
        return te.cast(w[o, c, *r] if nchw else w[*r, c, o], "int32")

    def of_x(n: Expr, at: Sequence[Expr], group: Expr | None) -> Expr:
        channel = c if group is None else group * each + c
        return te.cast(z[in_order(layout, n, windows(p, at, r), channel)], "int32")

    def group(o: Expr) -> Expr | None:
        return None if groups == 1 else o // out

    def product(*axes: Expr) -> te.Reduction:
        n, at, (o,) = apart(layout, axes)
        return te.sum(of_x(n, at, group(o)) * of_w(o), axis=(*r, c))

    names = in_order(layout, "n", D2.out, "o")
    dot = te.compute(in_order(layout, b, D2.outs(p), co), named(names, product), "dot")
    sum_w = te.compute((co,), lambda o: te.sum(of_w(o), axis=(*r, c)), "sum_w")
    sum_x = None
    if p["weight_zeros"]:

        def window(n: Expr, g: Expr, *at: Expr) -> te.Reduction:
            return te.sum(of_x(n, at, None if groups == 1 else g), axis=(*r, c))

        sum_x = te.compute((b, groups, *D2.outs(p)), named("ng" + D2.out, window), "sum_x")

    def value(*axes: Expr) -> Expr:
        n, at, (o,) = apart(layout, axes)
        own = None if sum_x is None else sum_x[(n, 0 if groups == 1 else o // out, *at)]
        terms = each * p["kh"] * p["kw"]
        return more.result(dot[axes], sum_w[o], own, terms, o, types.output)

    return [x, w, *more.inputs, te.compute(dot.shape, named(names, value), "y")]


def _conv_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    w = np.moveaxis(inputs[1], (0, 1), (-1, -2)) if layout == "NCHW" else inputs[1]
    x, w = _centered(channels_last(inputs[0], layout), w, inputs)
    x = pad_array(x, D2.sides(p), 0)
    each, out = p["ci"] // p["groups"], p["co"] // p["groups"]
    y = np.zeros((p["b"], *D2.outs(p), p["co"]), np.int64)
    for at in np.ndindex(*D2.kernels(p)):
        t = taps(x, reach(p, at), D2.outs(p), p["stride"])
        for g in range(p["groups"]):
            block = slice(g * out, (g + 1) * out)
            y[..., block] += np.tensordot(t[..., g * each : (g + 1) * each], w[at][:, block], 1)
    return [in_layout(_requantized_array(y, inputs[2], inputs[4], types.output), layout)]


def _more(params: tuple[Param, ...]) -> tuple[Param, ...]:
    return (*params, _PER_CHANNEL, _WEIGHT_ZEROS)


QUANTIZED_MATMUL = Operator(
    "quantized_matmul",
    "a(m,k), b(k,n) of int8, scale(n), x_zero(), y_zero(), w_zero(n) with weight_zeros=1 → "
    "round((a - x_zero) · (b - w_zero) · scale) + y_zero, cut off at the ends of its dtype",
    _more(MATMUL.params),
    _matmul,
    _matmul_reference,
    MATMUL.flops,
    dtypes=STORED,
    weights=("b",),
)
QUANTIZED_CONV2D = Operator(
    "quantized_conv2d",
    "conv2d's x and w of int8, scale(co), x_zero(), y_zero(), w_zero(co) with weight_zeros=1 → "
    "round(conv2d(x - x_zero, w - w_zero) · scale) + y_zero, cut off at the ends of its dtype",
    _more(CONV2D.params),
    _conv,
    _conv_reference,
    CONV2D.flops,
    dtypes=STORED,
    layouts=CONV2D.layouts,
    check=CONV2D.check,
    shorthands=CONV2D.shorthands,
    weights=("w",),
)
