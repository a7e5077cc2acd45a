"""Operators whose indices are data."""

from __future__ import annotations

import math

import numpy as np

from autotune.models.lowering import indexing as ix
from autotune.models.lowering import movement as m
from autotune.models.lowering.base import UnsupportedForm, positive
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te


def integer_ids(node: OnnxNode, ids: Value) -> te.Tensor:
    t = node.tensor(ids)
    if t.dtype not in ("int32", "int64"):
        raise ValueError(f"indices are {t.dtype}, not int32 or int64")
    return t


@onnx_op("Gather")
def _gather(node: OnnxNode, x: Value, ids: Value) -> te.Tensor:
    """Indices that are known and evenly apart are a slice."""
    t = node.tensor(x)
    axis = positive(node.attr("axis", 0), len(t.shape))
    return _picked(node, t, ids, axis)


@onnx_op("Compress")
def _compress(node: OnnxNode, x: Value, mask: Value) -> te.Tensor:
    """The slices of an axis, or the elements, where a known mask is true."""
    t = node.tensor(x)
    axis = node.attributes.get("axis")
    if axis is None:
        t, axis = m.reshape(t, (math.prod(t.shape),)), 0
    axis = positive(axis, len(t.shape))
    kept = np.flatnonzero(node.known(mask, "condition"))
    if not kept.size:
        raise UnsupportedForm("its condition takes no element")
    return _picked(node, t, kept, axis)


def _picked(node: OnnxNode, t: te.Tensor, ids: Value, axis: int) -> te.Tensor:
    if isinstance(ids, np.ndarray) and ids.size:
        size = t.shape[axis]
        flat = np.where(ids < 0, ids + size, ids).reshape(-1)
        if flat.min() < 0 or flat.max() >= size:
            raise ValueError(f"an index is outside {-size}..{size - 1}")
        if (part := ix.evenly_apart(t, flat, axis)) is not None:
            return m.reshape(part, (*t.shape[:axis], *ids.shape, *t.shape[axis + 1 :]))
    return ix.gather(t, integer_ids(node, ids), axis)


@onnx_op("GatherElements")
def _gather_elements(node: OnnxNode, x: Value, ids: Value) -> te.Tensor:
    t = node.tensor(x)
    return ix.gather_elements(t, integer_ids(node, ids), positive(node.attr("axis", 0), len(t.shape)))


@onnx_op("GatherND")
def _gather_nd(node: OnnxNode, x: Value, ids: Value) -> te.Tensor:
    return ix.gather_nd(node.tensor(x), integer_ids(node, ids), node.attr("batch_dims", 0))


@onnx_op("OneHot")
def _one_hot(node: OnnxNode, ids: Value, depth: Value, values: Value) -> te.Tensor:
    t = node.tensor(ids)
    n = int(node.known(depth, "depth").item())
    if n < 1:
        raise ValueError(f"depth {n} is below 1")
    if values.shape != (2,):
        raise ValueError(f"its values are of shape {list(values.shape)}, not two numbers")
    if isinstance(values, np.ndarray):
        off, on = values[:1].reshape(()), values[1:].reshape(())
        return ix.one_hot(t, n, positive(node.attr("axis", -1), len(t.shape) + 1), off, on, values.dtype.name)
    two = [m.reshape(m.part(values, 0, i, 1), ()) for i in range(2)]
    return ix.one_hot(t, n, positive(node.attr("axis", -1), len(t.shape) + 1), two[0], two[1], values.dtype)


@onnx_op("ReverseSequence")
def _reverse_sequence(node: OnnxNode, x: Value, lengths: Value) -> te.Tensor:
    t, n = node.tensor(x), integer_ids(node, lengths)
    batch, time = (positive(node.attr(a), len(t.shape)) for a in ("batch_axis", "time_axis"))
    if batch == time or n.shape != (t.shape[batch],):
        raise ValueError(f"lengths of {list(n.shape)} for batch axis {batch} and time axis {time}")
    return ix.reverse_sequence(t, n, batch, time)


@onnx_op("NonMaxSuppression")
def _unknown(node: OnnxNode, *xs: Value) -> te.Tensor:
    raise UnsupportedForm("the shape of its output depends on data")
