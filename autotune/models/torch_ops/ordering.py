"""Sorting, the largest elements, medians, and what is counted between bounds."""

from __future__ import annotations

import math
from typing import Any

from autotune.models.lowering import ordering as o
from autotune.models.lowering.base import UnsupportedForm, positive
from autotune.models.lowering.movement import reshape
from autotune.models.torch_ops.table import Scalar, TorchNode, Value, aten
from schedules import te

Two = list[te.Tensor | None]


def _row(node: TorchNode, x: Value, dim: int) -> tuple[te.Tensor, int]:
    """A tensor and an axis of it that is not too long."""
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    o.afford(t.shape[axis])
    return t, axis


def _shaped(node: TorchNode, *made: te.Tensor) -> Two:
    return [reshape(t, node.shape) for t in made]


@aten("sort.default", "sort.stable", along=True)
def _sort(
    node: TorchNode, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> Two:
    """Equals keep their order, also where that was not asked for."""
    t, axis = _row(node, x, dim)
    return _shaped(node, *o.ordered(t, axis, t.shape[axis], descending))


@aten("argsort.default", "argsort.stable", along=True)
def _argsort(
    node: TorchNode, x: Value, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> te.Tensor:
    t, axis = _row(node, x, dim)
    return reshape(o.ordered(t, axis, t.shape[axis], descending)[1], node.shape)


@aten("topk.default", along=True)
def _topk(
    node: TorchNode, x: Value, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True, **how: bool
) -> Two:
    """In order, also where that was not asked for; of equals the first ones."""
    t, axis = _row(node, x, dim)
    return _shaped(node, *o.ordered(t, axis, int(k), bool(how.get("largest", largest))))


@aten("kthvalue.default", along=True)
def _kth(node: TorchNode, x: Value, k: int, dim: int = -1, keepdim: bool = False) -> Two:
    t, axis = _row(node, x, dim)
    return _shaped(node, *o.ordered(t, axis, 1, False, int(k) - 1))


@aten("median.dim", "nanmedian.dim", along=True)
def _median(node: TorchNode, x: Value, dim: int, keepdim: bool = False) -> Two:
    return _shaped(node, *o.median(*_row(node, x, dim), ignore_nan=node.name == "nanmedian"))


@aten("median.default", "nanmedian.default")
def _median_of_all(node: TorchNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    row, axis = _row(node, reshape(t, (math.prod(t.shape),)), 0)
    return reshape(o.median(row, axis, ignore_nan=node.name == "nanmedian")[0], node.shape)


@aten("bucketize.Tensor", "searchsorted.Tensor")
def _bucket(
    node: TorchNode, a: Value, b: Value, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> te.Tensor:  # fmt: skip
    """The values come first for one of them, the bounds for the other."""
    x, bounds = (a, b) if node.name == "bucketize" else (b, a)
    if sorter is not None:
        raise UnsupportedForm("sorter is not supported: give sorted bounds")
    return o.insertion(node.tensor(bounds), node.tensor(x), right or side == "right", node.dtype)


@aten("histc.default")
def _histc(node: TorchNode, x: Value, bins: int = 100, min: Scalar = 0, max: Scalar = 0) -> te.Tensor:
    if min == max:
        raise UnsupportedForm("its bounds are those of its data: give min and max")
    return o.histogram(node.tensor(x), int(bins), float(min), float(max))
