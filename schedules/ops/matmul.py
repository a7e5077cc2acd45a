"""Matrix products: matmul, batch_matmul, matmul_bias_relu, matmul_bias_gelu."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from schedules import te
from schedules.dtypes import COMPUTED, FLOATS
from schedules.expr import Expr
from schedules.ops.axes import named
from schedules.ops.base import Array, Operator, Param, Params, Types, flag, stored, wide


def _product(p: Params, types: Types) -> list[te.Tensor]:
    m, n, k = p["m"], p["n"], p["k"]
    ta, tb = p["transpose_a"], p["transpose_b"]
    lead = (p["b"],) if "b" in p else ()
    a = te.placeholder((*lead, k, m) if ta else (*lead, m, k), types.input, "a")
    b = te.placeholder((*lead, n, k) if tb else (*lead, k, n), types.input, "b")
    r = te.reduce_axis(k, "k")

    def value(*axes: Expr) -> te.Reduction:
        *z, i, j = axes
        x = a[*z, r, i] if ta else a[*z, i, r]
        y = b[*z, j, r] if tb else b[*z, r, j]
        return te.sum(x * y, axis=r, dtype=types.accumulator)

    return [a, b, te.compute((*lead, m, n), named("zij" if lead else "ij", value), "c")]


def _stored_product(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    a, b, c = _product(p, types)
    return [a, b, stored(c, types.output)]


def _with_bias(p: Params, types: Types, name: str, fn: Callable[[Expr], Expr]) -> list[te.Tensor]:
    """A product to whose columns a bias is added, and a function of that."""
    a, b, c = _product(p, types)
    bias = te.placeholder((p["n"],), types.input, "bias")
    d = te.compute(c.shape, lambda i, j: c[i, j] + bias[j], "bias_add")
    return [a, b, bias, te.compute(c.shape, lambda i, j: te.cast(fn(d[i, j]), types.output), name)]


def _matmul_bias_relu(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    return _with_bias(p, types, "relu", lambda x: te.maximum(x, 0))


def _matmul_bias_gelu(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
    return _with_bias(p, types, "gelu", lambda x: 0.5 * x * (1.0 + te.erf(x * math.sqrt(0.5))))


def _product_reference(p: Params, inputs: Sequence[Array]) -> Array:
    a, b = wide(inputs[0]), wide(inputs[1])
    a = np.swapaxes(a, -1, -2) if p["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if p["transpose_b"] else b
    return np.asarray(a @ b)


def _reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [_product_reference(p, inputs).astype(types.output)]


def _bias_relu_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    return [np.maximum(_product_reference(p, inputs) + wide(inputs[2]), 0).astype(types.output)]


def _bias_gelu_reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
    x = _product_reference(p, inputs) + wide(inputs[2])
    return [(0.5 * x * (1 + _erf(x * math.sqrt(0.5)))).astype(types.output)]


def _erf(x: Array) -> Array:
    """math.erf of every element."""
    return np.fromiter(map(math.erf, x.flat), np.float64, x.size).reshape(x.shape)


def _flops(p: Params) -> int:
    return int(2 * p.get("b", 1) * p["m"] * p["n"] * p["k"])


# Parameters that operators of this file share.
_MNK = (
    Param("m", "rows of the result"),
    Param("n", "columns of the result"),
    Param("k", "the summed extent"),
)
_TRANSPOSE = (
    flag("transpose_a", "1 when a is stored (k, m)"),
    flag("transpose_b", "1 when b is stored (n, k)"),
)

MATMUL = Operator(
    "matmul",
    "a(m,k), b(k,n) → c(m,n); stored as (k,m), (n,k) with transpose_a=1, transpose_b=1; m=1 or n=1: a vector",
    _MNK + _TRANSPOSE,
    _stored_product,
    _reference,
    _flops,
    retyped=True,
    weights=("b",),
)
BATCH_MATMUL = Operator(
    "batch_matmul",
    "a(b,m,k), b(b,k,n) → c(b,m,n); stored as (b,k,m), (b,n,k) with transpose_a=1, transpose_b=1",
    (Param("b", "batch", example=8), *_MNK, *_TRANSPOSE),
    _stored_product,
    _reference,
    _flops,
    retyped=True,
    weights=("b",),
)
MATMUL_BIAS_RELU = Operator(
    "matmul_bias_relu",
    "a(m,k), b(k,n), bias(n) → max(a·b + bias, 0)(m,n)",
    _MNK + _TRANSPOSE,
    _matmul_bias_relu,
    _bias_relu_reference,
    _flops,
    dtypes=COMPUTED,
    weights=("b",),
)
MATMUL_BIAS_GELU = Operator(
    "matmul_bias_gelu",
    "a(m,k), b(k,n), bias(n) → gelu(a·b + bias)(m,n), gelu(x) = x/2 · (1 + erf(x/√2))",
    _MNK + _TRANSPOSE,
    _matmul_bias_gelu,
    _bias_gelu_reference,
    _flops,
    dtypes=FLOATS,
    weights=("b",),
)
