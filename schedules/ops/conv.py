"""Convolutions: conv1d, conv2d, conv3d, depthwise_conv2d, capsule_conv2d, and conv2d with epilogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from schedules import te
from schedules.dtypes import COMPUTED, FLOATS
from schedules.expr import Expr
from schedules.ops.axes import each, named
from schedules.ops.base import Array, Operator, Param, Params, Types, stored, wide
from schedules.ops.window import (
    BATCH,
    CHANNELS,
    CI,
    CO,
    DILATION,
    GROUPS,
    PADDING,
    STRIDE,
    Sides,
    apart,
    both_sides,
    by_axis,
    channels_last,
    in_layout,
    in_order,
    kernel_names,
    misfit,
    out_extent,
    pad,
    pad_array,
    reach,
    sizes,
    taps,
    uneven_groups,
    windows,
)

# Layouts of two-dimensional convolutions; the first is the default.
LAYOUTS = ("NHWC", "NCHW")
Build = Callable[[Params, Types, str | None], list[te.Tensor]]
Reference = Callable[[Params, Types, str | None, Sequence[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class SpatialNames:
    """Names in each spatial dimension. ``size``, ``kernel``: parameters of the input and the kernel; the
    input's axes are called as its parameters. ``out``, ``tap``: axes of the output and the kernel, a letter
    each."""

    size: tuple[str, ...]
    kernel: tuple[str, ...]
    out: str
    tap: str

    def sizes(self, p: Params) -> list[int]:
        """Extents of the input."""
        return [p[n] for n in self.size]

    def kernels(self, p: Params) -> list[int]:
        """Extents of the kernel."""
        return [p[n] for n in self.kernel]

    def by_axis(self, p: Params, name: str) -> tuple[int, ...]:
        """A parameter that is one number, or one an axis."""
        return each(p.get(name, 1), len(self.size))

    def outs(self, p: Params) -> list[int]:
        """Extents of the output."""
        how = (self.by_axis(p, name) for name in ("stride", "padding", "dilation"))
        return list(map(out_extent, self.sizes(p), self.kernels(p), *how))

    def sides(self, p: Params) -> Sides:
        """Elements added before and after each axis."""
        return both_sides(p["padding"], len(self.size))

    def check(self, p: Params) -> str | None:
        """Why the window does not fit, None if it does."""
        how = (self.by_axis(p, name) for name in ("padding", "dilation"))
        wrong = map(misfit, self.size, self.sizes(p), self.kernels(p), *how)
        return next(filter(None, wrong), None)


# Names for convolutions of one, two and three dimensions.
D1 = SpatialNames(("l",), ("k",), "p", "r")
D2 = SpatialNames(("h", "w"), ("kh", "kw"), "pq", "rs")
D3 = SpatialNames(("d", "h", "w"), ("kd", "kh", "kw"), "epq", "trs")


def _conv(d: SpatialNames, p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    b, ci, co, groups = p["b"], p["ci"], p["co"], p["groups"]
    cig, cog = ci // groups, co // groups
    r = [te.reduce_axis(n, name) for n, name in zip(d.kernels(p), d.tap, strict=True)]
    c = te.reduce_axis(cig, "c")

    def channel(o: Expr) -> Expr:
        """The input channel that output channel ``o`` reads."""
        return c if groups == 1 else (o // cog) * cig + c

    nchw = layout == "NCHW"
    x = te.placeholder(in_order(layout, b, d.sizes(p), ci), types.input, "x")
    k = te.placeholder((co, cig, *d.kernels(p)) if nchw else (*d.kernels(p), cig, co), types.input, "w")
    z = pad(x, d.sides(p), 0, layout, d.size)

    def value(*axes: Expr) -> te.Reduction:
        n, at, (o,) = apart(layout, axes)
        weight = k[o, c, *r] if nchw else k[*r, c, o]
        here = in_order(layout, n, windows(p, at, r), channel(o))
        return te.sum(z[here] * weight, axis=(*r, c), dtype=types.accumulator)

    names = in_order(layout, "n", d.out, "o")
    return [x, k, te.compute(in_order(layout, b, d.outs(p), co), named(names, value), "y")]


def _stored_conv(d: SpatialNames, p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, k, y = _conv(d, p, types, layout)
    return [x, k, stored(y, types.output)]


def _depthwise(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    b, ch, window = p["b"], p["c"], D2.kernels(p)
    r = [te.reduce_axis(n, name) for n, name in zip(window, D2.tap, strict=True)]
    nchw = layout == "NCHW"
    x = te.placeholder(in_order(layout, b, D2.sizes(p), ch), types.input, "x")
    k = te.placeholder((ch, *window) if nchw else (*window, ch), types.input, "w")
    z = pad(x, D2.sides(p), 0, layout, D2.size)

    def value(*axes: Expr) -> te.Reduction:
        n, at, (c,) = apart(layout, axes)
        weight = k[c, *r] if nchw else k[*r, c]
        return te.sum(z[in_order(layout, n, windows(p, at, r), c)] * weight, axis=r, dtype=types.accumulator)

    y = te.compute(in_order(layout, b, D2.outs(p), ch), named(in_order(layout, "n", D2.out, "c"), value), "y")
    return [x, k, stored(y, types.output)]


def _capsule(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    b, h, w, ci, co, kh, kw, size = (p[n] for n in ("b", "h", "w", "ci", "co", "kh", "kw", "capsule"))
    r = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "t")
    u, c = te.reduce_axis(size, "u"), te.reduce_axis(ci, "c")
    x = te.placeholder((b, h, w, size, size, ci), types.input, "x")
    k = te.placeholder((kh, kw, size, size, ci, co), types.input, "w")
    z = pad(x, D2.sides(p), 0, None, D2.size, "ijc")

    def value(n: Expr, e: Expr, q: Expr, i: Expr, j: Expr, o: Expr) -> te.Reduction:
        product = z[n, *windows(p, (e, q), r), i, u, c] * k[*r, u, j, c, o]
        return te.sum(product, axis=(*r, u, c), dtype=types.accumulator)

    y = te.compute(
        (b, *D2.outs(p), size, size, co),
        named("npqijo", value),
        "y",
    )
    return [x, k, stored(y, types.output)]


def _per_channel(y: te.Tensor, layout: str | None, name: str, fn: Callable[[Expr, Expr], Any]) -> te.Tensor:
    """A stage over ``y``: ``fn(element, channel)``."""
    names = in_order(layout, "n", "pq", "o")
    return te.compute(y.shape, named(names, lambda *at: fn(y[at], *apart(layout, at)[2])), name)


def _relu(y: te.Tensor, types: Types, layout: str | None) -> te.Tensor:
    return _per_channel(y, layout, "relu", lambda v, o: te.cast(te.maximum(v, 0), types.output))


def _conv2d_bias_relu(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, w, y = _conv(D2, p, types, layout)
    bias = te.placeholder((p["co"],), types.input, "bias")
    d = _per_channel(y, layout, "bias_add", lambda v, o: v + bias[o])
    return [x, w, bias, _relu(d, types, layout)]


def _conv2d_bn_relu(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, w, y = _conv(D2, p, types, layout)
    bias, scale, offset = (te.placeholder((p["co"],), types.input, n) for n in ("bias", "scale", "offset"))
    d = _per_channel(y, layout, "batch_norm", lambda v, o: (v + bias[o]) * scale[o] + offset[o])
    return [x, w, bias, scale, offset, _relu(d, types, layout)]


def _conv_wide(d: SpatialNames, p: Params, layout: str | None, inputs: Sequence[Array]) -> Array:
    """The convolution, channels last, accumulated in a wide dtype: one tensordot for each tap and group."""
    x = pad_array(wide(channels_last(inputs[0], layout)), d.sides(p), 0)
    w = wide(np.moveaxis(inputs[1], (0, 1), (-1, -2)) if layout == "NCHW" else inputs[1])
    groups, out = p["groups"], d.outs(p)
    cig, cog = p["ci"] // groups, p["co"] // groups
    y = np.zeros((p["b"], *out, p["co"]), x.dtype)
    for at in np.ndindex(*d.kernels(p)):
        t = taps(x, reach(p, at), out, p["stride"])
        for g in range(groups):
            block = slice(g * cog, (g + 1) * cog)
            y[..., block] += np.tensordot(t[..., g * cig : (g + 1) * cig], w[at][:, block], 1)
    return y


def _conv_reference(
    d: SpatialNames, p: Params, types: Types, layout: str | None, inputs: Sequence[Array]
) -> list[Array]:
    return [in_layout(_conv_wide(d, p, layout, inputs), layout).astype(types.output)]


def _bias_relu_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    y = np.maximum(_conv_wide(D2, p, layout, inputs) + wide(inputs[2]), 0)
    return [in_layout(y, layout).astype(types.output)]


def _bn_relu_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    bias, scale, offset = map(wide, inputs[2:])
    y = (_conv_wide(D2, p, layout, inputs) + bias) * scale + offset
    return [in_layout(np.maximum(y, 0), layout).astype(types.output)]


def _depthwise_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(wide(channels_last(inputs[0], layout)), D2.sides(p), 0)
    w = wide(inputs[1].transpose(1, 2, 0) if layout == "NCHW" else inputs[1])
    out = D2.outs(p)
    y = np.zeros((p["b"], *out, p["c"]), x.dtype)
    for at in np.ndindex(p["kh"], p["kw"]):
        y += taps(x, reach(p, at), out, p["stride"]) * w[at]
    return [in_layout(y, layout).astype(types.output)]


def _capsule_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x, w = pad_array(wide(inputs[0]), D2.sides(p), 0), wide(inputs[1])
    every = np.ndindex(p["kh"], p["kw"])
    y = sum(np.einsum("nhwiuc,ujco->nhwijo", taps(x, at, D2.outs(p), p["stride"]), w[at]) for at in every)
    return [np.asarray(y).astype(types.output)]


def _conv_flops(d: SpatialNames, p: Params) -> int:
    each = math.prod(d.kernels(p)) * (p["ci"] // p["groups"])
    return int(2 * p["b"] * math.prod(d.outs(p)) * p["co"] * each)


def _depthwise_flops(p: Params) -> int:
    return int(2 * p["b"] * math.prod(D2.outs(p)) * p["c"] * p["kh"] * p["kw"])


def _capsule_flops(p: Params) -> int:
    points = p["b"] * math.prod(D2.outs(p)) * p["capsule"] ** 2 * p["co"]
    return int(2 * points * p["kh"] * p["kw"] * p["capsule"] * p["ci"])


def _check_conv(d: SpatialNames, p: Params) -> str | None:
    return uneven_groups(p) or d.check(p)


def _params(d: SpatialNames, *more: Param, channels: tuple[Param, ...] = (CI, CO)) -> tuple[Param, ...]:
    windows = (by_axis(x, len(d.size)) for x in (STRIDE, PADDING))
    return (BATCH, *sizes(d.size), *channels, *sizes(d.kernel), *windows, *more)


def _operator(
    d: SpatialNames,
    name: str,
    doc: str,
    build: Build | None = None,
    reference: Reference | None = None,
    **more: Any,
) -> Operator:
    """A convolution. ``build`` and ``reference``: given if something follows the convolution, or it is of
    another kind. ``more``: what else differs."""
    usual = {
        "params": _params(d, by_axis(DILATION, len(d.size)), GROUPS),
        "build": build or partial(_stored_conv, d),
        "reference": reference or partial(_conv_reference, d),
        "flops": partial(_conv_flops, d),
        "check": partial(_check_conv, d),
        "shorthands": kernel_names(d.kernel),
        "weights": ("w",),
        "retyped": True,
    }
    return Operator(name, doc, **(usual | more))


CONV1D = _operator(D1, "conv1d", "x(b,l,ci), w(k,ci/groups,co) → (b,p,co)")
CONV2D = _operator(
    D2,
    "conv2d",
    "NHWC: x(b,h,w,ci), w(kh,kw,ci/groups,co); NCHW: x(b,ci,h,w), w(co,ci/groups,kh,kw); k=3 sets kh=kw=3",
    layouts=LAYOUTS,
)
CONV3D = _operator(
    D3,
    "conv3d",
    "x(b,d,h,w,ci), w(kd,kh,kw,ci/groups,co) → (b,e,p,q,co); k=3 sets kd=kh=kw=3",
)
CONV2D_BIAS_RELU = _operator(
    D2,
    "conv2d_bias_relu",
    "conv2d's inputs, bias(co) → max(conv2d + bias, 0)",
    _conv2d_bias_relu,
    _bias_relu_reference,
    dtypes=COMPUTED,
    layouts=LAYOUTS,
)
CONV2D_BN_RELU = _operator(
    D2,
    "conv2d_bn_relu",
    "conv2d's inputs, bias(co), scale(co), offset(co) → max((conv2d + bias) · scale + offset, 0)",
    _conv2d_bn_relu,
    _bn_relu_reference,
    layouts=LAYOUTS,
    dtypes=FLOATS,
)
DEPTHWISE_CONV2D = _operator(
    D2,
    "depthwise_conv2d",
    "NHWC: x(b,h,w,c), w(kh,kw,c); NCHW: x(b,c,h,w), w(c,kh,kw); k=3 sets kh=kw=3",
    _depthwise,
    _depthwise_reference,
    params=_params(D2, by_axis(DILATION, 2), channels=(CHANNELS,)),
    flops=_depthwise_flops,
    layouts=LAYOUTS,
    check=D2.check,
)
CAPSULE_CONV2D = _operator(
    D2,
    "capsule_conv2d",
    "x(b,h,w,4,4,ci), w(kh,kw,4,4,ci,co) → (b,p,q,4,4,co): a convolution of matrices; k=3 sets kh=kw=3",
    _capsule,
    _capsule_reference,
    params=_params(D2, Param("capsule", "rows and columns of a capsule", 4)),
    flops=_capsule_flops,
    check=D2.check,
)
