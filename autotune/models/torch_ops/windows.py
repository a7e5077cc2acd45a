"""Convolutions, pools and resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.models.lowering import pooling
from autotune.models.lowering import resize as rs
from autotune.models.lowering.base import UnsupportedForm
from autotune.models.lowering.convolution import (
    columns,
    convolution,
    of_columns,
    transposed_convolution,
)
from autotune.models.lowering.movement import reshape
from autotune.models.lowering.windows import Windows
from autotune.models.torch_ops.table import TorchNode, Value, aten
from schedules import te


def _each(given: int | Sequence[int], rank: int, default: int) -> tuple[int, ...]:
    """One number an axis; one for all, or none, is taken too."""
    found = ((given,) if isinstance(given, int) else tuple(int(n) for n in given)) or (default,)
    return found * rank if len(found) == 1 else found


@aten("convolution.default")
def _convolution(
    node: TorchNode, x: Value, w: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> te.Tensor:  # fmt: skip
    t, k, b = node.floats(x), node.tensor(w), node.optional(bias)
    rank = len(k.shape) - 2
    by, pad, far = _each(stride, rank, 1), _each(padding, rank, 0), _each(dilation, rank, 1)
    batched = len(t.shape) == rank + 2
    if not batched:
        t = reshape(t, (1, *t.shape))
    if transposed:
        shape = node.shape[-rank:]
        y = transposed_convolution(t, k, b, by, far, pad, shape, groups)
    else:
        at = Windows(t.shape[2:], k.shape[2:], by, far, tuple((p, p) for p in pad))
        y = convolution(t, k, b, at, groups)
    return y if batched else reshape(y, node.shape)


# --- pools ------------------------------------------------------------------------------------


def _batched(t: te.Tensor, rank: int) -> te.Tensor:
    """With batch and channels in front of ``rank`` spatial axes."""
    return t if len(t.shape) == rank + 2 else reshape(t, (*[1] * (rank + 2 - len(t.shape)), *t.shape))


def _pool_windows(
    t: te.Tensor, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Windows:
    size = _each(kernel, rank, 1)
    by = _each(stride, rank, 1) if stride not in ((), []) else size
    sides = tuple((p, p) for p in _each(padding, rank, 0))
    return Windows(t.shape[2:], size, by, _each(dilation, rank, 1), sides, ceil)


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def _max_pool(
    node: TorchNode, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[te.Tensor | None]:  # fmt: skip
    rank = 2 if "2d" in node.name else 3
    t = _batched(node.tensor(x), rank)
    at = _pool_windows(t, rank, kernel, stride, padding, dilation, ceil_mode)
    y = pooling.max_pool(t, at)
    return [
        reshape(y, node.shape),
        reshape(pooling.max_places(t, y, at, nan_last=True), node.shape) if 1 in node.used else None,
    ]


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def _average_pool(
    node: TorchNode, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> te.Tensor:  # fmt: skip
    rank = int(node.name[-2])
    t = _batched(node.floats(x), rank)
    at = _pool_windows(t, rank, kernel, stride, padding, 1, ceil_mode)
    if divisor_override is not None:
        y = pooling.sum_pool(t, at, 1.0 / divisor_override)
    else:
        y = pooling.average_pool(t, at, count_include_pad)
    return reshape(y, node.shape)


@aten(
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default",
)  # fmt: skip
def _adaptive_average(node: TorchNode, x: Value, size: Sequence[int]) -> te.Tensor:
    rank = int(node.name[-2])
    t = _batched(node.floats(x), rank)
    at = _equal_parts(t, rank, node.shape)
    if at is None:
        return reshape(pooling.unequal_pool(t, node.shape[-rank:], True)[0], node.shape)
    return reshape(pooling.average_pool(t, at, True), node.shape)


@aten("adaptive_max_pool2d.default", "adaptive_max_pool3d.default", "adaptive_max_pool1d.default")
def _adaptive_max(node: TorchNode, x: Value, size: Sequence[int]) -> list[te.Tensor | None]:
    rank = int(node.name[-2])
    t = _batched(node.tensor(x), rank)
    at, places = _equal_parts(t, rank, node.shape), None
    if at is None:
        y, places = pooling.unequal_pool(t, node.shape[-rank:], False)
    else:
        y = pooling.max_pool(t, at)
        places = pooling.max_places(t, y, at, nan_last=True) if 1 in node.used else None
    used = places is not None and 1 in node.used
    return [reshape(y, node.shape), reshape(places, node.shape) if used else None]  # type: ignore[arg-type]


def _equal_parts(t: te.Tensor, rank: int, shape: Sequence[int]) -> Windows | None:
    """Windows that all have one size; None where there are none such."""
    sizes, out = t.shape[2:], shape[-rank:]
    if any(n % m for n, m in zip(sizes, out, strict=True)):
        return None
    each = tuple(n // m for n, m in zip(sizes, out, strict=True))
    return Windows(sizes, each, each, (1,) * rank, ((0, 0),) * rank)


@aten("im2col.default")
def _columns(
    node: TorchNode, x: Value, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> te.Tensor:  # fmt: skip
    t = _batched(node.tensor(x), 2)
    sides = tuple((p, p) for p in _each(padding, 2, 0))
    at = Windows(t.shape[2:], _each(kernel, 2, 1), _each(stride, 2, 1), _each(dilation, 2, 1), sides)
    return reshape(columns(t, at), node.shape)


@aten("col2im.default")
def _of_columns(
    node: TorchNode, x: Value, size: Sequence[int], kernel: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> te.Tensor:  # fmt: skip
    t = node.tensor(x)
    t = t if len(t.shape) == 3 else reshape(t, (1, *t.shape))
    sides = tuple((p, p) for p in _each(padding, 2, 0))
    at = Windows(_each(size, 2, 1), _each(kernel, 2, 1), _each(stride, 2, 1), _each(dilation, 2, 1), sides)
    return reshape(of_columns(t, at), node.shape)


# --- resizing ---------------------------------------------------------------------------------


@aten(*(f"upsample_nearest{n}d.{form}" for n in (1, 2, 3) for form in ("vec", "default")))
def _nearest(node: TorchNode, x: Value, size: Any, *factors: Any) -> te.Tensor:
    """Element ⌊i / factor⌋."""
    t = node.tensor(x)
    for axis, out, scale in _scales(t, node.shape, factors):
        taps = rs.nearest_taps(np.floor(np.arange(out) / scale), t.shape[axis], "floor")
        t = rs.resample(t, axis, taps, scale, node.table)
    return t


@aten(
    "_upsample_bilinear2d_aa.default", "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa.default", "_upsample_bicubic2d_aa.vec",
)  # fmt: skip
def _smooth_wide(node: TorchNode, x: Value, size: Any, align_corners: bool, *factors: Any) -> te.Tensor:
    """Filters as wide as the outputs are apart. Weights are inside the image alone, and their sum is 1."""
    t = node.floats(x)
    for axis, out, scale in _scales(t, node.shape, factors):
        n = t.shape[axis]
        if align_corners:
            scale = (out - 1) / (n - 1) if out > 1 and n > 1 else math.inf
        if math.isinf(scale):
            raise UnsupportedForm("align_corners with one element is not supported")
        places = (np.arange(out) + 0.5) / scale - 0.5
        taps = rs.filter_taps(places, n, scale, -0.5 if "cubic" in node.name else None, True, True)
        t = rs.resample(t, axis, taps, scale, node.table)
    return t


@aten(
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
    "upsample_bilinear2d.default", "upsample_bicubic2d.default",
)  # fmt: skip
def _smooth(node: TorchNode, x: Value, size: Any, align_corners: bool, *factors: Any) -> te.Tensor:
    t = node.floats(x)
    for axis, out, scale in _scales(t, node.shape, factors):
        size = t.shape[axis]
        if align_corners:
            places = np.arange(out) * ((size - 1) / (out - 1)) if out > 1 else np.zeros(out)
        else:
            places = (np.arange(out) + 0.5) / scale - 0.5
        cubic = -0.75 if "cubic" in node.name else None
        taps = rs.filter_taps(places, size, scale, cubic, False, False)
        t = rs.resample(t, axis, taps, scale, node.table)
    return t


def _scales(t: te.Tensor, shape: Sequence[int], factors: Sequence[Any]) -> list[tuple[int, int, float]]:
    """(axis, extent of the output, output by input) of every axis that changes. ``factors``: one an axis, or
    a list of them."""
    given = list(factors[0] if len(factors) == 1 and isinstance(factors[0], (list, tuple)) else factors)
    out = []
    for i, d in enumerate(range(2, len(t.shape))):
        exact = given[i] if i < len(given) and given[i] is not None else shape[d] / t.shape[d]
        if shape[d] != t.shape[d] or not math.isclose(exact, 1):
            out.append((d, shape[d], float(exact)))
    return out
