"""Writes to places that are data.

Updates of a place that are folded by a sum, a maximum or a minimum are scattered: work is the number of
updates. All others are stated as reads: every element asks which of the updates are for it. So nothing is
written twice, and results do not depend on an order; work is the number of elements times that of the updates
that each asks. Of several updates of one place the last one stays, unless they are folded. An update whose
place is outside is dropped; a place below 0 counts from the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.models.operators.axes import reshape
from autotune.models.operators.base import UnsupportedForm, axis_names, cast, number, stage
from autotune.models.operators.elementwise import where
from autotune.models.operators.indexing import first_of, from_end
from autotune.models.operators.known import Scalar, Value
from autotune.models.operators.movement import expand, pad
from autotune.models.operators.node import TorchNode
from autotune.models.operators.reduction import cumulative
from autotune.models.operators.table import Axis, Cast, Ids, Ints, aten, onnx_op
from schedules import te
from schedules.dtypes import DTYPES, computed
from schedules.expr import Expr, ExprLike, dtype_of, wrap
from schedules.ops.axes import broadcast, named
from schedules.te.extent import is_open
from schedules.te.scalars import limit
from schedules.te.tensors import IterVar

# Most comparisons of elements with updates.
MOST = 2**32
# Fewest updates that each element would ask where they are scattered.
PUSHED = 5


@dataclass(frozen=True)
class Fold:
    """What is made of the updates of one place. ``kind``: "last", "add", "mul", "max", "min" or "mean".
    ``own``: the element that was there is one of them."""

    kind: str
    own: bool = True


LAST = Fold("last")
# {kind: (reduction, what joins two, what changes nothing in a dtype)}.
_FOLDS: dict[str, tuple[Callable[..., te.Reduction], Callable[[Expr, Expr], Expr], Callable[[str], Expr]]] = {
    "add": (te.sum, lambda a, b: a + b, lambda dtype: number(0, dtype)),
    "mean": (te.sum, lambda a, b: a + b, lambda dtype: number(0, dtype)),
    "mul": (te.prod, lambda a, b: a * b, lambda dtype: number(1, dtype)),
    "max": (te.max, te.maximum, lambda dtype: limit(dtype, -1)),
    "min": (te.min, te.minimum, lambda dtype: limit(dtype, 1)),
}
# place(index of an update): for each dimension the axis of the update that it has, or the index that is data.
Place = Callable[[Sequence[ExprLike]], Sequence[ExprLike]]
# value(index of an update): what it writes.
Written = Callable[[Sequence[ExprLike]], ExprLike]


def _afford(elements: int, updates: int) -> None:
    """Raise UnsupportedForm for more comparisons than an expression has."""
    if elements * updates > MOST:
        raise UnsupportedForm(
            f"its {elements} elements would each be compared with {updates} updates, more than {MOST} "
            "comparisons"
        )


@dataclass(frozen=True)
class _Updates:
    """Updates of ``x``. ``shape``: of the part of it that may be updated. ``inside``: conditions for an
    element to be in it. ``points``: extents of the updates. ``rows``: {dimension of ``x``: the axis of an
    update that it has}; ``place`` tells the others. Every element asks all updates of its rows, which have
    the ``extents``, with reduction axes ``over`` and the index ``u``."""

    x: te.Tensor
    shape: Sequence[int]
    inside: Callable[[Sequence[Expr]], Sequence[Expr]]
    points: Sequence[int]
    rows: Mapping[int, int]
    place: Place
    written: Written
    over: Sequence[IterVar]
    u: Sequence[ExprLike]

    @property
    def extents(self) -> list[int]:
        return [n for a, n in enumerate(self.points) if a not in self.rows.values()]

    def update(self, at: Sequence[Expr], index: Sequence[ExprLike]) -> list[ExprLike]:
        """The index of an update among all, of one in the rows of an element."""
        own, rest = {a: at[d] for d, a in self.rows.items()}, iter(index)
        return [own[a] if a in own else next(rest) for a in range(len(self.points))]

    def found(self, at: Sequence[Expr], index: Sequence[ExprLike]) -> Expr:
        """Whether an update is for an element."""
        place = self.place(self.update(at, index))
        data = [(at[d], i) for d, i in enumerate(place) if d not in self.rows]
        return te.all(*(te.equal(i, te.cast(own, dtype_of(wrap(i)))) for own, i in data))

    def value(self, at: Sequence[Expr], index: Sequence[ExprLike], dtype: str) -> Expr:
        """What an update writes."""
        return te.cast(self.written(self.update(at, index)), dtype)

    def finish(
        self, value: Callable[[Sequence[Expr]], Expr], there: Callable[[Sequence[Expr]], Expr | None]
    ) -> te.Tensor:
        """``x`` with new values where they are there, everywhere for None."""

        def out(*at: Expr) -> Expr:
            made = te.cast(value(at), self.x.dtype)
            if (cond := there(at)) is not None:
                made = te.select(cond, made, self.x[at])
            part = self.inside(at)
            return te.select(te.all(*part), made, self.x[at]) if part else made

        return stage(self.x.shape, out, "scatter")


def _updated(
    x: te.Tensor, shape: Sequence[int], inside: Callable[[Sequence[Expr]], Sequence[Expr]],
    points: Sequence[int], rows: Mapping[int, int], place: Place, written: Written, fold: Fold,
) -> te.Tensor:  # fmt: skip
    """``x`` with updates; the arguments are those of `_Updates`."""
    updates = [n for a, n in enumerate(points) if a not in rows.values()]
    over = [te.reduce_axis(n, f"r{d}") for d, n in enumerate(updates) if n > 1]
    rest = iter(over)
    u: list[ExprLike] = [next(rest) if n > 1 else 0 for n in updates]
    all_ = _Updates(x, shape, inside, points, rows, place, written, over, u)
    if fold.kind in _PUSHED and math.prod(updates) >= PUSHED and not any(map(is_open, (*shape, *points))):
        return _with_folded(all_, fold, _pushed)
    _afford(math.prod(shape), math.prod(updates))
    return _with_last(all_) if fold.kind == "last" else _with_folded(all_, fold, _asked)


def _with_last(us: _Updates) -> te.Tensor:
    """Of the updates of a place the last one."""
    dtype = us.x.dtype if us.x.dtype == "bool" else computed(us.x.dtype)
    if not us.over:
        return us.finish(lambda at: us.value(at, us.u, dtype), lambda at: us.found(at, us.u))
    flat: ExprLike = 0
    for i, n in zip(us.u, us.extents, strict=True):
        flat = flat * n + i if n > 1 else flat

    def last(*at: Expr) -> te.Reduction:
        chosen = te.select(us.found(at, us.u), te.cast(flat, "int32"), te.const(-1, "int32"))
        return te.max(chosen, axis=tuple(us.over))

    latest = stage(us.shape, last, "latest")

    def of_latest(at: Sequence[Expr]) -> Expr:
        place = te.maximum(latest[tuple(at)], 0)
        index: list[ExprLike] = [0] * len(us.extents)
        for d in reversed([d for d, n in enumerate(us.extents) if n > 1]):
            index[d], place = place % us.extents[d], place // us.extents[d]
        return us.value(at, index, dtype)

    return us.finish(of_latest, lambda at: latest[tuple(at)] >= 0)


# {kind: what scatters the updates}.
_PUSHED = {"add": te.scatter_add, "mean": te.scatter_add, "max": te.scatter_max, "min": te.scatter_min}
# (updates, kind of the fold, dtype, what each writes instead, name) to one value for each element.
Joined = Callable[[_Updates, str, str, "Expr | None", str], te.Tensor]


def _pushed(us: _Updates, kind: str, dtype: str, instead: Expr | None, name: str) -> te.Tensor:
    """Each update goes to its element."""
    axes = axis_names(len(us.points))

    def value(*p: Expr) -> Expr:
        return te.cast(us.written(p), dtype) if instead is None else instead

    index = named(axes, lambda *p: tuple(us.place(p)))
    return _PUSHED[kind](us.shape, index, named(axes, value), us.points, name=name)


def _asked(us: _Updates, kind: str, dtype: str, instead: Expr | None, name: str) -> te.Tensor:
    """Each element asks all updates of its rows."""
    reduction, _, neutral = _FOLDS[kind]

    def all_of(*at: Expr) -> Expr | te.Reduction:
        own = us.value(at, us.u, dtype) if instead is None else instead
        mine = te.select(us.found(at, us.u), own, neutral(dtype))
        return reduction(mine, axis=tuple(us.over)) if us.over else mine

    return stage(us.shape, all_of, name)


def _with_folded(us: _Updates, fold: Fold, joined: Joined) -> te.Tensor:
    """All updates of a place as one."""
    _, join, _ = _FOLDS[fold.kind]
    wide = computed(us.x.dtype) if us.x.dtype != "bool" else "int32"
    one = te.const(1, "int32")
    total = joined(us, fold.kind, wide, None, fold.kind)
    counts = joined(us, "add", "int32", one, "count") if fold.kind == "mean" or not fold.own else None

    def value(at: Sequence[Expr]) -> Expr:
        t = total[tuple(at)]
        made = join(te.cast(us.x[tuple(at)], wide), t) if fold.own else t
        if fold.kind == "mean":
            assert counts is not None
            n = counts[tuple(at)] + (1 if fold.own else 0)
            made = made / te.cast(te.maximum(n, 1), wide)
        return made

    return us.finish(value, lambda at: None if counts is None else counts[tuple(at)] > 0)


def scatter_elements(
    x: te.Tensor, ids: te.Tensor, src: te.Tensor | Expr, axis: int, fold: Fold = LAST
) -> te.Tensor:
    """Each element of ``src`` goes to the same place in ``x``, but for the place along an axis, which ``ids``
    has: numpy's put_along_axis. ``src`` may be one number. Raises ValueError for shapes that do not fit."""
    if len(ids.shape) != len(x.shape) or any(
        n > m for d, (n, m) in enumerate(zip(ids.shape, x.shape, strict=True)) if d != axis
    ):
        raise ValueError(f"indices of {list(ids.shape)} for data of {list(x.shape)} along axis {axis}")
    shape = [x.shape[axis] if d == axis else n for d, n in enumerate(ids.shape)]

    def inside(at: Sequence[Expr]) -> list[Expr]:
        return [at[d] < n for d, n in enumerate(shape) if n < x.shape[d]]

    def place(p: Sequence[ExprLike]) -> list[ExprLike]:
        return [*p[:axis], from_end(ids[tuple(p)], x.shape[axis]), *p[axis + 1 :]]

    def written(p: Sequence[ExprLike]) -> Expr:
        return src[tuple(p)] if isinstance(src, te.Tensor) else src

    rows = {d: d for d in range(len(shape)) if d != axis}
    return _updated(x, shape, inside, ids.shape, rows, place, written, fold)


