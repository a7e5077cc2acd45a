"""Reductions over axes: each is a reduction without the axes that go, then one map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.models.operators.axes import reshape, within, without
from autotune.models.operators.base import UnsupportedForm, cast, floating, number, stage, stages
from autotune.models.operators.known import Value
from autotune.models.operators.movement import pad, part
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

Tensors = tuple[te.Tensor, ...]
Exprs = tuple[Expr, ...]


@dataclass(frozen=True)
class _Scan:
    """What is joined along an axis: tuples of elements. ``fold``: of a tuple along an axis; ``join``: of two;
    ``neutral``: what changes nothing. ``direct``: the longest axis whose results each read all elements;
    ``part``: the length of the parts of longer ones."""

    fold: Fold
    join: Callable[[Exprs, Exprs], Exprs]
    neutral: tuple[Const, ...]
    direct: int = 32
    part: int = 8


_JOIN: dict[Fold, Callable[[Expr, Expr], Expr]] = {
    te.sum: lambda a, b: a + b, te.prod: lambda a, b: a * b, te.max: te.maximum, te.min: te.minimum,
}  # fmt: skip


def cumulative(
    x: te.Tensor, axis: int, exclusive: bool, backwards: bool, fold: Fold, neutral: float | Const
) -> te.Tensor:
    """Sums, products or extremes of all elements up to each along an axis.

    Every result of a short axis reads all elements. A longer one is cut into parts: what lies before a part
    is added to the results within it (Blelloch, Prefix sums and their applications, 1990). Sums and products
    of floats are float64's, as those of torch on CPUs: what a part has may be beyond float32 although no
    result is.
    """
    if is_float(x.dtype) and fold is te.prod:
        return cast(_cumulative_product(x, axis, exclusive, backwards), x.dtype)
    if is_float(x.dtype) and fold is te.sum:
        x, out = cast(x, "float64"), x.dtype
    else:
        out = x.dtype
    fill = neutral if isinstance(neutral, Const) else te.const(neutral, computed(x.dtype))
    scan = _Scan(lambda v, axis: fold(v[0], axis=axis), lambda a, b: (_JOIN[fold](a[0], b[0]),), (fill,))
    (made,) = _prefixes((x,), axis, exclusive, backwards, scan)
    return cast(made, out)


# A product is a number of at most this size and at least its inverse, times a power of the square of it.
_SIZE = 2.0**256


def _normal(m: Expr, e: Expr) -> Exprs:
    """The same product, m times the e-th power of `_SIZE` squared, with an m of no extreme size."""
    large, small = te.abs(m) > _SIZE, te.abs(m) < 1 / _SIZE
    return (
        te.select(large, m * _SIZE**-2, te.select(small, m * _SIZE**2, m)),
        te.select(large, e + 1.0, te.select(small, e - 1.0, e)),
    )


def _cumulative_product(x: te.Tensor, axis: int, exclusive: bool, backwards: bool) -> te.Tensor:
    """In float64. Products of parts, and in whatever order a schedule takes, may be beyond it although no
    result is: they have exponents of their own."""
    one, zero = te.const(1, "float64"), te.const(0, "float64")

    def join(a: Exprs, b: Exprs) -> Exprs:
        return _normal(a[0] * b[0], a[1] + b[1])

    product = te.reducer((1.0, 0.0), join, "product")
    scan = _Scan(product, join, (one, zero))
    split = _stages(x.shape, lambda *at: _normal(*_normal(te.cast(x[at], "float64"), zero)), "factor")
    m, e = _prefixes(split, axis, exclusive, backwards, scan)

    def value(*at: Expr) -> Expr:
        out = m[at]
        for n in range(3):  # more make it infinite or 0
            by = te.select(e[at] > n, _SIZE**2, te.select(e[at] < -n, _SIZE**-2, one))
            out = out * by
        return out

    return stage(x.shape, value, "cumulative")


def _prefixes(xs: Tensors, axis: int, exclusive: bool, backwards: bool, scan: _Scan) -> Tensors:
    """In the dtypes that are computed with."""
    shape, n = xs[0].shape, xs[0].shape[axis]
    if n <= scan.direct:
        return _direct(xs, axis, exclusive, backwards, scan)
    parts = -(-n // scan.part)
    sides = [(0, parts * scan.part - n if d == axis else 0) for d in range(len(shape))]
    padded = [pad(x, sides, fill=te.const(c.value, x.dtype)) for x, c in zip(xs, scan.neutral, strict=True)]
    cut = tuple(reshape(x, (*shape[:axis], parts, scan.part, *shape[axis + 1 :])) for x in padded)
    inside = _direct(cut, axis + 1, exclusive, backwards, scan)
    r = te.reduce_axis(scan.part, "r")

    def total(*at: Expr) -> te.Reduction:
        return scan.fold(tuple(x[within(at, [axis + 1], [r])] for x in cut), axis=r)

    totals = _stages(without(cut[0].shape, [axis + 1]), total, "part")
    before = _prefixes(totals, axis, True, backwards, scan)

    def joined(*at: Expr) -> Exprs:
        there = without(at, [axis + 1])
        return scan.join(tuple(x[at] for x in inside), tuple(x[there] for x in before))

    made = _stages(cut[0].shape, joined, "cumulative")
    return tuple(part(reshape(x, padded[0].shape), axis, 0, n) for x in made)


def _direct(xs: Tensors, axis: int, exclusive: bool, backwards: bool, scan: _Scan) -> Tensors:
    r = te.reduce_axis(xs[0].shape[axis], "r")

    def value(*at: Expr) -> te.Reduction:
        i = at[axis]
        counts = (r > i if exclusive else r >= i) if backwards else (r < i if exclusive else r <= i)
        own = [x[(*at[:axis], r, *at[axis + 1 :])] for x in xs]
        kept = (te.select(counts, v, c) for v, c in zip(own, scan.neutral, strict=True))
        return scan.fold(tuple(kept), axis=r)

    return _stages(xs[0].shape, value, "cumulative")


def _stages(shape: Sequence[int], value: Callable[..., Any], name: str) -> Tensors:
    """`stage` of a tuple of values, or of a reduction over tuples."""
    made = stages(shape, value, name)
    return made if isinstance(made, tuple) else (made,)


def cumulative_extreme(x: te.Tensor, axis: int, largest: bool) -> tuple[te.Tensor, Callable[[], te.Tensor]]:
    """(the largest element up to each along an axis, or the least; makes their places as int64). Of equals
    the last one counts. NaN is larger, and less, than all."""
    top = cumulative(
        x, axis, False, False, te.max if largest else te.min, limit(x.dtype, -1 if largest else 1)
    )
    r = te.reduce_axis(x.shape[axis], "r")

    def place(*at: Expr) -> te.Reduction:
        v, best = x[(*at[:axis], r, *at[axis + 1 :])], top[at]
        same = te.any(te.equal(v, best), te.all(te.not_equal(v, v), te.not_equal(best, best)))
        found = te.all(r <= at[axis], same)
        return te.max(te.select(found, te.cast(r, "int32"), te.const(0, "int32")), axis=r)

    return top, lambda: cast(stage(x.shape, place, "place"), "int64")


# Longest axis of a cumulative sum of exponentials: its work grows with the square.
LONGEST = 1024


@aten("logcumsumexp.default", along=True)
def log_cumulative_sum_exp(x: Floats, axis: Axis) -> te.Tensor:
    """log of the sum of exp(x) up to each element along an axis, of what is left after the maximum up to it
    is taken away. Every result reads all elements."""
    if x.shape[axis] > LONGEST:
        raise UnsupportedForm(f"its axis has {x.shape[axis]} elements, more than {LONGEST}")
    top, _ = cumulative_extreme(x, axis, True)
    r = te.reduce_axis(x.shape[axis], "r")

    def sums(*at: Expr) -> te.Reduction:
        v = te.exp(x[(*at[:axis], r, *at[axis + 1 :])] - _finite(top[at]))
        return te.sum(te.select(r <= at[axis], v, number(0, x.dtype)), axis=r)

    total = stage(x.shape, sums, "row_sum")
    return stage(x.shape, lambda *at: te.cast(te.log(total[at]) + _finite(top[at]), x.dtype), "log_sum_exp")


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
    fold, neutral = (te.sum, 0.0) if node.op == "CumSum" else (te.prod, 1.0)
    return cumulative(x, axis, exclusive, reverse, fold, neutral)


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
    fold, neutral = (te.sum, 0) if node.name == "cumsum" else (te.prod, 1)
    return cumulative(x, dim, False, False, fold, neutral)


@aten("cummax.default", "cummin.default", along=True)
def _cumulative_extreme(node: TorchNode, x: Value, dim: Axis) -> list[te.Tensor | None]:
    t = node.cast(x, "int32" if x.dtype == "bool" else x.dtype)
    top, place = cumulative_extreme(t, dim, node.name == "cummax")
    return [node.cast(top), place() if 1 in node.used else None]
