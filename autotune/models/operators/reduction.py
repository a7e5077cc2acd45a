"""Reductions over axes: each is a reduction without the axes that go, then one map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autotune.models.operators.axes import reshape, within, without
from autotune.models.operators.base import cast, floating, number, stage, stages
from autotune.models.operators.known import Value
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Axes, Axis, Cast, Floats, aten, onnx_op
from schedules import te
from schedules.dtypes import computed, is_float
from schedules.expr import Const, Expr, dtype_of
from schedules.te.scalars import limit
from schedules.te.tensors import IterVar

Fold = Callable[..., te.Reduction]
Fn = Callable[[Expr], Any]


def rows(x: te.Tensor, axes: Sequence[int], value: Callable[..., Any], name: str | tuple[str, ...]) -> Any:
    """A reduction over ``axes``: ``value(element, axes, at)`` of what is read."""
    over = [te.reduce_axis(x.shape[d], f"r{i}") for i, d in enumerate(axes)]
    return stages(without(x.shape, axes), lambda *at: value(x[within(at, axes, over)], tuple(over), at), name)


def folded(
    x: te.Tensor, axes: Sequence[int], fold: Fold, of: Fn = lambda v: v, name: str = "row"
) -> te.Tensor:
    """``fold`` of all elements along ``axes``, after ``of``, in the dtype that is computed with."""
    made: te.Tensor = rows(x, sorted(axes), lambda v, r, at: fold(of(v), axis=r), name)
    return made


def reduce(
    x: te.Tensor, axes: Sequence[int], keepdims: bool, fold: Fold,
    before: Fn = lambda v: v, after: Fn | None = None, name: str = "reduce",
) -> te.Tensor:  # fmt: skip
    """``after(fold(before(x)))`` along ``axes``, in the dtype of ``x``."""
    out = folded(x, axes, fold, before, name) if axes else stage(x.shape, lambda *at: before(x[at]), name)
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)] if keepdims else without(x.shape, axes)
    if after is None and not (keepdims and axes):
        return cast(out, x.dtype)
    if after is None and out.dtype == x.dtype:
        return reshape(out, shape)
    finish = after or (lambda v: v)

    def value(*at: Expr) -> Expr:
        return te.cast(finish(out[without(at, axes) if keepdims else at]), x.dtype)

    return stage(shape, value, name)


def mean(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """The average along axes."""
    n = math.prod(x.shape[d] for d in axes)
    if computed(x.dtype) in ("int32", "int64"):
        raise ValueError(f"a mean of {x.dtype}")
    return reduce(x, axes, keepdims, te.sum, after=lambda v: v / float(n), name="mean")


def log_sum_exp(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> te.Tensor:
    """log Σ exp(x), of what is left after the maximum is taken away."""
    top = folded(x, axes, te.max, name="row_max")

    def sums(v: Expr, r: tuple[IterVar, ...], at: Sequence[Expr]) -> te.Reduction:
        return te.sum(te.exp(v - _finite(top[at])), axis=r)

    total = rows(x, sorted(axes), sums, "row_sum")
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)] if keepdims else top.shape

    def value(*at: Expr) -> Expr:
        i = without(at, axes) if keepdims else at
        return te.cast(te.log(total[i]) + _finite(top[i]), x.dtype)

    return stage(shape, value, "log_sum_exp")


def _finite(v: Expr) -> Expr:
    """0 for an infinity, of which no difference may be taken."""
    return te.select(te.isfinite(v), v, number(0, dtype_of(v)))


def arg_extreme(x: te.Tensor, axis: int, keepdims: bool, largest: bool, last: bool) -> te.Tensor:
    """The place of the largest element along an axis, or of the least, as int64: of equals the first, or the
    last. The first reduction finds the extreme, the second its place. NaN is larger, and less, than all."""
    fold = te.max if largest else te.min
    top = folded(x, [axis], fold, name="row_max" if largest else "row_min")
    n = x.shape[axis]

    def place(v: Expr, r: tuple[IterVar, ...], at: Sequence[Expr]) -> te.Reduction:
        found = te.any(te.equal(v, top[at]), te.not_equal(v, v))
        other = te.const(-1 if last else n, "int64")
        return (te.max if last else te.min)(te.select(found, te.cast(r[0], "int64"), other), axis=r)

    out: te.Tensor = rows(x, [axis], place, "place")
    return reshape(out, [1 if d == axis else m for d, m in enumerate(x.shape)]) if keepdims else out


# --- cumulative results -----------------------------------------------------------------------

_CUMULATIVE: dict[Fold, Callable[..., te.Tensor]] = {te.sum: te.cumsum, te.prod: te.cumprod}


def cumulative(x: te.Tensor, axis: int, exclusive: bool, backwards: bool, fold: Fold) -> te.Tensor:
    """Sums or products of all elements up to each along an axis, in order. Those of floats are float64's, as
    torch's on CPUs: a product of some may be beyond float32 although no result is."""
    wide = "float64" if is_float(x.dtype) else None
    return cast(_CUMULATIVE[fold](x, axis, backwards, exclusive, wide, name="cumulative"), x.dtype)


