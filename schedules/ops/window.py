"""Geometry that convolutions and pools share: output extents, padding, layouts."""

from __future__ import annotations

import numpy as np

from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.base import Array, Param

BATCH = Param("b", "batch", 1)
STRIDE = Param("stride", "the step between windows, in both directions", 1)
PADDING = Param("padding", "rows and columns added on every side", 0, minimum=0)
DILATION = Param("dilation", "the distance between taps", 1)


def out_extent(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Windows of ``kernel`` taps along ``size`` elements; below 1 when not even one fits."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def misfit(what: str, size: int, kernel: int, padding: int, dilation: int = 1) -> str | None:
    """What is wrong when a window is larger than the padded input."""
    reach = dilation * (kernel - 1) + 1
    if reach <= size + 2 * padding:
        return None
    return (
        f"the kernel reaches over {reach} elements, but {what}={size} with padding {padding} "
        f"has only {size + 2 * padding}; use a smaller kernel or more padding"
    )


def pad(x: te.Tensor, padding: int, axes: tuple[int, int], fill: ExprLike) -> te.Tensor:
    """A stage named "pad": ``x`` with ``padding`` elements of ``fill`` on both sides of two axes;
    ``x`` itself when there is nothing to add."""
    if padding == 0:
        return x
    shape = [n + 2 * padding if d in axes else n for d, n in enumerate(x.shape)]

    def value(*index: Expr) -> Expr:
        inside = te.all(*(c for d in axes for c in (index[d] >= padding, index[d] < x.shape[d] + padding)))
        return te.select(inside, x[tuple(i - padding if d in axes else i for d, i in enumerate(index))], fill)

    if axes == (1, 2):
        return te.compute(shape, lambda n, h, w, c: value(n, h, w, c), "pad")
    return te.compute(shape, lambda n, c, h, w: value(n, c, h, w), "pad")


def to_nhwc(x: Array, layout: str | None) -> Array:
    """An activation in NHWC."""
    return x.transpose(0, 2, 3, 1) if layout == "NCHW" else x


def from_nhwc(x: Array, layout: str | None) -> Array:
    """Inverse of `to_nhwc`, contiguous."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2) if layout == "NCHW" else x)


def pad_array(x: Array, padding: int, fill: float) -> Array:
    """An NHWC array with its rows and columns padded."""
    return np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)), constant_values=fill)


def taps(x: Array, at: tuple[int, int], out: tuple[int, int], stride: int) -> Array:
    """The elements of a padded NHWC array that a tap at ``at`` meets, for all windows."""
    (r, s), (p, q) = at, out
    return x[:, r : r + (p - 1) * stride + 1 : stride, s : s + (q - 1) * stride + 1 : stride]
