"""The geometry of windows, shared by convolutions and pools: output extents, padding, layouts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.base import Array, Param

# Parameters that convolutions and pools share.
BATCH = Param("b", "batch", 1)
STRIDE = Param("stride", "the step between windows, in both directions", 1)
PADDING = Param("padding", "rows and columns added on every side", 0, minimum=0)
DILATION = Param("dilation", "the distance between taps", 1)


def out_extent(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Number of windows of ``kernel`` taps along ``size`` elements; below 1 if none fits."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def misfit(what: str, size: int, kernel: int, padding: int, dilation: int = 1) -> str | None:
    """Why a window is larger than the padded input, None if it is not."""
    reach = dilation * (kernel - 1) + 1
    if reach <= size + 2 * padding:
        return None
    return (
        f"the kernel reaches over {reach} elements, but {what}={size} with padding {padding} "
        f"has only {size + 2 * padding}; use a smaller kernel or more padding"
    )


def named(names: Sequence[str], fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn(*axes)`` with parameters of these names, because `te.compute` names its axes after them."""

    def call(*axes: Expr) -> Any:
        return fn(*axes)

    kind = inspect.Parameter.POSITIONAL_ONLY
    call.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return call


def pad(
    x: te.Tensor, padding: int | tuple[int, int], axes: Sequence[int], fill: ExprLike, names: Sequence[str]
) -> te.Tensor:
    """A stage named "pad": ``x`` with elements of ``fill`` on both sides of ``axes``. ``padding``: their
    number, or (before, after). ``names``: of the stage's axes. Returns ``x`` if there is nothing to add."""
    before, after = padding if isinstance(padding, tuple) else (padding, padding)
    if before == after == 0:
        return x
    shape = [n + before + after if d in axes else n for d, n in enumerate(x.shape)]

    def value(*index: Expr) -> Expr:
        inside = te.all(*(c for d in axes for c in (index[d] >= before, index[d] < x.shape[d] + before)))
        return te.select(inside, x[tuple(i - before if d in axes else i for d, i in enumerate(index))], fill)

    return te.compute(shape, named(names, value), "pad")


def channels_last(x: Array, layout: str | None) -> Array:
    """An activation with its channels last."""
    return np.moveaxis(x, 1, -1) if layout == "NCHW" else x


def in_layout(x: Array, layout: str | None) -> Array:
    """Inverse of `channels_last`, contiguous."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1) if layout == "NCHW" else x)


def pad_array(x: Array, padding: int, fill: float, spatial: int = 2) -> Array:
    """An array whose ``spatial`` dimensions after the first are padded."""
    width = [(padding, padding) if 1 <= d <= spatial else (0, 0) for d in range(x.ndim)]
    return np.pad(x, width, constant_values=fill)


def taps(x: Array, at: Sequence[int], out: Sequence[int], stride: int) -> Array:
    """The elements of a padded channels-last array that the tap at ``at`` reads, for all windows."""
    spatial = (slice(r, r + (n - 1) * stride + 1, stride) for r, n in zip(at, out, strict=True))
    return x[(slice(None), *spatial)]
