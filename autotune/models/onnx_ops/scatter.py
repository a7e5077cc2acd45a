"""Writes to places that are data."""

from __future__ import annotations

import math

from autotune.models.lowering import scatter as s
from autotune.models.lowering.base import UnsupportedForm, positive, stage
from autotune.models.lowering.movement import pad, reshape
from autotune.models.onnx_ops.indexing import integer_ids
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te
from schedules.expr import Expr


def _fold(node: OnnxNode, dtype: str) -> s.Fold:
    """Of several updates of one place ONNX lets any stay without a reduction."""
    name = node.attr("reduction", "none")
    if name == "none":
        return s.LAST
    if name not in ("add", "mul", "max", "min"):
        raise ValueError(f"reduction {name!r} is unknown")
    if dtype == "bool":
        raise UnsupportedForm("reductions of bool are not supported by it")
    return s.Fold(name)


@onnx_op("ScatterElements", "Scatter")
def _scatter_elements(node: OnnxNode, x: Value, ids: Value, updates: Value) -> te.Tensor:
    t, i = node.tensor(x), integer_ids(node, ids)
    axis = positive(node.attr("axis", 0), len(t.shape))
    if updates.shape != i.shape:
        raise ValueError(f"updates of {list(updates.shape)} at indices of {list(i.shape)}")
    s.afford(math.prod(i.shape) // i.shape[axis] * t.shape[axis], i.shape[axis])
    return s.scatter_elements(t, i, node.tensor(updates), axis, _fold(node, t.dtype))


@onnx_op("ScatterND")
def _scatter_nd(node: OnnxNode, x: Value, ids: Value, updates: Value) -> te.Tensor:
    t, i = node.tensor(x), integer_ids(node, ids)
    s.afford(math.prod(t.shape), math.prod(i.shape[:-1]))
    return s.scatter_nd(t, i, node.tensor(updates), _fold(node, t.dtype))


@onnx_op("TensorScatter")
def _tensor_scatter(node: OnnxNode, past: Value, update: Value, first: Value | None = None) -> te.Tensor:
    """Writes a part of a sequence into a cache, from a place on that each batch has."""
    t, u = node.tensor(past), node.tensor(update)
    axis = positive(node.attr("axis", -2), len(t.shape))
    begin = None if first is None else integer_ids(node, first)
    circular, size, count = node.attr("mode", "linear") == "circular", t.shape[axis], u.shape[axis]

    def value(*at: Expr) -> Expr:
        start = te.const(0, "int64") if begin is None else begin[at[0]]
        i = te.cast(at[axis], start_dtype) - start
        if circular:
            i = i % size
        own = u[(*at[:axis], i, *at[axis + 1 :])]
        return te.select(te.all(i >= 0, i < count), own, t[at])

    start_dtype = "int64" if begin is None else begin.dtype
    return stage(t.shape, value, "scatter")


@onnx_op("MaxUnpool")
def _max_unpool(node: OnnxNode, x: Value, ids: Value, shape: Value | None = None) -> te.Tensor:
    """Elements go to the places that a pool took them from, which count through the whole output."""
    t, i = node.tensor(x), integer_ids(node, ids)
    rank = len(t.shape) - 2
    kernel = node.attr("kernel_shape")
    strides, pads = node.attr("strides", [1] * rank), node.attr("pads", [0] * 2 * rank)
    least = [
        (n - 1) * by - lo - hi + k
        for n, k, by, lo, hi in zip(t.shape[2:], kernel, strides, pads[:rank], pads[rank:], strict=True)
    ]
    inferred = (*t.shape[:2], *least)
    out = inferred if shape is None else tuple(node.ints(shape, "output_shape"))
    if len(out) != len(t.shape) or any(n < 1 for n in out):
        raise ValueError(f"output_shape {list(out)} for data of {list(t.shape)}")
    size, count = math.prod(inferred), math.prod(t.shape)
    s.afford(size, count)
    zeros = stage((size,), lambda *at: te.const(0, t.dtype), "zeros")
    flat = s.scatter_elements(zeros, reshape(i, (count,)), reshape(t, (count,)), 0)
    made = reshape(flat, inferred)
    if out == inferred:
        return made
    # The places were counted in the smaller output, which stands at the beginning of the larger one.
    if any(n < m for n, m in zip(out, inferred, strict=True)):
        raise UnsupportedForm(f"output_shape {list(out)} is smaller than {list(inferred)}")
    return pad(made, [(0, n - m) for n, m in zip(out, inferred, strict=True)], fill=te.const(0, t.dtype))
