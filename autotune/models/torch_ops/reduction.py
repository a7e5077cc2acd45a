"""Reductions over axes."""

from __future__ import annotations

import math
from typing import Any

from autotune.models.lowering import reduction as r
from autotune.models.lowering.base import UnsupportedForm, positive, positives
from autotune.models.lowering.movement import reshape
from autotune.models.lowering.normalization import variance
from autotune.models.torch_ops.table import TorchNode, Value, aten
from schedules import te

# Longest axis of a cumulative sum of exponentials: its work grows with the square.
LONGEST = 1024
_FOLDS = {"sum": te.sum, "prod": te.prod, "amax": te.max, "amin": te.min, "max": te.max, "min": te.min}


def _axes(t: te.Tensor, dim: Any) -> tuple[int, ...]:
    """No axes are all."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(len(t.shape)))
    return positives([dim] if isinstance(dim, int) else dim, len(t.shape))


@aten("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int", along=True)
def _sum(node: TorchNode, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> te.Tensor:
    t = node.cast(x)
    return r.reduce(t, _axes(t, dim), keepdim, _FOLDS[node.name], name=node.name)


@aten("amax.default", "amin.default", "max.default", "min.default", along=True)
def _extreme(node: TorchNode, x: Value, dim: Any = None, keepdim: bool = False) -> te.Tensor:
    t = node.tensor(x)
    return r.reduce(t, _axes(t, dim), keepdim, _FOLDS[node.name], name=node.name)


@aten("mean.default", "mean.dim", along=True)
def _mean(node: TorchNode, x: Value, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> te.Tensor:
    t = node.cast(x)
    return r.mean(t, _axes(t, dim), keepdim)


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims", along=True)
def _any(node: TorchNode, x: Value, dim: Any = None, keepdim: bool = False) -> te.Tensor:
    """The largest of 0 and 1, or the least. Of uint8 it is a uint8."""
    t = node.cast(node.cast(x, "bool"), "int32")
    fold = te.max if node.name == "any" else te.min
    return node.cast(r.reduce(t, _axes(t, dim), keepdim, fold, name=node.name))


@aten("logsumexp.default", along=True)
def _log_sum_exp(node: TorchNode, x: Value, dim: Any, keepdim: bool = False) -> te.Tensor:
    t = node.cast(x)
    return r.log_sum_exp(t, _axes(t, dim), keepdim)


@aten("max.dim", "min.dim", along=True)
def _with_place(node: TorchNode, x: Value, dim: int, keepdim: bool = False) -> list[te.Tensor | None]:
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    largest = node.name == "max"
    top = r.reduce(t, [axis], keepdim, te.max if largest else te.min, name=node.name)
    place = r.arg_extreme(t, axis, keepdim, largest, last=False) if 1 in node.used else None
    return [top, place]


@aten("argmax.default", "argmin.default", along=True)
def _place(node: TorchNode, x: Value, dim: int | None = None, keepdim: bool = False) -> te.Tensor:
    t = node.tensor(x)
    if dim is None:
        flat = reshape(t, (math.prod(t.shape),))
        return reshape(r.arg_extreme(flat, 0, False, node.name == "argmax", last=False), node.shape)
    return r.arg_extreme(t, positive(dim, len(t.shape)), keepdim, node.name == "argmax", last=False)


@aten("var.correction", "std.correction", "var_mean.correction", "std_mean.correction", along=True)
def _variance(
    node: TorchNode, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> te.Tensor | list[te.Tensor]:
    t = node.floats(x)
    axes = _axes(t, dim)
    less = 1.0 if correction is None else float(correction)
    var, mean = variance(t, axes, keepdim, less, root=node.name.startswith("std"))
    return [var, mean()] if node.name.endswith("_mean") else var


@aten("cumsum.default", "cumprod.default", along=True)
def _cumulative(node: TorchNode, x: Value, dim: int, dtype: Any = None) -> te.Tensor:
    t = node.cast(x)
    fold, neutral = (te.sum, 0) if node.name == "cumsum" else (te.prod, 1)
    return r.cumulative(t, positive(dim, len(t.shape)), False, False, fold, neutral)


@aten("cummax.default", "cummin.default", along=True)
def _cumulative_extreme(node: TorchNode, x: Value, dim: int) -> list[te.Tensor | None]:
    t = node.cast(x, "int32" if x.dtype == "bool" else x.dtype)
    top, place = r.cumulative_extreme(t, positive(dim, len(t.shape)), node.name == "cummax")
    return [node.cast(top), place() if 1 in node.used else None]


@aten("logcumsumexp.default", along=True)
def _log_cumulative(node: TorchNode, x: Value, dim: int) -> te.Tensor:
    t = node.floats(x)
    axis = positive(dim, len(t.shape))
    if t.shape[axis] > LONGEST:
        raise UnsupportedForm(f"its axis has {t.shape[axis]} elements, more than {LONGEST}")
    return r.log_cumulative_sum_exp(t, axis)
