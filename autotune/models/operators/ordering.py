"""Sorting by counting: an element's place is the number of those that come before it (Knuth, The Art of
Computer Programming, volume 3, section 5.2, comparison counting).

Every element is compared with all of its row, so work grows with the square of an axis. NaN is above all, and
equals keep their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from autotune.models.operators.axes import reshape, without
from autotune.models.operators.base import UnsupportedForm, axis_names, cast, number, stage
from autotune.models.operators.indexing import gather_elements
from autotune.models.operators.known import Scalar, Value
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.reduction import rows
from autotune.models.operators.table import Axis, aten, onnx_op
from schedules import te
from schedules.dtypes import computed, is_float
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import named
from schedules.te.extent import is_open

# Longest axis that is sorted.
LONGEST = 2**14


def _whole(x: te.Tensor) -> te.Tensor:
    """Of a dtype that has an order."""
    return cast(x, "int32") if x.dtype == "bool" else x


def _nan(v: Expr, dtype: str) -> Expr | None:
    return te.not_equal(v, v) if is_float(dtype) else None


def places(x: te.Tensor, axis: int, descending: bool) -> te.Tensor:
    """The place of every element along an axis in order, as int32. Raises UnsupportedForm for an axis of more
    elements than are sorted."""
    if (n := x.shape[axis]) > LONGEST:
        raise UnsupportedForm(
            f"its axis has {n} elements, more than {LONGEST}, and every element is compared with all of them"
        )
    t = _whole(x)
    r = te.reduce_axis(t.shape[axis], "r")

    def value(*at: Expr) -> te.Reduction:
        own, other = t[at], t[(*at[:axis], r, *at[axis + 1 :])]
        first = other > own if descending else other < own
        same = te.equal(other, own)
        own_nan, other_nan = _nan(own, t.dtype), _nan(other, t.dtype)
        if own_nan is not None and other_nan is not None:
            above, below = (other_nan, own_nan) if descending else (own_nan, other_nan)
            first = te.any(first, te.all(above, te.logical_not(below)))
            same = te.any(same, te.all(own_nan, other_nan))
        before = te.any(first, te.all(same, r < at[axis]))
        return te.sum(te.select(before, te.const(1, "int32"), te.const(0, "int32")), axis=r)

    return stage(t.shape, value, "place")


def at_places(
    ranks: te.Tensor, axis: int, count: int, place: Callable[[Sequence[Expr]], ExprLike]
) -> te.Tensor:
    """Where the elements lie, as int64, that have the places ``place(index)``, for ``count`` of them."""
    n = ranks.shape[axis]
    shape = [count if d == axis else m for d, m in enumerate(ranks.shape)]
    r = te.reduce_axis(n, "r")

    def value(*at: Expr) -> te.Reduction:
        found = te.equal(ranks[(*at[:axis], r, *at[axis + 1 :])], te.cast(place(at), "int32"))
        return te.sum(te.select(found, te.cast(r, "int32"), te.const(0, "int32")), axis=r)

    return cast(stage(shape, value, "source"), "int64")


def ordered(
    x: te.Tensor, axis: int, count: int, descending: bool, start: int = 0
) -> tuple[te.Tensor, te.Tensor]:
    """(the ``count`` elements from place ``start`` on in order along an axis, where they lie as int64)."""
    source = at_places(places(x, axis, descending), axis, count, lambda at: at[axis] + start)
    return gather_elements(x, source, axis), source


def median(x: te.Tensor, axis: int, ignore_nan: bool = False) -> tuple[te.Tensor, te.Tensor]:
    """(the lower median along an axis, which keeps one element; where it lies). NaN where there is one, or
    where all are with ``ignore_nan``."""
    n, ranks = x.shape[axis], places(x, axis, False)
    middle = (n - 1) // 2
    if not is_float(x.dtype):
        source = at_places(ranks, axis, 1, lambda at: middle)
        return gather_elements(x, source, axis), source
    one, none = te.const(1, "int32"), te.const(0, "int32")
    known = rows(x, [axis], lambda v, r, at: te.sum(te.select(te.equal(v, v), one, none), axis=r), "numbers")

    def place(at: Sequence[Expr]) -> Expr:
        count = known[without(at, [axis])]
        if ignore_nan:
            return te.maximum(count - 1, 0) // 2
        return te.select(count < n, count, te.const(middle, "int32"))

    source = at_places(ranks, axis, 1, place)
    return gather_elements(x, source, axis), source


def insertion(boundaries: te.Tensor, x: te.Tensor, right: bool, dtype: str) -> te.Tensor:
    """How many boundaries lie below every element, or at it too if ``right``. ``boundaries``: one sorted row,
    or one for each row of ``x``. NaN lies above all."""
    b = _whole(boundaries)
    wide = "float64" if "64" in b.dtype + x.dtype else "float32"
    exact = not is_float(b.dtype) and not is_float(x.dtype)
    kind = "int64" if exact else wide
    r = te.reduce_axis(b.shape[-1], "r")

    def value(*at: Expr) -> te.Reduction:
        own = te.cast(x[at], kind)
        bound = te.cast(b[(*at[: len(b.shape) - 1], r)], kind)
        beyond = bound > own if right else bound >= own
        return te.sum(te.select(beyond, te.const(0, "int32"), te.const(1, "int32")), axis=r)

    return cast(stage(x.shape, value, "below"), dtype)


@aten("histc.default")
def histogram(x: te.Tensor, bins: int = 100, low: Scalar = 0, high: Scalar = 0) -> te.Tensor:
    """How many elements lie in each of ``bins`` equal parts of ``low`` to ``high``, which belongs to the last
    one, in the dtype of ``x``."""
    if low == high:
        raise UnsupportedForm("its bounds are those of its data: give min and max")
    low, high, wide = float(low), float(high), computed(x.dtype)

    def element(p: Sequence[Expr]) -> Expr:
        return te.cast(x[tuple(p)], wide if is_float(wide) else "float32")

    def part(v: Expr) -> Expr:
        found = te.floor((v - low) * float(bins) / float(high - low))
        return te.cast(te.minimum(found, float(bins - 1)), "int32")

    def inside(v: Expr) -> Expr:
        return te.all(v >= low, v <= high)

    if x.shape and not any(map(is_open, x.shape)):
        axes = axis_names(len(x.shape))
        place = named(axes, lambda *p: part(element(p)))
        counted = named(axes, lambda *p: te.select(inside(element(p)), te.const(1, "int32"), 0))
        return cast(te.scatter_add((bins,), place, counted, x.shape, mode="clip", name="histogram"), x.dtype)
    over = [te.reduce_axis(n, f"r{d}") for d, n in enumerate(x.shape)]
    one, none = number(1, wide), number(0, wide)

    def value(i: Expr) -> te.Reduction | Expr:
        v = element(over)
        found = te.select(te.all(inside(v), te.equal(part(v), te.cast(i, "int32"))), one, none)
        return te.sum(found, axis=tuple(over)) if over else found

    return cast(stage((bins,), value, "histogram"), x.dtype)


# --- rows -------------------------------------------------------------------------------------

Two = tuple[te.Tensor, te.Tensor]


@onnx_op("TopK")
def _onnx_topk(
    node: OnnxNode, x: te.Tensor, count: Value | None = None, *, k: int = 0, axis: Axis = -1,
    largest: bool = True,
) -> Two:  # fmt: skip
    """In order, also where that was not asked for. How many is an attribute before version 10."""
    n = k if count is None else node.integer(count, "K")
    if not 1 <= n <= x.shape[axis]:
        raise ValueError(f"K is {n}, of {x.shape[axis]} elements")
    return ordered(x, axis, n, largest)


@aten("sort.default", "sort.stable", "argsort.default", "argsort.stable", along=True, shaped=True)
def _sort(
    node: TorchNode, x: te.Tensor, dim: Axis = -1, descending: bool = False, *, stable: bool | None = None
) -> Two | te.Tensor:
    """Equals keep their order, also where that was not asked for."""
    made = ordered(x, dim, x.shape[dim], descending)
    return made[1] if node.name == "argsort" else made


@aten("topk.default", along=True, shaped=True)
def _topk(x: te.Tensor, k: int, dim: Axis = -1, largest: bool = True, sorted: bool = True) -> Two:
    """In order, also where that was not asked for; of equals the first ones."""
    return ordered(x, dim, int(k), largest)


@aten("kthvalue.default", along=True, shaped=True)
def _kth(x: te.Tensor, k: int, dim: Axis = -1, keepdim: bool = False) -> Two:
    return ordered(x, dim, 1, False, int(k) - 1)


@aten("median.dim", "nanmedian.dim", "median.default", "nanmedian.default", along=True, shaped=True)
def _median(node: TorchNode, x: te.Tensor, dim: Axis | None = None, keepdim: bool = False) -> Two | te.Tensor:
    ignore_nan = node.name == "nanmedian"
    if dim is not None:
        return median(x, dim, ignore_nan)
    return median(reshape(x, (math.prod(x.shape),)), 0, ignore_nan)[0]


@aten("bucketize.Tensor", "searchsorted.Tensor")
def _bucket(
    node: TorchNode, a: te.Tensor, b: te.Tensor, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> te.Tensor:  # fmt: skip
    """The values come first for one of them, the bounds for the other."""
    if sorter is not None:
        raise UnsupportedForm("sorter is not supported: give sorted bounds")
    x, bounds = (a, b) if node.name == "bucketize" else (b, a)
    return insertion(bounds, x, right or side == "right", node.dtype)
