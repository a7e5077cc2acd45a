"""Operators that move elements. Views are copies in a graph, which its rewrites make disappear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.models.lowering import movement as m
from autotune.models.lowering.base import UnsupportedForm, positive, positives, stage
from autotune.models.lowering.indexing import gather
from autotune.models.torch_ops.table import KnownTensor, Scalar, TorchNode, Value, aten
from schedules import te
from schedules.expr import Expr


@aten("view.default", "reshape.default", "_unsafe_view.default")
def _view(node: TorchNode, x: Value, shape: Any) -> te.Tensor:
    return m.reshape(node.tensor(x), node.shape)


@aten(
    "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints",
    "unflatten.int",
)  # fmt: skip
def _reshaped(node: TorchNode, x: Value, *how: Any) -> te.Tensor:
    """What they take says no more than the shape of the output does."""
    return m.reshape(node.tensor(x), node.shape)


@aten("permute.default")
def _permute(node: TorchNode, x: Value, dims: Sequence[int]) -> te.Tensor:
    t = node.tensor(x)
    return m.transpose(t, positives(dims, len(t.shape)))


@aten("transpose.int")
def _transpose(node: TorchNode, x: Value, a: int, b: int) -> te.Tensor:
    t = node.tensor(x)
    perm = list(range(len(t.shape)))
    if perm:
        a, b = positive(a, len(perm)), positive(b, len(perm))
        perm[a], perm[b] = b, a
    return m.transpose(t, perm)


@aten("t.default", "numpy_T.default")
def _t(node: TorchNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    return m.transpose(t, list(range(len(t.shape)))[::-1])


@aten("expand.default", "expand_as.default")
def _expand(node: TorchNode, x: Value, shape: Any, implicit: bool = False) -> te.Tensor:
    return m.expand(node.tensor(x), node.shape)


@aten("as_strided.default")
def _as_strided(
    node: TorchNode, x: Value, size: Sequence[int], strides: Sequence[int], first: int
) -> te.Tensor:
    """Of a row-major tensor, from its element ``first`` on. Elements may be read several times."""
    t = node.tensor(x)
    last = first + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    if first < 0 or last >= math.prod(t.shape):
        raise UnsupportedForm("it reads the memory around a tensor")
    flat = m.reshape(t, (math.prod(t.shape),))

    def value(*at: Expr) -> Expr:
        return flat[first + sum(i * s for i, s in zip(at, strides, strict=True))]

    return stage(node.shape, value, "as_strided")


@aten("slice.Tensor")
def _slice(
    node: TorchNode, x: Value, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> te.Tensor:
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    places = range(t.shape[axis])[slice(start, end, step)]
    starts, steps = [0] * len(t.shape), [1] * len(t.shape)
    starts[axis], steps[axis] = places.start, step
    return m.strided_slice(t, starts, node.shape, steps)


@aten("select.int")
def _select(node: TorchNode, x: Value, dim: int, index: int | te.Tensor) -> te.Tensor:
    """The index may be the element of a tensor."""
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    if isinstance(index, te.Tensor):
        return gather(t, index, axis)
    return m.reshape(m.part(t, axis, index % t.shape[axis], 1), node.shape)


@aten("cat.default")
def _cat(node: TorchNode, xs: Sequence[Value], dim: int = 0) -> te.Tensor:
    """Old torch took tensors of shape (0,) of any other shape's company, so they are left out."""
    parts = [node.cast(x) for x in xs if not (isinstance(x, KnownTensor) and 0 in x.shape)]
    return m.concat(parts, positive(dim, len(node.shape)))


@aten("stack.default")
def _stack(node: TorchNode, xs: Sequence[Value], dim: int = 0) -> te.Tensor:
    axis = positive(dim, len(node.shape))
    shape = [1 if d == axis else n for d, n in enumerate(node.shape)]
    return m.concat([m.reshape(node.cast(x), shape) for x in xs], axis)


