"""Matrix products and attention."""

from __future__ import annotations

from typing import Any

from autotune.models.lowering import matmul as mm
from autotune.models.lowering.attention import attention
from autotune.models.lowering.base import UnsupportedForm, cast
from autotune.models.lowering.movement import reshape, transpose
from autotune.models.torch_ops.table import Scalar, TorchNode, Value, aten
from schedules import te
from schedules.dtypes import is_float


@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "linalg_matmul.default")
def _matmul(node: TorchNode, a: Value, b: Value) -> te.Tensor:
    x = node.tensor(a)
    return cast(mm.matmul(x, node.tensor(b)), x.dtype)


@aten("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(node: TorchNode, c: Value, a: Value, b: Value, beta: Scalar = 1, alpha: Scalar = 1) -> te.Tensor:
    x, y = node.tensor(a), node.tensor(b)
    bias = None if beta == 0 else node.operand(c)
    by = float if is_float(node.dtype) else int  # as torch makes numbers of integers
    return mm.scaled(mm.matmul(x, y), bias, by(alpha), by(beta), x.dtype)


@aten("addbmm.default")
def _addbmm(node: TorchNode, c: Value, a: Value, b: Value, beta: Scalar = 1, alpha: Scalar = 1) -> te.Tensor:
    """The sum of the products of a batch is one product."""
    x, y = node.tensor(a), node.tensor(b)
    n, rows, inner = x.shape
    x = reshape(transpose(x, (1, 0, 2)), (rows, n * inner))
    return _addmm(node, c, x, reshape(y, (n * inner, y.shape[2])), beta, alpha)  # type: ignore[return-value]


@aten("_int_mm.default")
def _int_matmul(node: TorchNode, a: Value, b: Value) -> te.Tensor:
    """Of int8, as int32."""
    return cast(mm.matmul(node.tensor(a), node.tensor(b)), node.dtype)


@aten("linear.default")
def _linear(node: TorchNode, x: Value, w: Value, bias: Value | None = None) -> te.Tensor:
    return mm.linear(node.tensor(x), node.tensor(w), node.optional(bias))


@aten("einsum.default")
def _einsum(node: TorchNode, equation: str, xs: list[Value], path: Any = None) -> te.Tensor:
    return mm.einsum([node.tensor(x) for x in xs], equation)


@aten("scaled_dot_product_attention.default")
def _attention(
    node: TorchNode, q: Value, k: Value, v: Value, mask: Value | None = None, dropout: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> te.Tensor:  # fmt: skip
    if dropout > 0:
        raise UnsupportedForm("its dropout makes random numbers: export module.eval(), or give dropout_p=0")
    query, key, value = node.floats(q), node.floats(k), node.floats(v)
    by = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return attention(query, key, value, node.optional(mask), is_causal, by, enable_gqa)


@aten("bilinear.default")
def _bilinear(node: TorchNode, a: Value, b: Value, w: Value, bias: Value | None = None) -> te.Tensor:
    return mm.bilinear(node.floats(a), node.floats(b), node.tensor(w), node.optional(bias))


@aten("_cdist_forward.default", "cdist.default")
def _cdist(node: TorchNode, a: Value, b: Value, p: float = 2.0, mode: int | None = None) -> te.Tensor:
    if p < 0:
        raise UnsupportedForm(f"p={p} is not supported")
    return mm.distances(node.floats(a), node.floats(b), float(p))


@aten("_grouped_mm.default", "transformers::grouped_mm_fallback.default")
def _grouped(
    node: TorchNode,
    x: Value,
    w: Value,
    ends: Value | None = None,
    bias: Value | None = None,
    dtype: Any = None,
) -> te.Tensor:
    """Rows in groups, each with a matrix of its own: mixtures of experts."""
    t, m = node.floats(x), node.tensor(w)
    if bias is not None or len(t.shape) != 2 or len(m.shape) != 3 or ends is None:
        raise UnsupportedForm("only rows of one matrix, times a matrix for each group, are supported")
    return cast(mm.grouped(t, m, node.tensor(ends)), node.dtype)
