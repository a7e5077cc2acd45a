"""Operators of ONNX Runtime on quantized tensors that are those on their numbers, quantized again.

Inputs come with a scale and a zero point each, and so does the output
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotune.models.operators.axes import positive
from autotune.models.operators.base import Operand, UnsupportedForm, elementwise, number
from autotune.models.operators.known import Value
from autotune.models.operators.movement import concat, transpose
from autotune.models.operators.node import OnnxNode
from autotune.models.operators.normalization import softmax
from autotune.models.operators.pooling import average_pool
from autotune.models.operators.quantization import dequantized, quantized
from autotune.models.operators.reduction import mean
from autotune.models.operators.table import onnx_op
from autotune.models.operators.windows import onnx_windows, spatial
from schedules import te


def _of_two(fn: Callable[..., Any]) -> Callable[..., te.Tensor]:
    """The row of a function of two elements."""

    def row(
        a: te.Tensor, a_scale: Operand, a_zero: Operand | None, b: te.Tensor, b_scale: Operand,
        b_zero: Operand | None, y_scale: Operand, y_zero: Operand | None = None,
    ) -> te.Tensor:  # fmt: skip
        y = elementwise(fn, dequantized(a, a_scale, a_zero), dequantized(b, b_scale, b_zero))
        return quantized(y, y_scale, y_zero, a.dtype)

    return row


onnx_op("com.microsoft::QLinearAdd")(_of_two(lambda a, b: a + b))
onnx_op("com.microsoft::QLinearMul")(_of_two(lambda a, b: a * b))


@onnx_op("com.microsoft::QLinearSigmoid")
def _sigmoid(
    x: te.Tensor, x_scale: Operand, x_zero: Operand | None, y_scale: Operand, y_zero: Operand | None = None
) -> te.Tensor:
    y = elementwise(te.sigmoid, dequantized(x, x_scale, x_zero))
    return quantized(y, y_scale, y_zero, x.dtype)


@onnx_op("com.microsoft::QLinearLeakyRelu")
def _leaky_relu(
    x: te.Tensor, x_scale: Operand, x_zero: Operand | None, y_scale: Operand, y_zero: Operand | None = None,
    *, alpha: float = 0.01,
) -> te.Tensor:  # fmt: skip
    slope = number(alpha, "float32")
    y = elementwise(lambda v: te.select(v >= 0.0, v, v * slope), dequantized(x, x_scale, x_zero))
    return quantized(y, y_scale, y_zero, x.dtype)


@onnx_op("com.microsoft::QLinearSoftmax")
def _softmax(
    x: te.Tensor, x_scale: Operand, x_zero: Operand | None, y_scale: Operand, y_zero: Operand | None = None,
    *, axis: int = -1, opset: int = 13,
) -> te.Tensor:  # fmt: skip
    """``opset``: the version of Softmax that is meant: before 13 it is over all axes from ``axis`` on."""
    d = positive(axis, len(x.shape))
    if opset < 13 and any(n > 1 for n in x.shape[d + 1 :]):
        raise UnsupportedForm("a softmax over several axes is not supported")
    return quantized(softmax(dequantized(x, x_scale, x_zero), d), y_scale, y_zero, x.dtype)


@onnx_op("com.microsoft::QLinearConcat")
def _concat(
    node: OnnxNode, y_scale: Operand, y_zero: Operand, *xs: Value, axis: int
) -> te.Tensor:  # fmt: skip
    """``xs``: a tensor, its scale and its zero point, for each that is joined."""
    if len(xs) % 3:
        raise ValueError(f"{len(xs)} inputs after the first two are not three for each tensor")
    parts = [
        dequantized(node.tensor(xs[n]), node.operand(xs[n + 1]), node.operand(xs[n + 2]))
        for n in range(0, len(xs), 3)
    ]
    return quantized(concat(parts, positive(axis, len(parts[0].shape))), y_scale, y_zero)


def _channels_first(x: te.Tensor, last: bool) -> te.Tensor:
    rank = len(x.shape)
    return transpose(x, (0, rank - 1, *range(1, rank - 1))) if last else x


def _channels_back(y: te.Tensor, last: bool) -> te.Tensor:
    return transpose(y, (0, *range(2, len(y.shape)), 1)) if last else y


@onnx_op("com.microsoft::QLinearGlobalAveragePool")
def _global_average(
    x: te.Tensor, x_scale: Operand, x_zero: Operand | None, y_scale: Operand, y_zero: Operand | None = None,
    *, channels_last: bool = False,
) -> te.Tensor:  # fmt: skip
    v = dequantized(x, x_scale, x_zero)
    axes = range(1, len(x.shape) - 1) if channels_last else range(2, len(x.shape))
    return quantized(mean(v, axes, True), y_scale, y_zero, x.dtype)


@onnx_op("com.microsoft::QLinearAveragePool")
def _average(
    node: OnnxNode, x: te.Tensor, x_scale: Operand, x_zero: Operand | None, y_scale: Operand,
    y_zero: Operand | None = None, *, kernel_shape: Sequence[int], ceil_mode: bool = False,
    count_include_pad: bool = False, channels_last: bool = False,
) -> te.Tensor:  # fmt: skip
    v = _channels_first(dequantized(x, x_scale, x_zero), channels_last)
    at = onnx_windows(node, spatial(v), kernel_shape, ceil_mode)
    y = _channels_back(average_pool(v, at, count_include_pad), channels_last)
    return quantized(y, y_scale, y_zero, x.dtype)


@onnx_op("com.microsoft::QLinearWhere")
def _where(
    condition: te.Tensor, x: te.Tensor, x_scale: Operand, x_zero: Operand | None, y: te.Tensor,
    y_scale: Operand, y_zero: Operand | None, z_scale: Operand, z_zero: Operand | None = None,
) -> te.Tensor:  # fmt: skip
    a, b = dequantized(x, x_scale, x_zero), dequantized(y, y_scale, y_zero)
    z = elementwise(lambda c, v, w: te.select(te.not_equal(c, 0), v, w), condition, a, b, dtype="float32")
    return quantized(z, z_scale, z_zero, x.dtype)
