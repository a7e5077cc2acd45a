"""Pools: max_pool2d, avg_pool2d.

Windows step over the input and its padding. With ``ceil_mode`` a last one may reach beyond the padding, as
long as it begins in front of it; what lies there is no part of an average (torch's rules).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from schedules import te
from schedules.dtypes import FLOATS
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import each, named
from schedules.ops.base import Array, Operator, Param, Params, Types, flag, stored, wide
from schedules.ops.window import (
    BATCH,
    CHANNELS,
    DILATION,
    PADDING,
    STRIDE,
    Sides,
    apart,
    by_axis,
    channels_last,
    in_layout,
    in_order,
    misfit,
    out_extent,
    pad,
    pad_array,
    reach,
    sizes,
    taps,
    windows,
)
from schedules.te.scalars import limit

Reduce = Callable[..., te.Reduction]


def _pair(p: Params, name: str) -> tuple[int, int]:
    """A parameter in both directions."""
    x, y = each(p.get(name, 1), 2)
    return x, y


def _out(p: Params) -> list[int]:
    """Rows and columns of the output."""
    how = [_pair(p, name) for name in ("k", "stride", "padding", "dilation")]
    out = list(map(out_extent, (p["h"], p["w"]), *how))
    if not p["ceil_mode"]:
        return out
    return [
        n + ((n * stride) < size + padding and _end(n - 1, k, stride, dilation) < size + 2 * padding)
        for n, size, k, stride, padding, dilation in zip(out, (p["h"], p["w"]), *how, strict=True)
    ]


def _end(window: int, k: int, stride: int, dilation: int) -> int:
    """The place in the padded input after a window."""
    return window * stride + dilation * (k - 1) + 1


def _sides(p: Params) -> Sides:
    """Elements added before and after each axis, so that every window has all of its own."""
    how = [_pair(p, name) for name in ("k", "stride", "dilation", "padding")]
    return [
        (padding, max(padding, _end(n - 1, k, stride, dilation) - size - padding))
        for n, size, k, stride, dilation, padding in zip(_out(p), (p["h"], p["w"]), *how, strict=True)
    ]


def _pool(
    p: Params, types: Types, layout: str | None, fill: ExprLike, of: Reduce
) -> tuple[te.Tensor, te.Tensor]:
    """(the input, the reduction of every window by ``of``)."""
    b, h, w, ch = p["b"], p["h"], p["w"], p["c"]
    r = [te.reduce_axis(n, name) for n, name in zip(_pair(p, "k"), "rs", strict=True)]

    def value(*axes: Expr) -> te.Reduction:
        n, at, (c,) = apart(layout, axes)
        return of(z[in_order(layout, n, windows(p, at, r), c)], axis=r)

    x = te.placeholder(in_order(layout, b, (h, w), ch), types.input, "x")
    z = pad(x, _sides(p), fill, layout, "hw")
    names, name = in_order(layout, "n", "pq", "c"), "y" if of is te.max else "total"
    return x, te.compute(in_order(layout, b, _out(p), ch), named(names, value), name)


def _max_pool2d(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, top = _pool(p, types, layout, limit(types.input, -1), te.max)
    return [x, stored(top, types.output)]


def _counted(p: Params) -> list[tuple[int, int]]:
    """The places in the padded input that an average counts, along each axis: from, to."""
    return [
        (0, n + 2 * padding) if p["count_include_pad"] else (padding, n + padding)
        for n, padding in zip((p["h"], p["w"]), _pair(p, "padding"), strict=True)
    ]


def _counts(p: Params) -> list[list[int]]:
    """How many elements the windows of each axis count."""
    how = zip(_out(p), _pair(p, "k"), _pair(p, "stride"), _counted(p), strict=True)
    return [
        [min(i * stride + k, hi) - max(i * stride, lo) for i in range(n)] for n, k, stride, (lo, hi) in how
    ]


def _avg_pool2d(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    x, total = _pool(p, types, layout, 0, te.sum)
    k, step, counted, counts = _pair(p, "k"), _pair(p, "stride"), _counted(p), _counts(p)

    def count(at: Sequence[Expr]) -> ExprLike:
        """How many elements the window of an output counts: all of its own, or those that are counted."""
        same = math.prod(c[0] for c in counts if len(set(c)) == 1)
        various: list[Expr] = []
        for i, n, s, (lo, hi), c in zip(at, k, step, counted, counts, strict=True):
            if len(set(c)) > 1:
                various.append(te.minimum(i * s + n, hi) - te.maximum(i * s, lo))
        if not various:
            return same
        return te.cast(math.prod(various, start=same), total.dtype)

    def mean(*at: Expr) -> Expr:
        return te.cast(total[at] / count(apart(layout, at)[1]), types.output)

    return [x, te.compute(total.shape, named(in_order(layout, "n", "pq", "c"), mean), "y")]


def _windows(x: Array, p: Params) -> list[Array]:
    """The elements of a padded channels-last array at each tap of all windows."""
    return [taps(x, reach(p, at), _out(p), p["stride"]) for at in np.ndindex(*_pair(p, "k"))]


def _max_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(channels_last(inputs[0], layout), _sides(p), limit(types.input, -1).value)
    return [in_layout(np.maximum.reduce(_windows(x, p)), layout)]


def _avg_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = pad_array(wide(channels_last(inputs[0], layout)), _sides(p), 0)
    count = np.multiply.outer(*_counts(p))[..., None]
    return [in_layout(np.sum(_windows(x, p), axis=0) / count, layout).astype(types.output)]


def _flops(p: Params) -> int:
    return int(p["b"] * math.prod(_out(p)) * p["c"] * math.prod(_pair(p, "k")))


def _check(p: Params) -> str | None:
    k, padding, dilation = (_pair(p, name) for name in ("k", "padding", "dilation"))
    for n, side in zip(k, padding, strict=True):
        if 2 * side > n:
            return f"padding={side} is more than half of k={n}; a window could hold padding alone"
    wrong = map(misfit, ("h", "w"), (p["h"], p["w"]), k, padding, dilation)
    return next(filter(None, wrong), None)


# Parameters that operators of this file share.
_PARAMS = (
    BATCH,
    *sizes(("h", "w")),
    CHANNELS,
    Param("k", "rows and columns of a window", axes=2, example=3),
    by_axis(STRIDE, 2),
    by_axis(PADDING, 2),
    flag("ceil_mode", "1: a last window may reach beyond the padding", optional=True),
)

MAX_POOL2D = Operator(
    "max_pool2d",
    "NHWC: x(b,h,w,c) → (b,p,q,c); NCHW: x(b,c,h,w) → (b,c,p,q); windows of k×k, "
    "padded with the lowest value",
    (*_PARAMS, replace(by_axis(DILATION, 2), optional=True)),
    _max_pool2d,
    _max_reference,
    _flops,
    ("NHWC", "NCHW"),
    check=_check,
    shorthands=(("kernel_size", ("k",)),),
)
AVG_POOL2D = Operator(
    "avg_pool2d",
    "NHWC: x(b,h,w,c) → (b,p,q,c); NCHW: x(b,c,h,w) → (b,c,p,q); windows of k×k, padding counted as zeros",
    (*_PARAMS, flag("count_include_pad", "0: averages do not count padding", 1, optional=True)),
    _avg_pool2d,
    _avg_reference,
    _flops,
    ("NHWC", "NCHW"),
    dtypes=FLOATS,
    check=_check,
    shorthands=(("kernel_size", ("k",)),),
)
