"""Matrix products."""

from __future__ import annotations

from autotune.models.lowering.base import UnsupportedForm, cast
from autotune.models.lowering.matmul import einsum, gemm, matmul
from autotune.models.onnx_ops.table import OnnxNode, Value, less, onnx_op
from schedules import te


@onnx_op("MatMul")
def _matmul(node: OnnxNode, a: Value, b: Value) -> te.Tensor:
    x, y = node.tensor(a), node.tensor(b)
    return cast(matmul(x, y), x.dtype)


@onnx_op("Gemm")
def _gemm(node: OnnxNode, a: Value, b: Value, c: Value | None = None) -> te.Tensor:
    if node.version < 7 and node.attr("broadcast", 0):
        raise UnsupportedForm(
            f"version {node.version} broadcasts by attributes; convert the model to opset 13"
        )
    x, y = node.tensor(a), node.tensor(b)
    if len(x.shape) != 2 or len(y.shape) != 2:
        raise ValueError(f"{list(x.shape)} and {list(y.shape)} are not both matrices")
    bias = None if c is None else node.operand(c)
    how = (
        node.attr("alpha", 1.0),
        node.attr("beta", 1.0),
        bool(node.attr("transA", 0)),
        bool(node.attr("transB", 0)),
    )
    return gemm(x, y, bias, *how)


@onnx_op("Einsum")
def _einsum(node: OnnxNode, *xs: Value) -> te.Tensor:
    return einsum([node.tensor(x) for x in xs], node.attr("equation"))


@onnx_op("MatMulInteger")
def _matmul_integer(
    node: OnnxNode, a: Value, b: Value, a_zero: Value | None = None, b_zero: Value | None = None
) -> te.Tensor:
    za, zb = node.zero_point(a_zero, "a_zero_point"), node.zero_point(b_zero, "b_zero_point")
    return matmul(node.tensor(a), node.tensor(b), (less(za), less(zb)))
