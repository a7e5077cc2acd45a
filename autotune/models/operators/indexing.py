"""Operators whose indices are data. Indices below 0 count from the end. Those outside are cut off at the
ends, so that no data lets a kernel read outside of a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from autotune.models.operators.axes import positive, reshape
from autotune.models.operators.base import Array, Operand, UnsupportedForm, cast, number, read, stage
from autotune.models.operators.known import KnownTensor, Value
from autotune.models.operators.movement import part, strided_slice
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Axis, Ids, Int, Values, aten, onnx_op
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr
from schedules.ops.axes import broadcast
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


@onnx_op("GatherElements")
def gather_elements(x: te.Tensor, ids: Ids, axis: Axis = 0) -> te.Tensor:
    """numpy's take_along_axis: the index of ``axis`` is read at the same place."""
    size = x.shape[axis]
    if len(ids.shape) != len(x.shape) or any(
        n > m for d, (n, m) in enumerate(zip(ids.shape, x.shape, strict=True)) if d != axis
    ):
        raise ValueError(f"indices of {list(ids.shape)} for data of {list(x.shape)} along axis {axis}")

    def value(*at: Expr) -> Expr:
        return x[(*at[:axis], from_end(ids[at], size), *at[axis + 1 :])]

    return stage(ids.shape, value, "gather")


@onnx_op("GatherND")
def gather_nd(x: te.Tensor, ids: Ids, batch_dims: int = 0) -> te.Tensor:
    """The last axis of ``ids`` indexes the axes of ``x`` after the first ``batch_dims``, which both share."""
    depth, batch = ids.shape[-1], batch_dims
    if ids.shape[:batch] != x.shape[:batch] or batch + depth > len(x.shape):
        raise ValueError(f"indices of {list(ids.shape)} for data of {list(x.shape)} after {batch} axes")
    front = len(ids.shape) - 1

    def value(*at: Expr) -> Expr:
        own = [from_end(ids[(*at[:front], d)], x.shape[batch + d]) for d in range(depth)]
        return x[(*at[:batch], *own, *at[front:])]

    return stage((*ids.shape[:-1], *x.shape[batch + depth :]), value, "gather")


@onnx_op("OneHot")
def one_hot(ids: te.Tensor, depth: Int, values: Value, axis: int = -1) -> te.Tensor:
    """The second of the ``values`` where the index is that of the new ``axis``, else the first."""
    if depth < 1:
        raise ValueError(f"depth {depth} is below 1")
    if values.shape != (2,):
        raise ValueError(f"its values are of shape {list(values.shape)}, not two numbers")
    if isinstance(values, KnownTensor):
        two: list[Operand] = [values.array()[i : i + 1].reshape(()) for i in range(2)]
    else:
        two = [reshape(part(values, 0, i, 1), ()) for i in range(2)]
    axis, dtype = positive(axis, len(ids.shape) + 1), values.dtype
    kind = ids.dtype if ids.dtype in ("int32", "int64", "float32", "float64") else "int32"

    def value(*at: Expr) -> Expr:
        own = te.cast(ids[(*at[:axis], *at[axis + 1 :])], kind)
        own = te.select(own < 0, own + depth, own)
        off, on = (te.cast(read(x, ()), dtype) for x in two)
        return te.select(te.equal(own, te.cast(at[axis], kind)), on, off)

    return stage((*ids.shape[:axis], depth, *ids.shape[axis:]), value, "one_hot")


@onnx_op("ReverseSequence", names={"batch": "batch_axis", "time": "time_axis"})
def reverse_sequence(x: te.Tensor, lengths: Ids, batch: Axis, time: Axis) -> te.Tensor:
    """The first elements of each sequence along the axis ``time`` backwards, as many as its length is."""
    if batch == time or lengths.shape != (x.shape[batch],):
        raise ValueError(f"lengths of {list(lengths.shape)} for batch axis {batch} and time axis {time}")

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


# --- rows -------------------------------------------------------------------------------------

# Most pairs of a bag and an index, where each bag asks all indices whether they are its own.
MOST_PAIRS = 2**24