@aten("split_with_sizes.default", "split.Tensor", "split.sizes", "chunk.default", "tensor_split.sections")
def _split(node: TorchNode, x: Value, how: Any, dim: int = 0) -> list[Value | None]:
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    size = t.shape[axis]
    if isinstance(how, int):
        each = -(-size // how) if node.name == "chunk" else how
        sizes = [min(each, size - at) for at in range(0, size, each)]
        if node.name == "tensor_split":
            sizes = [size // how + (i < size % how) for i in range(how)]
    else:
        sizes = [int(n) for n in how]
    starts = np.cumsum([0, *sizes])
    return [_piece(t, axis, int(starts[i]), n) if i in node.used else None for i, n in enumerate(sizes)]


def _piece(t: te.Tensor, axis: int, start: int, extent: int) -> Value:
    """A part of an axis, which may have no elements."""
    if extent:
        return m.part(t, axis, start, extent)
    import torch

    shape = [0 if d == axis else n for d, n in enumerate(t.shape)]
    return KnownTensor(torch.empty(shape, dtype=getattr(torch, t.dtype)), False)


@aten("unbind.int")
def _unbind(node: TorchNode, x: Value, dim: int = 0) -> list[Value | None]:
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    rest = [n for d, n in enumerate(t.shape) if d != axis]
    return [m.reshape(m.part(t, axis, i, 1), rest) if i in node.used else None for i in range(t.shape[axis])]


@aten("flip.default", along=True)
def _flip(node: TorchNode, x: Value, dims: Sequence[int]) -> te.Tensor:
    t = node.tensor(x)
    return m.flip(t, positives(dims, len(t.shape)))


@aten("repeat.default", "tile.default")
def _repeat(node: TorchNode, x: Value, repeats: Sequence[int]) -> te.Tensor:
    t = node.tensor(x)
    rank = len(node.shape)
    t = m.reshape(t, [1] * (rank - len(t.shape)) + list(t.shape))
    return m.tile(t, [1] * (rank - len(repeats)) + [int(r) for r in repeats])


@aten("roll.default")
def _roll(node: TorchNode, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> te.Tensor:
    t = node.tensor(x)
    if not dims:
        flat = m.reshape(t, (math.prod(t.shape),))
        return m.reshape(_rolled(flat, {0: int(shifts[0])}), t.shape)
    by: dict[int, int] = {}
    for d, s in zip(positives(dims, len(t.shape)), shifts, strict=True):
        by[d] = int(s)
    return _rolled(t, by)


def _rolled(t: te.Tensor, by: dict[int, int]) -> te.Tensor:
    def value(*at: Expr) -> Expr:
        return t[tuple((i - by[d]) % t.shape[d] if by.get(d) else i for d, i in enumerate(at))]

    return stage(t.shape, value, "roll")


# --- pads -------------------------------------------------------------------------------------


def _sides(rank: int, pad: Sequence[int]) -> list[tuple[int, int]]:
    """torch gives the last axis first."""
    sides = [(0, 0)] * rank
    for i in range(len(pad) // 2):
        sides[rank - 1 - i] = (int(pad[2 * i]), int(pad[2 * i + 1]))
    return sides


@aten("constant_pad_nd.default")
def _pad(node: TorchNode, x: Value, pad: Sequence[int], value: Scalar = 0) -> te.Tensor:
    t = node.tensor(x)
    return m.pad(t, _sides(len(t.shape), pad), fill=te.const(value, t.dtype))


@aten(
    *(f"{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    "_pad_circular.default",
)
def _pad_like(node: TorchNode, x: Value, pad: Sequence[int]) -> te.Tensor:
    mode = {"reflection": "reflect", "replication": "edge"}.get(node.name.split("_")[0], "wrap")
    t = node.tensor(x)
    sides = _sides(len(t.shape), pad)
    # what is cut off comes back in no other mode
    return m.cut_and_pad(t, sides, mode) if mode == "wrap" else m.pad(t, sides, mode)


# --- writes to places that are known ----------------------------------------------------------


@aten("slice_scatter.default")
def _slice_scatter(
    node: TorchNode, x: Value, src: Value, dim: int = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> te.Tensor:  # fmt: skip
    """``x`` with ``src`` at every ``step``-th place of an axis."""
    t, s = node.tensor(x), node.cast(src)
    axis = positive(dim, len(t.shape))
    places = range(t.shape[axis])[slice(start, end, step)]
    if not len(places):
        return t
    first, last = places.start, places[-1]

    def value(*at: Expr) -> Expr:
        i = at[axis]
        inside = [i >= first] * (first > 0) + [i <= last] * (last < t.shape[axis] - 1)
        inside += [te.equal((i - first) % step, 0)] * (step > 1)
        own = s[(*at[:axis], (i - first) // step, *at[axis + 1 :])]
        return te.select(te.all(*inside), own, t[at]) if inside else own

    return stage(t.shape, value, "slice_scatter")


@aten("select_scatter.default")
def _select_scatter(node: TorchNode, x: Value, src: Value, dim: int, index: int) -> te.Tensor:
    t, s = node.tensor(x), node.cast(src)
    axis = positive(dim, len(t.shape))
    place = index % t.shape[axis]

    def value(*at: Expr) -> Expr:
        return te.select(te.equal(at[axis], place), s[(*at[:axis], *at[axis + 1 :])], t[at])

    return stage(t.shape, value, "select_scatter")


@aten("tril.default", "triu.default")
def _triangle(node: TorchNode, x: Value, diagonal: int = 0) -> te.Tensor:
    t = node.tensor(x)
    return m.trilu(t, np.asarray(diagonal), node.name == "triu")


@aten("diagonal.default")
def _diagonal(node: TorchNode, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> te.Tensor:
    t = node.tensor(x)
    a, b = positive(dim1, len(t.shape)), positive(dim2, len(t.shape))

    def value(*at: Expr) -> Expr:
        rest, i = iter(at[:-1]), at[-1]
        both = {a: i + max(-offset, 0), b: i + max(offset, 0)}
        return t[tuple(both[d] if d in both else next(rest) for d in range(len(t.shape)))]

    return stage(node.shape, value, "diagonal")


@aten("unfold.default", along=True)
def _unfold(node: TorchNode, x: Value, dim: int, size: int, step: int) -> te.Tensor:
    """Windows of an axis; the last axis goes through a window."""
    t = node.tensor(x)
    axis = positive(dim, len(t.shape))
    count = (t.shape[axis] - size) // step + 1

    def value(*at: Expr) -> Expr:
        return t[tuple(i * step + at[-1] if d == axis else i for d, i in enumerate(at[:-1]))]

    return stage((*t.shape[:axis], count, *t.shape[axis + 1 :], size), value, "unfold")


@aten("pixel_shuffle.default", "pixel_unshuffle.default")
def _pixel_shuffle(node: TorchNode, x: Value, factor: int) -> te.Tensor:
    """Of the last three axes."""
    t = node.tensor(x)
    images = m.reshape(t, (math.prod(t.shape[:-3]), *t.shape[-3:]))
    if node.name == "pixel_shuffle":
        made = m.depth_to_space(images, factor, "CRD")
    else:
        made = m.space_to_depth(images, factor, "CRD")
    return m.reshape(made, node.shape)


@aten("diagonal_scatter.default")
def _diagonal_scatter(
    node: TorchNode, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> te.Tensor:
    """``x`` with ``src`` on a diagonal of two axes. Other axes come first in ``src``."""
    t, s = node.tensor(x), node.cast(src)
    a, b = positive(dim1, len(t.shape)), positive(dim2, len(t.shape))

    def value(*at: Expr) -> Expr:
        place = at[a] - max(-offset, 0)
        inside = te.all(te.equal(at[b] - at[a], offset), place >= 0, place < s.shape[-1])
        rest = [i for d, i in enumerate(at) if d not in (a, b)]
        return te.select(inside, s[(*rest, place)], t[at])

    return stage(t.shape, value, "diagonal_scatter")