def scatter_slices(
    x: te.Tensor, ids: Sequence[tuple[int, te.Tensor]], src: te.Tensor, outer: Sequence[int], first: int,
    fold: Fold = LAST,
) -> te.Tensor:  # fmt: skip
    """numpy's ``x[..., ids, ...] = src``. ``ids`` has tensors for some axes of ``x``, which broadcast to
    ``outer``. ``src`` broadcasts to the shape of ``x`` without these axes, with ``outer`` at ``first``."""
    where = [d for d, _ in ids]
    kept = [d for d in range(len(x.shape)) if d not in where]

    data, count = dict(ids), len(outer)

    def place(p: Sequence[ExprLike]) -> list[ExprLike]:
        rest = iter(p[count:])
        return [
            from_end(data[d][broadcast(data[d].shape, p[:count])], n) if d in data else next(rest)  # type: ignore[arg-type]
            for d, n in enumerate(x.shape)
        ]

    def written(p: Sequence[ExprLike]) -> Expr:
        rest = p[count:]
        return src[broadcast(src.shape, [*rest[:first], *p[:count], *rest[first:]])]  # type: ignore[list-item]

    rows = {d: count + k for k, d in enumerate(kept)}
    points = [*outer, *(x.shape[d] for d in kept)]
    return _updated(x, x.shape, lambda at: [], points, rows, place, written, fold)


