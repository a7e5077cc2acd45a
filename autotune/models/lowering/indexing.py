"""Operators whose indices are data. Indices below 0 count from the end. Those outside are cut off at the
ends, so that no data lets a kernel read outside of a tensor."""

from __future__ import annotations

import numpy as np

from autotune.models.lowering.base import Array, Operand, cast, number, read, stage
from autotune.models.lowering.movement import strided_slice
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr
from schedules.te.scalars import limit


def from_end(index: Expr, extent: int) -> Expr:
    """An index that counts from the end where it is below 0."""
    return te.select(index < 0, index + extent, index)


def evenly_apart(x: te.Tensor, flat: Array, axis: int) -> te.Tensor | None:
    """The elements of an axis at known places, as a slice; None where they are not evenly apart."""
    steps = np.unique(np.diff(flat))
    if len(steps) > 1:
        return None
    starts, extents, by = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    starts[axis], extents[axis], by[axis] = int(flat[0]), len(flat), int(steps[0]) if len(steps) else 1
    return strided_slice(x, starts, extents, by)


def gather(x: te.Tensor, ids: te.Tensor, axis: int) -> te.Tensor:
    """numpy's take: ``axis`` is replaced by the axes of ``ids``."""
    many, size = len(ids.shape), x.shape[axis]

    def value(*at: Expr) -> Expr:
        own = from_end(ids[at[axis : axis + many]], size)
        return x[(*at[:axis], own, *at[axis + many :])]

    return stage((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]), value, "gather")


def gather_elements(x: te.Tensor, ids: te.Tensor, axis: int) -> te.Tensor:
    """numpy's take_along_axis: the index of ``axis`` is read at the same place."""
    size = x.shape[axis]
    if len(ids.shape) != len(x.shape) or any(
        n > m for d, (n, m) in enumerate(zip(ids.shape, x.shape, strict=True)) if d != axis
    ):
        raise ValueError(f"indices of {list(ids.shape)} for data of {list(x.shape)} along axis {axis}")

    def value(*at: Expr) -> Expr:
        return x[(*at[:axis], from_end(ids[at], size), *at[axis + 1 :])]

    return stage(ids.shape, value, "gather")


def gather_nd(x: te.Tensor, ids: te.Tensor, batch: int) -> te.Tensor:
    """The last axis of ``ids`` indexes the axes of ``x`` after the first ``batch``, which both share."""
    depth = ids.shape[-1]
    if ids.shape[:batch] != x.shape[:batch] or batch + depth > len(x.shape):
        raise ValueError(f"indices of {list(ids.shape)} for data of {list(x.shape)} after {batch} axes")
    front = len(ids.shape) - 1

    def value(*at: Expr) -> Expr:
        own = [from_end(ids[(*at[:front], d)], x.shape[batch + d]) for d in range(depth)]
        return x[(*at[:batch], *own, *at[front:])]

    return stage((*ids.shape[:-1], *x.shape[batch + depth :]), value, "gather")


def one_hot(ids: te.Tensor, depth: int, axis: int, off: Operand, on: Operand, dtype: str) -> te.Tensor:
    """``on`` where the index is that of the new ``axis``, else ``off``."""
    kind = ids.dtype if ids.dtype in ("int32", "int64", "float32", "float64") else "int32"

    def value(*at: Expr) -> Expr:
        own = te.cast(ids[(*at[:axis], *at[axis + 1 :])], kind)
        own = te.select(own < 0, own + depth, own)
        return te.select(te.equal(own, te.cast(at[axis], kind)), on_value(), off_value())

    def on_value() -> Expr:
        return te.cast(read(on, ()), dtype)

    def off_value() -> Expr:
        return te.cast(read(off, ()), dtype)

    return stage((*ids.shape[:axis], depth, *ids.shape[axis:]), value, "one_hot")


def reverse_sequence(x: te.Tensor, lengths: te.Tensor, batch: int, time: int) -> te.Tensor:
    """The first elements of each sequence along the axis ``time`` backwards, as many as its length is."""

    def value(*at: Expr) -> Expr:
        n, i = lengths[at[batch]], te.cast(at[time], lengths.dtype)
        own = te.select(i < n, n - 1 - i, i)
        return x[tuple(own if d == time else v for d, v in enumerate(at))]

    return stage(x.shape, value, "reverse")


def equal_bags(x: te.Tensor, ids: te.Tensor, by: te.Tensor | None, bags: int, kind: str) -> te.Tensor:
    """The "sum", "mean" or "max" of the rows of ``x`` that each bag names, of as many indices as any other.
    ``by``: a factor for each."""
    each = ids.shape[0] // bags
    r = te.reduce_axis(each, "r")

    def value(b: Expr, j: Expr) -> te.Reduction:
        v = x[from_end(ids[b * each + r], x.shape[0]), j]
        if kind == "max":
            return te.max(v, axis=r)
        return te.sum(v if by is None else v * by[b * each + r], axis=r)

    total = stage((bags, x.shape[1]), value, "bag")
    if kind != "mean":
        return cast(total, x.dtype)
    return stage(total.shape, lambda b, j: te.cast(total[b, j] / float(each), x.dtype), "mean")


def bags(
    x: te.Tensor, ids: te.Tensor, by: te.Tensor | None, starts: te.Tensor, count: int, kind: str, padding: int
) -> te.Tensor:
    """As `equal_bags`, of bags that go from one of ``starts`` to before the next one. An index of
    ``padding`` counts for nothing. A bag without indices is 0."""
    n, wide = ids.shape[0], computed(x.dtype)
    r = te.reduce_axis(n, "r")

    def mine(b: Expr) -> Expr:
        place = te.cast(r, starts.dtype)
        inside = [starts[b] <= place]
        more = starts.shape[0] > count
        end = starts[b + 1 if more else te.minimum(b + 1, count - 1)]
        inside += [place < end] if more else [te.any(place < end, b >= count - 1)]
        inside += [te.not_equal(ids[r], padding)] if padding >= 0 else []
        return te.all(*inside)

    def value(b: Expr, j: Expr) -> te.Reduction:
        v = x[from_end(ids[r], x.shape[0]), j]
        if kind == "max":
            return te.max(te.select(mine(b), v, limit(x.dtype, -1)), axis=r)
        return te.sum(te.select(mine(b), v if by is None else v * by[r], number(0, wide)), axis=r)

    total = stage((count, x.shape[1]), value, "bag")
    if kind == "sum":
        return cast(total, x.dtype)
    one, none = te.const(1, "int32"), te.const(0, "int32")
    sizes = stage((count,), lambda b: te.sum(te.select(mine(b), one, none), axis=r), "size")

    def finish(b: Expr, j: Expr) -> Expr:
        if kind == "max":
            return te.cast(te.select(sizes[b] > 0, total[b, j], number(0, total.dtype)), x.dtype)
        return te.cast(total[b, j] / te.cast(te.maximum(sizes[b], 1), total.dtype), x.dtype)

    return stage(total.shape, finish, kind)
