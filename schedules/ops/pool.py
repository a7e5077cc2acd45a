"""Pools: max_pool2d."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schedules import te
from schedules.ops.base import Array, Operator, Param, Params
from schedules.ops.window import (
    BATCH,
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
from schedules.scalars import limit


def _out(p: Params) -> tuple[int, int]:
    k, s, pad_ = p["k"], p["stride"], p["padding"]
    return out_extent(p["h"], k, s, pad_), out_extent(p["w"], k, s, pad_)


def _max_pool2d(p: Params, dtype: str, layout: str | None) -> list[te.Tensor]:
    b, h, w, ch, stride = p["b"], p["h"], p["w"], p["c"], p["stride"]
    oh, ow = _out(p)
    r, s = te.reduce_axis(p["k"], "r"), te.reduce_axis(p["k"], "s")
    fill = limit(dtype, -1)
    if layout == "NCHW":
        x = te.placeholder((b, ch, h, w), dtype, "x")
        z = pad(x, p["padding"], (2, 3), fill)
        return [
            x,
            te.compute(
                (b, ch, oh, ow),
                lambda n, c, p, q: te.max(z[n, c, p * stride + r, q * stride + s], axis=(r, s)),
                "y",
            ),
        ]
    x = te.placeholder((b, h, w, ch), dtype, "x")
    z = pad(x, p["padding"], (1, 2), fill)
    return [
        x,
        te.compute(
            (b, oh, ow, ch),
            lambda n, p, q, c: te.max(z[n, p * stride + r, q * stride + s, c], axis=(r, s)),
            "y",
        ),
    ]


def _reference(p: Params, dtype: str, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(to_nhwc(inputs[0], layout), p["padding"], limit(dtype, -1).value)
    out = _out(p)
    y = taps(x, (0, 0), out, p["stride"])
    for r in range(p["k"]):
        for s in range(p["k"]):
            y = np.maximum(y, taps(x, (r, s), out, p["stride"]))
    return [from_nhwc(y, layout)]


def _flops(p: Params) -> int:
    oh, ow = _out(p)
    return int(p["b"] * oh * ow * p["c"] * p["k"] ** 2)


def _check(p: Params) -> str | None:
    k, padding = p["k"], p["padding"]
    if 2 * padding > k:
        return f"padding={padding} is more than half of k={k}; a window could hold padding alone"
    return misfit("h", p["h"], k, padding) or misfit("w", p["w"], k, padding)


MAX_POOL2D = Operator(
    "max_pool2d",
    "NHWC: x(b,h,w,c) → (b,p,q,c); NCHW: x(b,c,h,w) → (b,c,p,q); windows of k×k, "
    "padded with the lowest value",
    (
        BATCH,
        Param("h", "rows of the input"),
        Param("w", "columns of the input"),
        Param("c", "channels"),
        Param("k", "rows and columns of a window"),
        STRIDE,
        PADDING,
    ),
    _max_pool2d,
    _reference,
    _flops,
    ("NHWC", "NCHW"),
    check=_check,
)