def scatter_nd(x: te.Tensor, ids: te.Tensor, src: te.Tensor, fold: Fold = LAST) -> te.Tensor:
    """ONNX's ScatterND: the last axis of ``ids`` indexes the first axes of ``x``, and ``src`` has what is
    written there. Raises ValueError for shapes that do not fit."""
    depth, outer = ids.shape[-1], ids.shape[:-1]
    if depth > len(x.shape) or src.shape != (*outer, *x.shape[depth:]):
        raise ValueError(
            f"updates of {list(src.shape)} at indices of {list(ids.shape)} for data of {list(x.shape)}"
        )

    def place(p: Sequence[ExprLike]) -> list[ExprLike]:
        u, rest = p[: len(outer)], p[len(outer) :]
        return [*(from_end(ids[(*u, d)], x.shape[d]) for d in range(depth)), *rest]

    rows = {d: len(outer) + d - depth for d in range(depth, len(x.shape))}
    points = [*outer, *x.shape[depth:]]
    return _updated(x, x.shape, lambda at: [], points, rows, place, lambda p: src[tuple(p)], fold)


def masked_scatter(x: te.Tensor, mask: te.Tensor, src: te.Tensor) -> te.Tensor:
    """``x`` where the mask is not set, and the elements of ``src`` in order where it is."""
    size = math.prod(x.shape)
    flat = reshape(cast(mask, "int32"), (size,))
    before = reshape(cumulative(flat, 0, True, False, te.sum), x.shape)
    row = reshape(src, (math.prod(src.shape),))

    def value(*at: Expr) -> Expr:
        return te.cast(te.select(mask[at], row[before[at]], x[at]), x.dtype)

    return stage(x.shape, value, "masked_scatter")