def cumulative_extreme(
    x: te.Tensor, axis: int, largest: bool, places: bool
) -> tuple[te.Tensor, te.Tensor | None]:
    """(the largest element up to each along an axis, or the least; their places as int64, if these are
    wanted). Of equals the last one counts. NaN is larger, and less, than all."""
    if not places:
        return cast((te.cummax if largest else te.cummin)(x, axis, name="extreme"), x.dtype), None
    start = limit(computed(x.dtype), -1 if largest else 1)

    def value(best: te.Tensor, place: te.Tensor, *at: Expr) -> Exprs:
        before = (*at[:axis], at[axis] - 1, *at[axis + 1 :])
        v, old = te.cast(x[at], computed(x.dtype)), best[before]
        found = te.any(te.not_equal(v, v), v >= old if largest else v <= old)
        return te.select(found, v, old), te.select(found, te.cast(at[axis], "int32"), place[before])

    top, at = _scanned(x, axis, (start, te.const(0, "int32")), value, ("extreme", "place"))
    return cast(top, x.dtype), cast(at, "int64")


@aten("logcumsumexp.default", along=True)
def log_cumulative_sum_exp(x: Floats, axis: Axis) -> te.Tensor:
    """log of the sum of exp(x) up to each element along an axis, in float64: the largest element so far, and
    the sum of what is left after it is taken away."""
    least = te.const(-math.inf, "float64")

    def value(best: te.Tensor, total: te.Tensor, *at: Expr) -> Exprs:
        before = (*at[:axis], at[axis] - 1, *at[axis + 1 :])
        v, old = te.cast(x[at], "float64"), best[before]
        new = te.maximum(old, v)
        return new, total[before] * te.exp(old - _finite(new)) + te.exp(v - _finite(new))

    top, total = _scanned(x, axis, (least, te.const(0, "float64")), value, ("row_max", "row_sum"))
    return stage(x.shape, lambda *at: te.cast(te.log(total[at]) + _finite(top[at]), x.dtype), "log_sum_exp")


Exprs = tuple[Expr, Expr]


def _scanned(
    x: te.Tensor, axis: int, start: tuple[Const, Const], value: Callable[..., Exprs], names: Sequence[str]
) -> tuple[te.Tensor, te.Tensor]:
    """Two values of each step along an axis: ``value`` of both states, and of the indices."""
    states = [te.state(x.shape, c.dtype, c.value, axis, name) for c, name in zip(start, names, strict=True)]
    made = stages(x.shape, lambda *at: value(*states, *at), tuple(names))
    top, other = te.scan(states, list(made))
    return top, other


# --- rows -------------------------------------------------------------------------------------

