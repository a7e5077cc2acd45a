"""Operators whose indices are data. Indices below 0 count from the end. Those outside are cut off at the
ends, so that no data lets a kernel read outside of a tensor."""

from __future__ import annotations

from autotune.models.lowering.base import Operand, read, stage
from schedules import te
from schedules.expr import Expr


def from_end(index: Expr, extent: int) -> Expr:
    """An index that counts from the end where it is below 0."""
    return te.select(index < 0, index + extent, index)


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