# --- rows of ONNX -----------------------------------------------------------------------------


def _fold(name: str, dtype: str) -> Fold:
    """Of several updates of one place ONNX lets any stay without a reduction."""
    if name == "none":
        return LAST
    if name not in ("add", "mul", "max", "min"):
        raise ValueError(f"reduction {name!r} is unknown")
    if dtype == "bool":
        raise UnsupportedForm("reductions of bool are not supported by it")
    return Fold(name)


@onnx_op("ScatterElements", "Scatter")
def _scatter_elements(
    x: te.Tensor, ids: Ids, updates: te.Tensor, *, axis: Axis = 0, reduction: str = "none"
) -> te.Tensor:
    if updates.shape != ids.shape:
        raise ValueError(f"updates of {list(updates.shape)} at indices of {list(ids.shape)}")
    return scatter_elements(x, ids, updates, axis, _fold(reduction, x.dtype))


@onnx_op("ScatterND")
def _scatter_nd(x: te.Tensor, ids: Ids, updates: te.Tensor, *, reduction: str = "none") -> te.Tensor:
    return scatter_nd(x, ids, updates, _fold(reduction, x.dtype))


@onnx_op("TensorScatter")
def _tensor_scatter(
    x: te.Tensor, update: te.Tensor, first: Ids | None = None, *, axis: Axis = -2, mode: str = "linear"
) -> te.Tensor:
    """Writes a part of a sequence into a cache, from a place on that each batch has."""
    size, count = x.shape[axis], update.shape[axis]

    def value(*at: Expr) -> Expr:
        start = te.const(0, "int64") if first is None else first[at[0]]
        i = te.cast(at[axis], "int64" if first is None else first.dtype) - start
        if mode == "circular":
            i = i % size
        own = update[(*at[:axis], i, *at[axis + 1 :])]
        return te.select(te.all(i >= 0, i < count), own, x[at])

    return stage(x.shape, value, "scatter")


