"""Pools: max_pool2d, avg_pool2d."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.expr import ExprLike
from schedules.ops.base import Array, Operator, Param, Params, Types, stored, wide
from schedules.ops.window import (
    BATCH,
    PADDING,
    STRIDE,
    channels_last,
    in_layout,
    misfit,
    named,
    out_extent,
    pad,
    pad_array,
    taps,
)
from schedules.te.scalars import limit

Reduce = Callable[..., te.Reduction]


def _out(p: Params) -> tuple[int, int]:
    k, s, pad_ = p["k"], p["stride"], p["padding"]
    return out_extent(p["h"], k, s, pad_), out_extent(p["w"], k, s, pad_)


def _pool(
    p: Params, types: Types, layout: str | None, fill: ExprLike, of: Reduce
) -> tuple[te.Tensor, te.Tensor]:
    """(the input, the reduction of every window by ``of``)."""
    b, h, w, ch, stride = p["b"], p["h"], p["w"], p["c"], p["stride"]
    oh, ow = _out(p)
    r, s = te.reduce_axis(p["k"], "r"), te.reduce_axis(p["k"], "s")
    if layout == "NCHW":
        x = te.placeholder((b, ch, h, w), types.input, "x")
        z = pad(x, p["padding"], (2, 3), fill, "nchw")
        return x, te.compute(
            (b, ch, oh, ow),
            lambda n, c, p, q: of(z[n, c, p * stride + r, q * stride + s], axis=(r, s)),
            "y" if of is te.max else "total",
        )
    x = te.placeholder((b, h, w, ch), types.input, "x")
    z = pad(x, p["padding"], (1, 2), fill, "nhwc")
    return x, te.compute(
        (b, oh, ow, ch),
        lambda n, p, q, c: of(z[n, p * stride + r, q * stride + s, c], axis=(r, s)),
        "y" if of is te.max else "total",
    )


def _max_pool2d(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, top = _pool(p, types, layout, limit(types.input, -1), te.max)
    return [x, stored(top, types.output)]


def _avg_pool2d(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, total = _pool(p, types, layout, 0, te.sum)
    count = p["k"] ** 2
    mean = named("ncpq" if layout == "NCHW" else "npqc", lambda *i: te.cast(total[i] / count, types.output))
    return [x, te.compute(total.shape, mean, "y")]


def _max_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(channels_last(inputs[0], layout), p["padding"], limit(types.input, -1).value)
    out = _out(p)
    y = taps(x, (0, 0), out, p["stride"])
    for at in np.ndindex(p["k"], p["k"]):
        y = np.maximum(y, taps(x, at, out, p["stride"]))
    return [in_layout(y, layout)]


def _avg_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(wide(channels_last(inputs[0], layout)), p["padding"], 0)
    every = np.ndindex(p["k"], p["k"])
    total = np.sum([taps(x, at, _out(p), p["stride"]) for at in every], axis=0)
    return [in_layout(total / p["k"] ** 2, layout).astype(types.output)]


def _flops(p: Params) -> int:
    oh, ow = _out(p)
    return int(p["b"] * oh * ow * p["c"] * p["k"] ** 2)


def _check(p: Params) -> str | None:
    k, padding = p["k"], p["padding"]
    if 2 * padding > k:
        return f"padding={padding} is more than half of k={k}; a window could hold padding alone"
    return misfit("h", p["h"], k, padding) or misfit("w", p["w"], k, padding)


# Parameters that operators of this file share.
_PARAMS = (
    BATCH,
    Param("h", "rows of the input"),
    Param("w", "columns of the input"),
    Param("c", "channels"),
    Param("k", "rows and columns of a window"),
    STRIDE,
    PADDING,
)

MAX_POOL2D = Operator(
    "max_pool2d",
    "NHWC: x(b,h,w,c) → (b,p,q,c); NCHW: x(b,c,h,w) → (b,c,p,q); windows of k×k, "
    "padded with the lowest value",
    _PARAMS,
    _max_pool2d,
    _max_reference,
    _flops,
    ("NHWC", "NCHW"),
    check=_check,
)
AVG_POOL2D = Operator(
    "avg_pool2d",
    "NHWC: x(b,h,w,c) → (b,p,q,c); NCHW: x(b,c,h,w) → (b,c,p,q); windows of k×k, padding counted as zeros",
    _PARAMS,
    _avg_pool2d,
    _avg_reference,
    _flops,
    ("NHWC", "NCHW"),
    dtypes=FLOATS,
    check=_check,
)