@onnx_op("Gather")
def _gather(node: OnnxNode, x: te.Tensor, ids: Value, *, axis: Axis = 0) -> te.Tensor:
    """Indices that are known and evenly apart are a slice."""
    if isinstance(ids, KnownTensor) and not ids.weight and 0 not in ids.shape:
        size, given = x.shape[axis], ids.array()
        flat = np.where(given < 0, given + size, given).reshape(-1)
        if flat.min() < 0 or flat.max() >= size:
            raise ValueError(f"an index is outside {-size}..{size - 1}")
        if (cut := evenly_apart(x, flat, axis)) is not None:
            return reshape(cut, (*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]))
    return gather(x, node.ids(ids), axis)


@onnx_op("Compress")
def _compress(node: OnnxNode, x: te.Tensor, condition: Values, *, axis: Axis | None = None) -> te.Tensor:
    """The slices of an axis, or the elements, where a known mask is true."""
    kept = np.flatnonzero(condition)
    if not kept.size:
        raise UnsupportedForm("its condition takes no element")
    if axis is None:
        x, axis = reshape(x, (math.prod(x.shape),)), 0
    return _gather(node, x, KnownTensor(kept), axis=axis)


@aten("gather.default", along=True, shaped=True)
def _gather_along(x: te.Tensor, dim: Axis, ids: Ids, sparse_grad: bool = False) -> te.Tensor:
    return gather_elements(x, ids if ids.shape else reshape(ids, (1,)), dim)


@aten("embedding.default")
def _embedding(
    node: TorchNode, table: te.Tensor, ids: Value, padding_idx: int = -1, *how: bool
) -> te.Tensor:
    return _taken(node, table, 0, ids)


@aten("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(
    node: TorchNode, table: te.Tensor, ids: Ids, offsets: Value, scale_grad: bool = False, mode: int = 0,
    sparse: bool = False, weights: te.Tensor | None = None, last_offset: bool = False, padding: int = -1,
) -> list[te.Tensor | None]:  # fmt: skip
    """Bags of one size where the offsets are known to say so."""
    node.only(1)
    kind = ("sum", "mean", "max")[mode]
    count, n = node.shape[0], ids.shape[0]
    if isinstance(offsets, KnownTensor) and not offsets.weight and padding < 0 and n % count == 0:
        if offsets.array().tolist() == [i * (n // count) for i in range(offsets.shape[0])]:
            return [equal_bags(table, ids, weights, count, kind), None, None, None]
    if count * n > MOST_PAIRS:
        raise UnsupportedForm(f"its {count} bags would each ask {n} indices, and where bags end is data")
    return [bags(table, ids, weights, node.tensor(offsets), count, kind, padding), None, None, None]


@aten("index_select.default", along=True, shaped=True)
def _taken(node: TorchNode, x: te.Tensor, dim: Axis, ids: Value) -> te.Tensor:
    """Indices that are known and evenly apart are a slice. One may be given without an axis."""
    if isinstance(ids, KnownTensor) and not ids.weight and 0 not in ids.shape:
        flat = ids.array().reshape(-1)
        inside = flat.min() >= 0 and flat.max() < x.shape[dim]
        if inside and (cut := evenly_apart(x, flat, dim)) is not None:
            return reshape(cut, node.shape)
    return gather(x, node.ids(ids), dim)


@aten("index.Tensor", "_unsafe_index.Tensor")
def _index(node: TorchNode, x: te.Tensor, indices: Sequence[Value | None]) -> te.Tensor:
    """numpy's advanced indexing: the tensors broadcast, and their axes stand where the first of them does, or
    in front where others stand between."""
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if any(i.dtype in ("bool", "uint8") for i in given.values()):
        raise UnsupportedForm("the shape of its output depends on data")
    if len(given) == 1:
        ((axis, ids),) = given.items()
        return _taken(node, x, axis, ids)
    tensors = {d: node.ids(i) for d, i in given.items()}
    outer = np.broadcast_shapes(*(i.shape for i in tensors.values()))
    first = first_of(tensors)

    def value(*at: Expr) -> Expr:
        own, rest = at[first : first + len(outer)], iter((*at[:first], *at[first + len(outer) :]))
        return x[
            tuple(
                from_end(tensors[d][broadcast(tensors[d].shape, own)], n) if d in tensors else next(rest)
                for d, n in enumerate(x.shape)
            )
        ]

    return stage(node.shape, value, "gather")


def first_of(axes: Iterable[int]) -> int:
    """Where the axes of indices that broadcast stand: where the first of them does, or in front where others
    stand between."""
    where = sorted(axes)
    return where[0] if where[-1] - where[0] == len(where) - 1 else 0