@onnx_op("MaxUnpool")
def _max_unpool(
    x: te.Tensor, ids: Ids, output_shape: Ints | None = None, *, kernel_shape: Sequence[int],
    strides: Sequence[int] | None = None, pads: Sequence[int] | None = None,
) -> te.Tensor:  # fmt: skip
    """Elements go to the places that a pool took them from, which count through the whole output."""
    rank = len(x.shape) - 2
    strides, pads = strides or [1] * rank, pads or [0] * 2 * rank
    every = zip(x.shape[2:], kernel_shape, strides, pads[:rank], pads[rank:], strict=True)
    inferred = (*x.shape[:2], *((n - 1) * by - lo - hi + k for n, k, by, lo, hi in every))
    out = inferred if output_shape is None else tuple(output_shape)
    if len(out) != len(x.shape) or any(n < 1 for n in out):
        raise ValueError(f"output_shape {list(out)} for data of {list(x.shape)}")
    made = reshape(_unpooled(x, ids, (), math.prod(inferred)), inferred)
    if out == inferred:
        return made
    # The places were counted in the smaller output, which stands at the beginning of the larger one.
    if any(n < m for n, m in zip(out, inferred, strict=True)):
        raise UnsupportedForm(f"output_shape {list(out)} is smaller than {list(inferred)}")
    return pad(made, [(0, n - m) for n, m in zip(out, inferred, strict=True)], fill=te.const(0, x.dtype))


def _unpooled(x: te.Tensor, ids: te.Tensor, front: tuple[int, ...], size: int) -> te.Tensor:
    """The elements of each row at places of a row of ``size``, and 0 elsewhere. ``front``: the rows."""
    rows = (*front, math.prod(x.shape) // math.prod(front))
    zeros = stage((*front, size), lambda *at: te.const(0, x.dtype), "zeros")
    return scatter_elements(zeros, reshape(ids, rows), reshape(x, rows), len(front))


# --- rows of ATen -----------------------------------------------------------------------------

# {how torch calls a fold: its kind}.
_KINDS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "mean": "mean", "amax": "max"}
_KINDS["amin"] = "min"


def _fold_of(node: TorchNode, name: str, own: bool = True) -> Fold:
    if node.dtype == "bool":
        raise UnsupportedForm("bool is not supported by it")
    if name == "mean" and DTYPES[node.dtype].kind != "float":
        raise UnsupportedForm("means of integers have no expression")
    return Fold(_KINDS[name], own)


@aten(
    "scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce", "scatter_add.default",
    "scatter_reduce.two", along=True, shaped=True,
)  # fmt: skip
def _scatter(
    node: TorchNode, x: te.Tensor, dim: Axis, ids: Ids, src: Value | Scalar, reduce: str = "", *,
    include_self: bool = True,
) -> te.Tensor:  # fmt: skip
    """``src`` may be larger than the indices, and may be one number. Of several updates of one place the last
    one stays if they are not folded."""
    name = "sum" if node.name == "scatter_add" else reduce
    fold = _fold_of(node, name, include_self) if name else LAST
    if len(ids.shape) != len(x.shape):  # torch takes one number for a row of one
        ids = reshape(ids, (1,) * len(x.shape))
    if isinstance(src, (bool, int, float)):
        return scatter_elements(x, ids, node.number(src), dim, fold)
    written = node.cast(src)
    if len(written.shape) != len(x.shape):
        written = reshape(written, (1,) * len(x.shape))
    return scatter_elements(x, ids, written, dim, fold)


@aten("index_add.default", "index_copy.default", "index_reduce.default", along=True, shaped=True)
def _index_add(
    node: TorchNode, x: te.Tensor, dim: Axis, ids: Ids, src: Cast, reduce: str = "", *, alpha: Scalar = 1,
    include_self: bool = True,
) -> te.Tensor:  # fmt: skip
    """Slices along an axis."""
    ids, src = reshape(ids, (math.prod(ids.shape),)), src if src.shape else reshape(src, (1,))
    if alpha != 1:
        by = te.const(alpha, computed(src.dtype))
        plain = src
        src = stage(plain.shape, lambda *at: te.cast(plain[at] * by, plain.dtype), "scaled")
    fold = LAST
    if node.name != "index_copy":
        fold = _fold_of(node, "sum" if node.name == "index_add" else reduce, include_self)
    return scatter_slices(x, [(dim, ids)], src, ids.shape, dim, fold)


