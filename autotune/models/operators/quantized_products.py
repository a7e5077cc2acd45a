"""Products and convolutions of quantized tensors: of integers less their zero points, as int32.

ONNX has them in its own domain, and ONNX Runtime in `com.microsoft`
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md). What is summed is stated as it
is meant; the rewrite `schedules.graph.integers` takes the zero points out of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.models.operators.axes import reshape
from autotune.models.operators.base import Operand, UnsupportedForm, elementwise, read, stage
from autotune.models.operators.convolution import convolution, kernel_extents
from autotune.models.operators.matmul import matmul
from autotune.models.operators.movement import transpose
from autotune.models.operators.node import OnnxNode
from autotune.models.operators.quantization import centered, dynamic_quantized, product, requantized
from autotune.models.operators.table import onnx_op
from autotune.models.operators.windows import onnx_windows, spatial
from schedules import te
from schedules.expr import Expr


def _rows(x: Operand, t: te.Tensor) -> Operand:
    """A number a row of matrices, with an axis for their columns; another operand itself."""
    a_row = len(x.shape) == 1 and x.shape[0] > 1 and len(t.shape) > 1
    return reshape(x, (x.shape[0], 1)) if a_row and isinstance(x, te.Tensor) else x


def _dot(a: te.Tensor, a_zero: Operand | None, b: te.Tensor, b_zero: Operand | None) -> te.Tensor:
    """The product of integers. Zero points are one number, or one a row of ``a``, a column of ``b``."""
    return matmul(centered(a, a_zero, -2 if len(a.shape) > 1 else 0), centered(b, b_zero, -1))


@onnx_op("MatMulInteger")
def _matmul_integer(
    a: te.Tensor, b: te.Tensor, a_zero: Operand | None = None, b_zero: Operand | None = None
) -> te.Tensor:
    return _dot(a, a_zero, b, b_zero)


@onnx_op("QLinearMatMul")
def _qlinear_matmul(
    a: te.Tensor, a_scale: Operand, a_zero: Operand, b: te.Tensor, b_scale: Operand, b_zero: Operand,
    y_scale: Operand, y_zero: Operand,
) -> te.Tensor:  # fmt: skip
    """A product of int32, then requantized."""
    return requantized(_dot(a, a_zero, b, b_zero), [_rows(a_scale, a), b_scale], y_scale, y_zero)


@onnx_op("com.microsoft::MatMulIntegerToFloat")
def _matmul_to_float(
    a: te.Tensor, b: te.Tensor, a_scale: Operand, b_scale: Operand, a_zero: Operand | None = None,
    b_zero: Operand | None = None, bias: Operand | None = None,
) -> te.Tensor:  # fmt: skip
    """A product of int32, as float32, times the scales."""
    return _scaled(_dot(a, a_zero, b, b_zero), [_rows(a_scale, a), b_scale], bias)


@onnx_op("com.microsoft::DynamicQuantizeMatMul")
def _dynamic_matmul(
    a: te.Tensor, b: te.Tensor, b_scale: Operand, b_zero: Operand | None = None, bias: Operand | None = None
) -> te.Tensor:
    """A product of what `DynamicQuantizeLinear` makes of the left side."""
    q, scale, zero = dynamic_quantized(a)
    return _scaled(_dot(q, zero, b, b_zero), [scale, b_scale], bias)


def _scaled(total: te.Tensor, factors: Sequence[Operand], bias: Operand | None = None) -> te.Tensor:
    by = product(factors)

    def value(*at: Expr) -> Expr:
        v = te.cast(total[at], "float32") * read(by, at)
        return v if bias is None else v + read(bias, at)

    return stage(total.shape, value, "scaled")


@onnx_op("com.microsoft::QGemm")
def _qgemm(
    a: te.Tensor, a_scale: Operand, a_zero: Operand, b: te.Tensor, b_scale: Operand, b_zero: Operand,
    c: Operand | None = None, y_scale: Operand | None = None, y_zero: Operand | None = None, *,
    alpha: float = 1.0, transA: bool = False, transB: bool = False,
) -> te.Tensor:  # fmt: skip
    """alpha · (A · B + C), C of int32; requantized, or as float32 where no scale is given."""
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"{list(a.shape)} and {list(b.shape)} are not both matrices")
    left, right = centered(a, a_zero), centered(b, b_zero, 0 if transB else 1)
    total = matmul(transpose(left) if transA else left, transpose(right) if transB else right)
    if c is not None:
        total = elementwise(lambda v, w: v + w, total, c, name="bias_add")
    factors = [a_scale, b_scale, *([] if alpha == 1 else [np.asarray(alpha, np.float32)])]
    return _scaled(total, factors) if y_scale is None else requantized(total, factors, y_scale, y_zero)


@onnx_op("ConvInteger")
def _conv_integer(
    node: OnnxNode, x: te.Tensor, w: te.Tensor, x_zero: Operand | None = None, w_zero: Operand | None = None,
    *, group: int = 1, kernel_shape: Sequence[int] | None = None,
) -> te.Tensor:  # fmt: skip
    sizes = spatial(x)
    at = onnx_windows(node, sizes, kernel_extents(w, sizes, kernel_shape))
    return convolution(centered(x, x_zero), centered(w, w_zero), None, at, group)


@onnx_op("QLinearConv", "com.microsoft::QLinearConv")
def _qlinear_conv(
    node: OnnxNode, x: te.Tensor, x_scale: Operand, x_zero: Operand, w: te.Tensor, w_scale: Operand,
    w_zero: Operand, y_scale: Operand, y_zero: Operand, bias: te.Tensor | None = None, *, group: int = 1,
    kernel_shape: Sequence[int] | None = None, channels_last: bool = False,
) -> te.Tensor:  # fmt: skip
    """A convolution of int32 with a bias of int32, then requantized. Scales of weights are one, or one a
    channel of the result."""
    if channels_last:
        raise UnsupportedForm("channels last are not supported by it")
    sizes = spatial(x)
    at = onnx_windows(node, sizes, kernel_extents(w, sizes, kernel_shape))
    total = convolution(centered(x, x_zero), centered(w, w_zero), bias, at, group)
    if isinstance(w_scale, te.Tensor) and len(w_scale.shape) == 1:
        w_scale = reshape(w_scale, (w_scale.shape[0], *[1] * len(sizes)))
    return requantized(total, [x_scale, w_scale], y_scale, y_zero)
