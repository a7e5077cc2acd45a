"""Writes to places that are data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.models.lowering import scatter as s
from autotune.models.lowering.base import UnsupportedForm, cast, positive, stage
from autotune.models.lowering.movement import expand, reshape
from autotune.models.torch_ops.elementwise import where
from autotune.models.torch_ops.indexing import integer_ids
from autotune.models.torch_ops.table import Scalar, TorchNode, Value, aten
from schedules import te
from schedules.dtypes import DTYPES, computed

# {how torch calls a fold: its kind}.
_KINDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "mean": "mean", "amax": "max"}
_KINDS["amin"] = "min"


def _fold(node: TorchNode, name: str, own: bool = True) -> s.Fold:
    if node.dtype == "bool":
        raise UnsupportedForm("bool is not supported by it")
    if name == "mean" and DTYPES[node.dtype].kind != "float":
        raise UnsupportedForm("means of integers have no expression")
    return s.Fold(_KINDS[name], own)


def _scattered(
    node: TorchNode, x: Value, dim: int, ids: Value, src: Value | Scalar, fold: s.Fold
) -> te.Tensor:
    """``src`` may be larger than the indices, and may be one number."""
    t, i = node.tensor(x), integer_ids(node, ids)
    if not t.shape:
        t, i = reshape(t, (1,)), reshape(i, (1,))
    if len(i.shape) != len(t.shape):  # torch takes one number for a row of one
        i = reshape(i, (1,) * len(t.shape))
    axis = positive(dim, len(t.shape))
    s.afford(math.prod(i.shape) // i.shape[axis] * t.shape[axis], i.shape[axis])
    if isinstance(src, (bool, int, float)):
        return reshape(s.scatter_elements(t, i, node.number(src), axis, fold), node.shape)
    written = node.cast(src)
    if len(written.shape) != len(t.shape):
        written = reshape(written, (1,) * len(t.shape))
    return reshape(s.scatter_elements(t, i, written, axis, fold), node.shape)


@aten("scatter.src", "scatter.value")
def _scatter(node: TorchNode, x: Value, dim: int, ids: Value, src: Value | Scalar) -> te.Tensor:
    """Of several updates of one place the last one stays."""
    return _scattered(node, x, dim, ids, src, s.LAST)


@aten("scatter.reduce", "scatter.value_reduce")
def _scatter_folded(
    node: TorchNode, x: Value, dim: int, ids: Value, src: Value | Scalar, *, reduce: str
) -> te.Tensor:
    return _scattered(node, x, dim, ids, src, _fold(node, reduce))


@aten("scatter_add.default")
def _scatter_add(node: TorchNode, x: Value, dim: int, ids: Value, src: Value) -> te.Tensor:
    return _scattered(node, x, dim, ids, src, _fold(node, "sum"))


@aten("scatter_reduce.two")
def _scatter_reduce(
    node: TorchNode, x: Value, dim: int, ids: Value, src: Value, reduce: str, *, include_self: bool = True
) -> te.Tensor:
    return _scattered(node, x, dim, ids, src, _fold(node, reduce, include_self))


@aten("index_add.default", "index_copy.default", "index_reduce.default")
def _index_add(
    node: TorchNode, x: Value, dim: int, ids: Value, src: Value, reduce: str = "", *, alpha: Scalar = 1,
    include_self: bool = True,
) -> te.Tensor:  # fmt: skip
    """Slices along an axis."""
    t, i, written = node.tensor(x), integer_ids(node, ids), node.cast(src)
    if not t.shape:
        t, written = reshape(t, (1,)), reshape(written, (1,))
    axis, i = positive(dim, len(t.shape)), reshape(i, (math.prod(i.shape),))
    s.afford(math.prod(t.shape), i.shape[0])
    if alpha != 1:
        by = te.const(alpha, computed(written.dtype))
        unscaled = written
        written = stage(unscaled.shape, lambda *at: te.cast(unscaled[at] * by, unscaled.dtype), "scaled")
    if node.name == "index_copy":
        fold = s.LAST
    else:
        fold = _fold(node, "sum" if node.name == "index_add" else reduce, include_self)
    return reshape(s.scatter_slices(t, [(axis, i)], written, i.shape, axis, fold), node.shape)


@aten("index_put.default", "_unsafe_index_put.default")
def _index_put(
    node: TorchNode, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> te.Tensor:
    """Indices of bool are a mask, under which all elements get one value."""
    t, given = node.tensor(x), {d: i for d, i in enumerate(indices) if i is not None}
    if any(i.dtype in ("bool", "uint8") for i in given.values()):
        return _masked(node, t, given, values, accumulate)
    tensors = [(d, integer_ids(node, i)) for d, i in given.items()]
    outer = np.broadcast_shapes(*(i.shape for _, i in tensors))
    where = [d for d, _ in tensors]
    first = where[0] if where[-1] - where[0] == len(where) - 1 else 0
    s.afford(math.prod(t.shape), math.prod(outer))
    fold = _fold(node, "sum") if accumulate else s.LAST
    return s.scatter_slices(t, tensors, node.cast(values), outer, first, fold)


def _masked(
    node: TorchNode, t: te.Tensor, given: dict[int, Value], values: Value, accumulate: bool
) -> te.Tensor:
    first = min(given)
    if len(given) > 1 or math.prod(values.shape) != 1:
        raise UnsupportedForm("how many elements a mask takes depends on data: write one value under a mask")
    mask = node.cast(given[first], "bool")
    rest = len(t.shape) - first - len(mask.shape)
    under = expand(reshape(mask, (*[1] * first, *mask.shape, *[1] * rest)), t.shape)
    value: Any = reshape(node.cast(values), ())
    if accumulate:
        if node.dtype == "bool":
            raise UnsupportedForm("bool is not supported by it")
        one = value
        value = stage(t.shape, lambda *at: te.cast(t[at] + one[()], t.dtype), "sum")
    return where(node, under, value, t)  # type: ignore[return-value]


@aten("masked_scatter.default")
def _masked_scatter(node: TorchNode, x: Value, mask: Value, src: Value) -> te.Tensor:
    """The elements of ``src``, in order, where the mask is set."""
    t = expand(node.tensor(x), node.shape)
    return s.masked_scatter(t, expand(node.cast(mask, "bool"), node.shape), node.cast(src))


@aten("put.default")
def _put(node: TorchNode, x: Value, ids: Value, src: Value, accumulate: bool = False) -> te.Tensor:
    """Places count through all elements."""
    t, i = node.tensor(x), integer_ids(node, ids)
    size, count = math.prod(t.shape), math.prod(i.shape)
    s.afford(size, count)
    fold = _fold(node, "sum") if accumulate else s.LAST
    written = reshape(node.cast(src), (count,))
    flat = s.scatter_elements(reshape(t, (size,)), reshape(i, (count,)), written, 0, fold)
    return reshape(flat, node.shape)


@aten("max_unpool2d.default", "max_unpool3d.default")
def _max_unpool(node: TorchNode, x: Value, ids: Value, *how: Any) -> te.Tensor:
    """Elements go to the places that a pool took them from, all else is 0."""
    rank = int(node.name[-2])
    t, i = node.tensor(x), integer_ids(node, ids)
    front = math.prod(node.shape[:-rank])
    size, count = math.prod(node.shape[-rank:]), math.prod(t.shape[-rank:])
    s.afford(front * size, count)
    zeros = stage((front, size), lambda *at: te.const(0, t.dtype), "zeros")
    out = s.scatter_elements(zeros, reshape(i, (front, count)), reshape(t, (front, count)), 1)
    return cast(reshape(out, node.shape), node.dtype)