@aten("embedding_dense_backward.default")
def _embedding_backward(
    node: TorchNode, dy: te.Tensor, ids: Ids, rows: int, padding_idx: int, by_count: bool
) -> te.Tensor:
    """The gradient of a table: rows that were read several times get all that was for them."""
    if by_count:
        raise UnsupportedForm("gradients that are divided by how often a row is read are not supported")
    rank, depth = len(ids.shape), dy.shape[-1]

    def index(*p: Expr) -> tuple[Expr, Expr]:
        row = ids[p[:rank]]
        return te.select(te.equal(row, padding_idx), te.const(-1, ids.dtype), row), p[rank]

    axes = axis_names(rank + 1)
    total = te.scatter_add(
        (rows, depth), named(axes, index), named(axes, lambda *p: dy[p]), dy.shape, name="sum"
    )
    return cast(total, node.dtype)


@aten("index_put.default", "_unsafe_index_put.default")
def _index_put(
    node: TorchNode, x: te.Tensor, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> te.Tensor:
    """Indices of bool are a mask, under which all elements get one value."""
    given = {d: i for d, i in enumerate(indices) if i is not None}
    if any(i.dtype in ("bool", "uint8") for i in given.values()):
        return _masked(node, x, given, values, accumulate)
    tensors = [(d, node.ids(i)) for d, i in given.items()]
    outer = np.broadcast_shapes(*(i.shape for _, i in tensors))
    fold = _fold_of(node, "sum") if accumulate else LAST
    return scatter_slices(x, tensors, node.cast(values), outer, first_of(given), fold)


def _masked(
    node: TorchNode, x: te.Tensor, given: Mapping[int, Value], values: Value, accumulate: bool
) -> te.Tensor:
    first = min(given)
    if len(given) > 1 or math.prod(values.shape) != 1:
        raise UnsupportedForm("how many elements a mask takes depends on data: write one value under a mask")
    mask = node.cast(given[first], "bool")
    rest = len(x.shape) - first - len(mask.shape)
    under = expand(reshape(mask, (*[1] * first, *mask.shape, *[1] * rest)), x.shape)
    value = reshape(node.cast(values), ())
    if accumulate:
        if node.dtype == "bool":
            raise UnsupportedForm("bool is not supported by it")
        one = value
        value = stage(x.shape, lambda *at: te.cast(x[at] + one[()], x.dtype), "sum")
    return where(node, under, value, x)


@aten("masked_scatter.default")
def _masked_scatter(node: TorchNode, x: te.Tensor, mask: Value, src: Cast) -> te.Tensor:
    """The elements of ``src``, in order, where the mask is set."""
    return masked_scatter(expand(x, node.shape), expand(node.cast(mask, "bool"), node.shape), src)


@aten("put.default", shaped=True)
def _put(node: TorchNode, x: te.Tensor, ids: Ids, src: Cast, accumulate: bool = False) -> te.Tensor:
    """Places count through all elements."""
    fold = _fold_of(node, "sum") if accumulate else LAST
    flat = [reshape(t, (math.prod(t.shape),)) for t in (x, ids, src)]
    return scatter_elements(flat[0], flat[1], flat[2], 0, fold)


@aten("max_unpool2d.default", "max_unpool3d.default", shaped=True)
def _max_unpool_of(node: TorchNode, x: te.Tensor, ids: Ids, *how: Any) -> te.Tensor:
    """Elements go to the places that a pool took them from, all else is 0."""
    rank = int(node.name[-2])
    front, size = math.prod(node.shape[:-rank]), math.prod(node.shape[-rank:])
    return cast(_unpooled(x, ids, (front,), size), node.dtype)