# Those that change nothing where each element is on its own.
_SAME_OF_ONE = frozenset(
    {"ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "ReduceLogSumExp"}
)
# {operator: (reduction, function before, function after)}.
_REDUCE: dict[str, tuple[Fold, Fn | None, Fn | None]] = {
    "ReduceSum": (te.sum, None, None),
    "ReduceMax": (te.max, None, None),
    "ReduceMin": (te.min, None, None),
    "ReduceProd": (te.prod, None, None),
    "ReduceL1": (te.sum, te.abs, None),
    "ReduceL2": (te.sum, lambda v: v * v, te.sqrt),
    "ReduceSumSquare": (te.sum, lambda v: v * v, None),
    "ReduceLogSum": (te.sum, None, te.log),
    "ReduceMean": (te.sum, None, None),
    "ReduceLogSumExp": (te.sum, None, None),
}


@onnx_op(*_REDUCE)
def _reduce(
    node: OnnxNode, x: te.Tensor, axes: Axes | None = None, *, keepdims: bool = True,
    noop_with_empty_axes: bool = False,
) -> te.Tensor:  # fmt: skip
    """No axes are all, or none."""
    where = axes or (() if noop_with_empty_axes else tuple(range(len(x.shape))))
    if not where and node.op in _SAME_OF_ONE:
        return x
    if node.op == "ReduceMean":
        return mean(x, where, keepdims)
    if node.op == "ReduceLogSumExp":
        return log_sum_exp(floating(x), where, keepdims)
    fold, before, after = _REDUCE[node.op]
    return reduce(x if after is None else floating(x), where, keepdims, fold, before or (lambda v: v), after)


@onnx_op("ArgMax", "ArgMin")
def _arg(
    node: OnnxNode, x: te.Tensor, *, axis: Axis = 0, keepdims: bool = True, select_last_index: bool = False
) -> te.Tensor:
    return arg_extreme(x, axis, keepdims, node.op == "ArgMax", select_last_index)


@onnx_op("CumSum", "CumProd")
def _onnx_cumulative(
    node: OnnxNode, x: te.Tensor, axis: Axis, *, exclusive: bool = False, reverse: bool = False
) -> te.Tensor:
    return cumulative(x, axis, exclusive, reverse, te.sum if node.op == "CumSum" else te.prod)


_FOLDS = {"sum": te.sum, "prod": te.prod, "amax": te.max, "amin": te.min, "max": te.max, "min": te.min}


def _all_of(x: te.Tensor, dim: Sequence[int] | None) -> Sequence[int]:
    """No axes are all."""
    return dim or range(len(x.shape))


@aten(
    "sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int", "amax.default", "amin.default",
    "max.default", "min.default", along=True,
)  # fmt: skip
def _fold(
    node: TorchNode, x: Cast, dim: Axes | None = None, keepdim: bool = False, dtype: Any = None
) -> te.Tensor:
    return reduce(x, _all_of(x, dim), keepdim, _FOLDS[node.name], name=node.name)


@aten("mean.default", "mean.dim", "logsumexp.default", along=True)
def _mean(
    node: TorchNode, x: Cast, dim: Axes | None = None, keepdim: bool = False, dtype: Any = None
) -> te.Tensor:
    return (mean if node.name == "mean" else log_sum_exp)(x, _all_of(x, dim), keepdim)


@aten("any.default", "any.dim", "any.dims", "all.default", "all.dim", "all.dims", along=True)
def _any(node: TorchNode, x: te.Tensor, dim: Axes | None = None, keepdim: bool = False) -> te.Tensor:
    """The largest of 0 and 1, or the least. Of uint8 it is a uint8."""
    t = node.cast(node.cast(x, "bool"), "int32")
    fold = te.max if node.name == "any" else te.min
    return node.cast(reduce(t, _all_of(x, dim), keepdim, fold, name=node.name))


@aten("max.dim", "min.dim", along=True)
def _with_place(node: TorchNode, x: te.Tensor, dim: Axis, keepdim: bool = False) -> list[te.Tensor | None]:
    largest = node.name == "max"
    top = reduce(x, [dim], keepdim, _FOLDS[node.name], name=node.name)
    return [top, arg_extreme(x, dim, keepdim, largest, last=False) if 1 in node.used else None]


@aten("argmax.default", "argmin.default", along=True)
def _place(node: TorchNode, x: te.Tensor, dim: Axis | None = None, keepdim: bool = False) -> te.Tensor:
    largest = node.name == "argmax"
    if dim is not None:
        return arg_extreme(x, dim, keepdim, largest, last=False)
    flat = reshape(x, (math.prod(x.shape),))
    return reshape(arg_extreme(flat, 0, False, largest, last=False), node.shape)


@aten("cumsum.default", "cumprod.default", along=True)
def _cumulative(node: TorchNode, x: Cast, dim: Axis, dtype: Any = None) -> te.Tensor:
    return cumulative(x, dim, False, False, te.sum if node.name == "cumsum" else te.prod)


@aten("cummax.default", "cummin.default", along=True)
def _cumulative_extreme(node: TorchNode, x: Value, dim: Axis) -> list[te.Tensor | None]:
    t = node.cast(x, "int32" if x.dtype == "bool" else x.dtype)
    top, place = cumulative_extreme(t, dim, node.name == "cummax", 1 in node.used)
    return [node.cast(top), place]
