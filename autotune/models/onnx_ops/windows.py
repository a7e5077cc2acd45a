"""Convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.models.lowering import pooling
from autotune.models.lowering.base import stage
from autotune.models.lowering.convolution import convolution, of_columns, transposed_convolution
from autotune.models.lowering.reduction import mean, reduce
from autotune.models.lowering.windows import Sides, Windows, same_sides
from autotune.models.onnx_ops.table import OnnxNode, Value, less, onnx_op
from schedules import te
from schedules.expr import Expr


def _windows(node: OnnxNode, sizes: Sequence[int], kernel: Sequence[int], ceil: bool = False) -> Windows:
    """The geometry that the attributes of a node state."""
    rank = len(sizes)
    stride = tuple(node.attr("strides", [1] * rank))
    dilation = tuple(node.attr("dilations", [1] * rank))
    auto, kernel = node.attr("auto_pad", "NOTSET"), tuple(kernel)
    if any(len(x) != rank for x in (stride, dilation, kernel)) or any(
        n < 1 for n in (*stride, *dilation, *kernel)
    ):
        raise ValueError(f"kernel, strides and dilations are not one number above 0 for each of {rank} axes")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        sides: Sides = same_sides(sizes, kernel, stride, dilation, auto == "SAME_UPPER")
    elif auto in ("NOTSET", "VALID", ""):
        pads = node.attr("pads", [0] * 2 * rank) if auto != "VALID" else [0] * 2 * rank
        if len(pads) != 2 * rank:
            raise ValueError(f"{len(pads)} pads for {rank} axes; two are needed for each")
        sides = tuple(zip(pads[:rank], pads[rank:], strict=True))
    else:
        raise ValueError(f"auto_pad {auto!r} is unknown")
    return Windows(tuple(sizes), kernel, stride, dilation, sides, ceil)


def _spatial(t: te.Tensor) -> tuple[int, ...]:
    if len(t.shape) < 3:
        raise ValueError(f"{list(t.shape)} has no spatial axes after its batch and channels")
    return t.shape[2:]


def _kernel(node: OnnxNode, w: te.Tensor, spatial: Sequence[int]) -> tuple[int, ...]:
    kernel = w.shape[2:]
    stated = tuple(node.attr("kernel_shape", kernel))
    if stated != kernel or len(kernel) != len(spatial):
        raise ValueError(f"its kernel of {list(w.shape)} does not fit kernel_shape {list(stated)}")
    return kernel


@onnx_op("Conv")
def _conv(node: OnnxNode, x: Value, w: Value, b: Value | None = None) -> te.Tensor:
    t, k = node.tensor(x), node.tensor(w)
    at = _windows(node, _spatial(t), _kernel(node, k, _spatial(t)))
    bias = node.optional(b)
    if bias is not None and bias.shape != k.shape[:1]:
        raise ValueError(f"bias of {list(bias.shape)} for {k.shape[0]} channels")
    return convolution(t, k, bias, at, node.attr("group", 1))


@onnx_op("ConvInteger")
def _conv_integer(
    node: OnnxNode, x: Value, w: Value, x_zero: Value | None = None, w_zero: Value | None = None
) -> te.Tensor:
    t, k = node.tensor(x), node.tensor(w)
    at = _windows(node, _spatial(t), _kernel(node, k, _spatial(t)))
    zx, zw = node.zero_point(x_zero, "x_zero_point"), node.zero_point(w_zero, "w_zero_point")
    return convolution(t, k, None, at, node.attr("group", 1), (less(zx), less(zw)), zx)


@onnx_op("ConvTranspose")
def _conv_transpose(node: OnnxNode, x: Value, w: Value, b: Value | None = None) -> te.Tensor:
    t, k = node.tensor(x), node.tensor(w)
    sizes, kernel = _spatial(t), _kernel(node, k, _spatial(t))
    rank = len(sizes)
    stride, dilation = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    more, pads = node.attr("output_padding", [0] * rank), node.attr("pads", [0] * 2 * rank)
    if (
        any(len(x) != rank for x in (stride, dilation, more))
        or len(pads) != 2 * rank
        or min(*stride, *dilation) < 1
    ):
        raise ValueError(
            f"strides, dilations, output_padding or pads are not one number for each of {rank} axes"
        )
    auto, stated = node.attr("auto_pad", "NOTSET"), node.attr("output_shape")
    before, out = [], []
    for d in range(rank):
        full = (sizes[d] - 1) * stride[d] + more[d] + dilation[d] * (kernel[d] - 1) + 1
        if stated is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
            n = stated[-rank:][d] if stated is not None else sizes[d] * stride[d]
            total = max(0, full - n)
            first = total // 2 if auto == "SAME_UPPER" else total - total // 2
        else:
            first, n = (0, full) if auto == "VALID" else (pads[d], full - pads[d] - pads[d + rank])
        before.append(first)
        out.append(n)
    if any(n < 1 for n in out):
        raise ValueError(f"nothing is left: the result has shape {out}")
    bias = node.optional(b)
    return transposed_convolution(t, k, bias, stride, dilation, before, out, node.attr("group", 1))


# --- pools ------------------------------------------------------------------------------------


def _pool(node: OnnxNode, x: Value) -> tuple[te.Tensor, Windows]:
    """(what is pooled, its windows)."""
    t = node.tensor(x)
    return t, _windows(node, _spatial(t), node.attr("kernel_shape"), bool(node.attr("ceil_mode", 0)))


@onnx_op("MaxPool")
def _max_pool(node: OnnxNode, x: Value) -> list[te.Tensor]:
    t, at = _pool(node, x)
    y = pooling.max_pool(t, at)
    if not node.wants(1):
        return [y]
    place = pooling.max_places(t, y, at, bool(node.attr("storage_order", 0)))
    (channels, size), rest = (t.shape[1], math.prod(t.shape[2:])), len(t.shape) - 2

    def through_all(n: Expr, c: Expr, *at_: Expr) -> Expr:
        """ONNX counts through the whole tensor."""
        return place[(n, c, *at_[:rest])] + te.cast((n * channels + c) * size, "int64")

    return [y, stage(place.shape, through_all, "place")]


@onnx_op("Col2Im")
def _of_columns(node: OnnxNode, x: Value, image: Value, block: Value) -> te.Tensor:
    """Columns back to an image: the sum of the windows over each element."""
    t, sizes, kernel = node.tensor(x), node.ints(image, "image_shape"), node.ints(block, "block_shape")
    return of_columns(t, _windows(node, sizes, kernel))


@onnx_op("AveragePool")
def _average_pool(node: OnnxNode, x: Value) -> te.Tensor:
    t, at = _pool(node, x)
    return pooling.average_pool(t, at, bool(node.attr("count_include_pad", 0)))


@onnx_op("LpPool", since=2)
def _lp_pool(node: OnnxNode, x: Value) -> te.Tensor:
    t, at = _pool(node, x)
    return pooling.lp_pool(t, at, node.attr("p", 2))


def _whole(t: te.Tensor) -> Windows:
    sizes = _spatial(t)
    ones = (1,) * len(sizes)
    return Windows(sizes, sizes, ones, ones, ((0, 0),) * len(sizes))


@onnx_op("GlobalMaxPool")
def _global_max(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    return reduce(t, range(2, len(t.shape)), True, te.max, name="global_max")


@onnx_op("GlobalAveragePool")
def _global_average(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    return mean(t, range(2, len(t.shape)), True)


@onnx_op("GlobalLpPool", since=2)
def _global_lp(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    return pooling.lp_pool(t, _whole(t), node.attr("p", 2))
