"""Convolutions in two dimensions: conv2d, conv2d_bias_relu, depthwise_conv2d."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.expr import Expr
from schedules.ops.base import Array, Operator, Param, Params, wide
from schedules.ops.window import (
    BATCH,
    DILATION,
    PADDING,
    STRIDE,
    from_nhwc,
    misfit,
    out_extent,
    pad,
    pad_array,
    taps,
    to_nhwc,
)

LAYOUTS = ("NHWC", "NCHW")


def _out(p: Params) -> tuple[int, int]:
    """Rows and columns of the output."""
    s, pad_, d = p["stride"], p["padding"], p["dilation"]
    return out_extent(p["h"], p["kh"], s, pad_, d), out_extent(p["w"], p["kw"], s, pad_, d)


def _conv2d(p: Params, dtype: str, layout: str | None) -> list[te.Tensor]:
    b, h, w, ci, co, kh, kw = (p[n] for n in ("b", "h", "w", "ci", "co", "kh", "kw"))
    stride, dilation, groups = p["stride"], p["dilation"], p["groups"]
    cig, cog = ci // groups, co // groups
    oh, ow = _out(p)
    r, s, c = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s"), te.reduce_axis(cig, "c")

    def channel(o: Expr) -> Expr:
        """The input channel that output channel ``o`` reads."""
        return c if groups == 1 else (o // cog) * cig + c

    if layout == "NCHW":
        x = te.placeholder((b, ci, h, w), dtype, "x")
        k = te.placeholder((co, cig, kh, kw), dtype, "w")
        z = pad(x, p["padding"], (2, 3), 0)
        y = te.compute(
            (b, co, oh, ow),
            lambda n, o, p, q: te.sum(
                z[n, channel(o), p * stride + r * dilation, q * stride + s * dilation] * k[o, c, r, s],
                axis=(r, s, c),
            ),
            "y",
        )
        return [x, k, y]
    x = te.placeholder((b, h, w, ci), dtype, "x")
    k = te.placeholder((kh, kw, cig, co), dtype, "w")
    z = pad(x, p["padding"], (1, 2), 0)
    y = te.compute(
        (b, oh, ow, co),
        lambda n, p, q, o: te.sum(
            z[n, p * stride + r * dilation, q * stride + s * dilation, channel(o)] * k[r, s, c, o],
            axis=(r, s, c),
        ),
        "y",
    )
    return [x, k, y]


def _conv2d_bias_relu(p: Params, dtype: str, layout: str | None) -> list[te.Tensor]:
    x, w, y = _conv2d(p, dtype, layout)
    bias = te.placeholder((p["co"],), dtype, "bias")
    if layout == "NCHW":
        d = te.compute(y.shape, lambda n, o, p, q: y[n, o, p, q] + bias[o], "bias_add")
        return [x, w, bias, te.compute(y.shape, lambda n, o, p, q: te.maximum(d[n, o, p, q], 0), "relu")]
    d = te.compute(y.shape, lambda n, p, q, o: y[n, p, q, o] + bias[o], "bias_add")
    return [x, w, bias, te.compute(y.shape, lambda n, p, q, o: te.maximum(d[n, p, q, o], 0), "relu")]


def _depthwise(p: Params, dtype: str, layout: str | None) -> list[te.Tensor]:
    b, h, w, ch, kh, kw = (p[n] for n in ("b", "h", "w", "c", "kh", "kw"))
    stride, dilation = p["stride"], p["dilation"]
    oh, ow = _out(p)
    r, s = te.reduce_axis(kh, "r"), te.reduce_axis(kw, "s")
    if layout == "NCHW":
        x, k = te.placeholder((b, ch, h, w), dtype, "x"), te.placeholder((ch, kh, kw), dtype, "w")
        z = pad(x, p["padding"], (2, 3), 0)
        y = te.compute(
            (b, ch, oh, ow),
            lambda n, c, p, q: te.sum(
                z[n, c, p * stride + r * dilation, q * stride + s * dilation] * k[c, r, s], axis=(r, s)
            ),
            "y",
        )
        return [x, k, y]
    x, k = te.placeholder((b, h, w, ch), dtype, "x"), te.placeholder((kh, kw, ch), dtype, "w")
    z = pad(x, p["padding"], (1, 2), 0)
    y = te.compute(
        (b, oh, ow, ch),
        lambda n, p, q, c: te.sum(
            z[n, p * stride + r * dilation, q * stride + s * dilation, c] * k[r, s, c], axis=(r, s)
        ),
        "y",
    )
    return [x, k, y]


def _conv_nhwc(p: Params, layout: str | None, inputs: Sequence[Array]) -> Array:
    """The convolution in NHWC, accumulated wide: one tensordot for each tap and group."""
    x = pad_array(wide(to_nhwc(inputs[0], layout)), p["padding"], 0)
    w = wide(inputs[1].transpose(2, 3, 1, 0) if layout == "NCHW" else inputs[1])
    groups, out = p["groups"], _out(p)
    cig, cog = p["ci"] // groups, p["co"] // groups
    y = np.zeros((p["b"], *out, p["co"]), x.dtype)
    for r in range(p["kh"]):
        for s in range(p["kw"]):
            t = taps(x, (r * p["dilation"], s * p["dilation"]), out, p["stride"])
            for g in range(groups):
                block = slice(g * cog, (g + 1) * cog)
                y[..., block] += np.tensordot(t[..., g * cig : (g + 1) * cig], w[r, s, :, block], 1)
    return y


def _conv2d_reference(p: Params, dtype: str, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [from_nhwc(_conv_nhwc(p, layout, inputs), layout).astype(dtype)]


def _bias_relu_reference(p: Params, dtype: str, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    y = np.maximum(_conv_nhwc(p, layout, inputs) + inputs[2], 0)
    return [from_nhwc(y, layout).astype(dtype)]


def _depthwise_reference(p: Params, dtype: str, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(wide(to_nhwc(inputs[0], layout)), p["padding"], 0)
    w = wide(inputs[1].transpose(1, 2, 0) if layout == "NCHW" else inputs[1])
    out = _out(p)
    y = np.zeros((p["b"], *out, p["c"]), x.dtype)
    for r in range(p["kh"]):
        for s in range(p["kw"]):
            y += taps(x, (r * p["dilation"], s * p["dilation"]), out, p["stride"]) * w[r, s]
    return [from_nhwc(y, layout).astype(dtype)]


def _conv2d_flops(p: Params) -> int:
    oh, ow = _out(p)
    return int(2 * p["b"] * oh * ow * p["co"] * p["kh"] * p["kw"] * (p["ci"] // p["groups"]))


def _depthwise_flops(p: Params) -> int:
    oh, ow = _out(p)
    return int(2 * p["b"] * oh * ow * p["c"] * p["kh"] * p["kw"])


def _check_window(p: Params) -> str | None:
    padding, dilation = p["padding"], p["dilation"]
    return misfit("h", p["h"], p["kh"], padding, dilation) or misfit("w", p["w"], p["kw"], padding, dilation)


def _check_conv2d(p: Params) -> str | None:
    for name in ("ci", "co"):
        if p[name] % p["groups"]:
            return (
                f"groups={p['groups']} does not divide {name}={p[name]}; every group needs as many channels"
            )
    return _check_window(p)


_IMAGE = (BATCH, Param("h", "rows of the input"), Param("w", "columns of the input"))
_KERNEL = (Param("kh", "rows of the kernel"), Param("kw", "columns of the kernel"))
_CONV = (
    *_IMAGE,
    Param("ci", "input channels"),
    Param("co", "output channels"),
    *_KERNEL,
    STRIDE,
    PADDING,
    DILATION,
    Param("groups", "groups of channels that are convolved apart", 1),
)
_SHORT = (("k", ("kh", "kw")),)

CONV2D = Operator(
    "conv2d",
    "NHWC: x(b,h,w,ci), w(kh,kw,ci/groups,co); NCHW: x(b,ci,h,w), w(co,ci/groups,kh,kw); k=3 sets kh=kw=3",
    _CONV,
    _conv2d,
    _conv2d_reference,
    _conv2d_flops,
    LAYOUTS,
    check=_check_conv2d,
    shorthands=_SHORT,
)
CONV2D_BIAS_RELU = Operator(
    "conv2d_bias_relu",
    "conv2d's inputs, bias(co) → max(conv2d + bias, 0)",
    _CONV,
    _conv2d_bias_relu,
    _bias_relu_reference,
    _conv2d_flops,
    LAYOUTS,
    check=_check_conv2d,
    shorthands=_SHORT,
)
DEPTHWISE_CONV2D = Operator(
    "depthwise_conv2d",
    "NHWC: x(b,h,w,c), w(kh,kw,c); NCHW: x(b,c,h,w), w(c,kh,kw); k=3 sets kh=kw=3",
    (*_IMAGE, Param("c", "channels"), *_KERNEL, STRIDE, PADDING, DILATION),
    _depthwise,
    _depthwise_reference,
    _depthwise_flops,
    LAYOUTS,
    check=_check_window,
    shorthands=_SHORT,
)
