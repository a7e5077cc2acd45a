"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autotune.models.lowering import reduction as r
from autotune.models.lowering.base import cast, positive, positives
from autotune.models.lowering.movement import reshape
from autotune.models.lowering.normalization import variance
from autotune.models.torch_ops.table import Node, UnsupportedForm, Value, aten
from schedules import te

# Longest axis of a cumulative sum of exponentials: its work grows with the square.
LONGEST = 1024
_FOLDS = {"sum": te.sum, "prod": te.prod, "amax": te.max, "amin": te.min, "max": te.max, "min": te.min}


def _axes(t: te.Tensor, dim: Any) -> tuple[int, ...]:
    """No axes are all."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(len(t.shape)))
    return positives([dim] if isinstance(dim, int) else dim, len(t.shape))


@aten("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int")
def _sum(node: Node, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> te.Tensor:
    t = node.cast(x)
    return _folded(node, t, _axes(t, dim), keepdim)


@aten("amax.default", "amin.default", "max.default", "min.default")
def _extreme(node: Node, x: Value, dim: Any = None, keepdim: bool = False) -> te.Tensor:
    t = node.tensor(x)
    return _folded(node, t, _axes(t, dim), keepdim)


def _folded(node: Node, t: te.Tensor, axes: Sequence[int], keepdim: bool) -> te.Tensor:
    if not axes:
        return t
    return r.reduce(t, axes, keepdim, _FOLDS[node.name], name=node.name)


@aten("mean.default", "mean.dim")
def _mean(node: Node, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> te.Tensor:
    t = node.cast(x)
    return r.mean(t, axes, keepdim) if (axes := _axes(t, dim)) else t


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims")
def _any(node: Node, x: Value, dim: Any = None, keepdim: bool = False) -> te.Tensor:
    """The largest of 0 and 1, or the least."""
    t = node.cast(node.cast(x, "bool"), "int32")
    axes = _axes(t, dim)
    if not axes:
        return node.cast(t)
    return cast(r.reduce(t, axes, keepdim, te.max if node.name == "any" else te.min, name=node.name), "bool")


@aten("logsumexp.default")
def _log_sum_exp(node: Node, x: Value, dim: Any, keepdim: bool = False) -> te.Tensor:
    t = node.cast(x)
    return r.log_sum_exp(t, axes, keepdim) if (axes := _axes(t, dim)) else t


@aten("max.dim", "min.dim")
def _with_place(node: Node, x: Value, dim: int, keepdim: bool = False) -> list[te.Tensor | None]:
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    largest = node.name == "max"
    top = r.reduce(t, [axis], keepdim, te.max if largest else te.min, name=node.name)
    place = r.arg_extreme(t, axis, keepdim, largest, last=False) if 1 in node.used else None
    return [top, place]


@aten("argmax.default", "argmin.default")
def _place(node: Node, x: Value, dim: int | None = None, keepdim: bool = False) -> te.Tensor:
    t = node.tensor(x)
    if dim is None:
        flat = reshape(t, (math.prod(t.shape),))
        return reshape(r.arg_extreme(flat, 0, False, node.name == "argmax", last=False), node.shape)
    return r.arg_extreme(t, positive(dim, len(t.shape)), keepdim, node.name == "argmax", last=False)


@aten("var.correction", "std.correction", "var_mean.correction", "std_mean.correction")
def _variance(
    node: Node, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> te.Tensor | list[te.Tensor]:
    t = node.floats(x)
    axes = _axes(t, dim)
    less = 1.0 if correction is None else float(correction)
    var, mean = variance(t, axes, keepdim, less, root=node.name.startswith("std"))
    return [var, mean()] if node.name.endswith("_mean") else var


@aten("cumsum.default", "cumprod.default")
def _cumulative(node: Node, x: Value, dim: int, dtype: Any = None) -> te.Tensor:
    t = node.cast(x)
    if not t.shape:
        return t
    fold, neutral = (te.sum, 0) if node.name == "cumsum" else (te.prod, 1)
    return r.cumulative(t, positive(dim, len(t.shape)), False, False, fold, neutral)


@aten("cummax.default", "cummin.default")
def _cumulative_extreme(node: Node, x: Value, dim: int) -> list[te.Tensor | None]:
    t = node.tensor(x)
    if not t.shape or t.dtype == "bool":
        raise UnsupportedForm("its input is one number" if not t.shape else "bool is not supported by it")
    top, place = r.cumulative_extreme(t, positive(dim, len(t.shape)), node.name == "cummax")
    return [top, place() if 1 in node.used else None]


@aten("logcumsumexp.default")
def _log_cumulative(node: Node, x: Value, dim: int) -> te.Tensor:
    t = node.floats(x)
    if not t.shape:
        return t
    axis = positive(dim, len(t.shape))
    if t.shape[axis] > LONGEST:
        raise UnsupportedForm(f"its axis has {t.shape[axis]} elements, more than {LONGEST}")
    return r.log_cumulative_sum_exp(t, axis)
