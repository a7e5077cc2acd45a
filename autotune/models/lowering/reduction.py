"""Reductions over axes: each is a reduction without the axes that go, then one map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autotune.models.lowering.base import cast, number, stage, within, without
from autotune.models.lowering.movement import pad, part, reshape
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Const, Expr
from schedules.te.scalars import limit

Fold = Callable[..., te.Reduction]
Fn = Callable[[Expr], Any]


def folded(
    x: te.Tensor, axes: Sequence[int], fold: Fold, of: Fn = lambda v: v, name: str = "row"
) -> te.Tensor:
    """``fold`` of all elements along ``axes``, after ``of``, in the dtype that is computed with."""
    axes = sorted(axes)
    over = [te.reduce_axis(x.shape[d], f"r{i}") for i, d in enumerate(axes)]

    def value(*at: Expr) -> te.Reduction:
        return fold(of(x[within(at, axes, over)]), axis=tuple(over))

    return stage(without(x.shape, axes), value, name)


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
    over = [te.reduce_axis(x.shape[d], f"r{i}") for i, d in enumerate(sorted(axes))]

    def finite(v: Expr) -> Expr:
        """0 for an infinity, of which no difference may be taken."""
        return te.select(te.isfinite(v), v, number(0, x.dtype))

    def sums(*at: Expr) -> te.Reduction:
        return te.sum(te.exp(x[within(at, sorted(axes), over)] - finite(top[at])), axis=tuple(over))

    total = stage(top.shape, sums, "row_sum")
    shape = [1 if d in axes else n for d, n in enumerate(x.shape)] if keepdims else top.shape

    def value(*at: Expr) -> Expr:
        i = without(at, axes) if keepdims else at
        return te.cast(te.log(total[i]) + finite(top[i]), x.dtype)

    return stage(shape, value, "log_sum_exp")


def arg_extreme(x: te.Tensor, axis: int, keepdims: bool, largest: bool, last: bool) -> te.Tensor:
    """The place of the largest element along an axis, or of the least, as int64: of equals the first, or the
    last. The first reduction finds the extreme, the second its place. NaN is larger, and less, than all."""
    fold = te.max if largest else te.min
    top = folded(x, [axis], fold, name="row_max" if largest else "row_min")
    r, n = te.reduce_axis(x.shape[axis], "r"), x.shape[axis]

    def place(*at: Expr) -> te.Reduction:
        v = x[within(at, [axis], [r])]
        found = te.any(te.equal(v, top[at]), te.not_equal(v, v))
        other = te.const(-1 if last else n, "int64")
        return (te.max if last else te.min)(te.select(found, te.cast(r, "int64"), other), axis=r)

    out = stage(without(x.shape, [axis]), place, "place")
    return reshape(out, [1 if d == axis else m for d, m in enumerate(x.shape)]) if keepdims else out


# Longest axis whose cumulative results each read all elements, and the length of the parts of longer ones.
DIRECT, PART = 128, 64
_JOIN: dict[Fold, Callable[[Expr, Expr], Expr]] = {
    te.sum: lambda a, b: a + b, te.prod: lambda a, b: a * b, te.max: te.maximum, te.min: te.minimum,
}  # fmt: skip


def cumulative(
    x: te.Tensor, axis: int, exclusive: bool, backwards: bool, fold: Fold, neutral: float | Const
) -> te.Tensor:
    """Sums, products or extremes of all elements up to each along an axis.

    Every result of a short axis reads all elements. A longer one is cut into parts: what lies before a part
    is added to the results within it (Blelloch, Prefix sums and their applications, 1990).
    """
    return cast(_cumulative(x, axis, exclusive, backwards, fold, neutral), x.dtype)


def _cumulative(
    x: te.Tensor, axis: int, exclusive: bool, backwards: bool, fold: Fold, neutral: float | Const
) -> te.Tensor:
    """In the dtype that is computed with."""
    n = x.shape[axis]
    fill = neutral if isinstance(neutral, Const) else te.const(neutral, x.dtype)
    if n <= DIRECT:
        return _direct(x, axis, exclusive, backwards, fold, fill)
    parts = -(-n // PART)
    padded = pad(x, [(0, parts * PART - n if d == axis else 0) for d in range(len(x.shape))], fill=fill)
    cut = reshape(padded, (*x.shape[:axis], parts, PART, *x.shape[axis + 1 :]))
    within_part = _direct(cut, axis + 1, exclusive, backwards, fold, fill)
    totals = folded(cut, [axis + 1], fold, name="part")
    wide = te.const(fill.value, totals.dtype)
    before = _cumulative(totals, axis, True, backwards, fold, wide)
    join = _JOIN[fold]

    def value(*at: Expr) -> Expr:
        return join(within_part[at], before[without(at, [axis + 1])])

    joined = stage(cut.shape, value, "cumulative")
    return part(reshape(joined, padded.shape), axis, 0, n)


def _direct(
    x: te.Tensor, axis: int, exclusive: bool, backwards: bool, fold: Fold, neutral: Const
) -> te.Tensor:
    r = te.reduce_axis(x.shape[axis], "r")

    def value(*at: Expr) -> te.Reduction:
        i = at[axis]
        counts = (r > i if exclusive else r >= i) if backwards else (r < i if exclusive else r <= i)
        own = x[(*at[:axis], r, *at[axis + 1 :])]
        return fold(te.select(counts, own, neutral), axis=r)

    return stage(x.shape, value, "cumulative")


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


def log_cumulative_sum_exp(x: te.Tensor, axis: int) -> te.Tensor:
    """log of the sum of exp(x) up to each element along an axis, of what is left after the maximum up to it
    is taken away. Every result reads all elements."""
    top, _ = cumulative_extreme(x, axis, True)
    r = te.reduce_axis(x.shape[axis], "r")

    def finite(v: Expr) -> Expr:
        return te.select(te.isfinite(v), v, number(0, x.dtype))

    def sums(*at: Expr) -> te.Reduction:
        v = te.exp(x[(*at[:axis], r, *at[axis + 1 :])] - finite(top[at]))
        return te.sum(te.select(r <= at[axis], v, number(0, x.dtype)), axis=r)

    total = stage(x.shape, sums, "row_sum")
    return stage(x.shape, lambda *at: te.cast(te.log(total[at]) + finite(top[at]), x.dtype), "log_sum_exp")
