"""Operators that tell shapes, and those that move elements. Views are copies in a graph, which its rewrites
make disappear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune.models.operators.axes import positive, positives, reshape, within, without
from autotune.models.operators.base import Operand, UnsupportedForm, stage
from autotune.models.operators.indexing import gather
from autotune.models.operators.known import KnownTensor, Scalar, Value
from autotune.models.operators.movement import (
    concat,
    cut_and_pad,
    depth_to_space,
    expand,
    pad,
    part,
    space_to_depth,
    strided_slice,
    tile,
    transpose,
    trilu,
)
from autotune.models.operators.node import OnnxNode, OperatorNode, TorchNode, numpy_type
from autotune.models.operators.table import Axes, Axis, Cast, Ints, aten, onnx_op
from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr

# Most elements of a value that is made at import of a shape alone.
MOST = 2**26


@onnx_op("Identity")
@aten("clone.default", "contiguous.default", "detach.default", "alias.default", "lift_fresh_copy.default")
def _same(x: Value, **how: Any) -> Value:
    """Where elements lie is not a part of what is computed."""
    return x


# --- shapes -----------------------------------------------------------------------------------


@onnx_op("Shape")
def _shape(x: Value, *, start: int = 0, end: int | None = None) -> KnownTensor:
    return KnownTensor(np.array(x.shape[slice(start, end)], np.int64))


@onnx_op("Size")
def _size(x: Value) -> KnownTensor:
    return KnownTensor(np.array(math.prod(x.shape), np.int64))


@onnx_op("EyeLike")
def _eye_like(x: Value, *, dtype: int | None = None, k: int = 0) -> KnownTensor:
    if math.prod(x.shape) > MOST:
        raise ValueError(f"a known value of shape {list(x.shape)}, more than {MOST} elements")
    rows, columns = x.shape
    return KnownTensor(np.eye(rows, columns, k=k, dtype=x.dtype if dtype is None else numpy_type(dtype)))


@onnx_op("Reshape", since=5)
def _reshape(x: te.Tensor, shape: Ints, *, allowzero: bool = False) -> te.Tensor:
    if not allowzero:
        if any(n == 0 and d >= len(x.shape) for d, n in enumerate(shape)):
            raise ValueError(f"shape {shape} copies a dimension that {list(x.shape)} does not have")
        shape = [x.shape[d] if n == 0 else n for d, n in enumerate(shape)]
    size, known = math.prod(x.shape), math.prod(n for n in shape if n != -1)
    if any(n < -1 for n in shape) or shape.count(-1) > 1 or (-1 in shape and (not known or size % known)):
        raise ValueError(f"{list(x.shape)} does not fit shape {shape}")
    return reshape(x, [size // known if n == -1 else n for n in shape])


@onnx_op("Flatten")
def _flatten(x: te.Tensor, *, axis: int = 1) -> te.Tensor:
    if not -len(x.shape) <= axis <= len(x.shape):
        raise ValueError(f"axis {axis} is outside its input's axes")
    axis = axis + len(x.shape) if axis < 0 else axis
    return reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@onnx_op("Squeeze")
def _squeeze(x: te.Tensor, axes: Axes | None = None) -> te.Tensor:
    which = [d for d, n in enumerate(x.shape) if n == 1] if axes is None else axes
    if bad := [d for d in which if x.shape[d] != 1]:
        raise ValueError(f"axis {bad[0]} of {list(x.shape)} is not of extent 1")
    return reshape(x, without(x.shape, which))


@onnx_op("Unsqueeze")
def _unsqueeze(x: te.Tensor, axes: Ints | None = None) -> te.Tensor:
    where = positives(axes or [], len(x.shape) + len(axes or []))
    return reshape(x, within(x.shape, where, [1] * len(where)))


@aten(
    "view.default", "reshape.default", "_unsafe_view.default", "unsqueeze.default", "squeeze.default",
    "squeeze.dim", "squeeze.dims", "flatten.using_ints", "unflatten.int", shaped=True,
)  # fmt: skip
def _reshaped(x: te.Tensor, *how: Any) -> te.Tensor:
    """What they take says no more than the shape of the output does."""
    return x


@onnx_op("Expand")
def _expand(x: te.Tensor, shape: Ints) -> te.Tensor:
    return expand(x, np.broadcast_shapes(x.shape, tuple(shape)))


@aten("expand.default", "expand_as.default")
def _expand_to(node: TorchNode, x: te.Tensor, shape: Any, implicit: bool = False) -> te.Tensor:
    return expand(x, node.shape)


@aten("repeat.default", "tile.default")
def _repeat(node: TorchNode, x: te.Tensor, repeats: Sequence[int]) -> te.Tensor:
    rank = len(node.shape)
    x = reshape(x, [1] * (rank - len(x.shape)) + list(x.shape))
    return tile(x, [1] * (rank - len(repeats)) + [int(r) for r in repeats])


# --- the order of elements --------------------------------------------------------------------


@aten("permute.default")
def _permute(x: te.Tensor, dims: Axes) -> te.Tensor:
    return transpose(x, dims)


@aten("transpose.int")
def _transpose(x: te.Tensor, a: int, b: int) -> te.Tensor:
    perm = list(range(len(x.shape)))
    if perm:
        a, b = positive(a, len(perm)), positive(b, len(perm))
        perm[a], perm[b] = b, a
    return transpose(x, perm)


@aten("roll.default", shaped=True)
def _roll(x: te.Tensor, shifts: Sequence[int], dims: Axes = ()) -> te.Tensor:
    t = x if dims else reshape(x, (math.prod(x.shape),))
    by = {d: int(s) for d, s in zip(dims or (0,), shifts, strict=True)}

    def value(*at: Expr) -> Expr:
        return t[tuple((i - by[d]) % t.shape[d] if by.get(d) else i for d, i in enumerate(at))]

    return stage(t.shape, value, "roll")


@aten("pixel_shuffle.default", "pixel_unshuffle.default", shaped=True)
def _pixel_shuffle(node: TorchNode, x: te.Tensor, factor: int) -> te.Tensor:
    """Of the last three axes."""
    images = reshape(x, (math.prod(x.shape[:-3]), *x.shape[-3:]))
    return (depth_to_space if node.name == "pixel_shuffle" else space_to_depth)(images, factor, "CRD")


@aten("tril.default", "triu.default")
def _triangle(node: TorchNode, x: te.Tensor, diagonal: int = 0) -> te.Tensor:
    return trilu(x, np.asarray(diagonal), node.name == "triu")


# --- parts ------------------------------------------------------------------------------------


@onnx_op("Slice")
def _slice(
    x: te.Tensor, starts: Ints | None = None, ends: Ints | None = None, axes: Ints | None = None,
    steps: Ints | None = None,
) -> Value:  # fmt: skip
    """Bounds are attributes before version 10."""
    if starts is None or ends is None or len(starts) != len(ends):
        raise ValueError("its starts and ends are not as many")
    where = positives(axes if axes is not None else range(len(starts)), len(x.shape))
    by = steps or [1] * len(starts)
    if len(where) != len(starts) or len(by) != len(starts):
        raise ValueError("its starts, axes and steps are not as many")
    first, extents, step = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    for axis, lo, hi, s in zip(where, starts, ends, by, strict=True):
        if s == 0:
            raise ValueError("a step is 0")
        places = range(x.shape[axis])[slice(lo, hi, s)]  # Python's rules are ONNX's
        first[axis], extents[axis], step[axis] = places.start, len(places), s
    return strided_slice(x, first, extents, step) if all(extents) else _empty(x, extents)


def _empty(x: te.Tensor, shape: Sequence[int]) -> KnownTensor:
    """A tensor without elements is known."""
    return KnownTensor(np.empty(tuple(shape), DTYPES[x.dtype].numpy))


def _piece(x: te.Tensor, axis: int, start: int, extent: int) -> Value:
    """A part of an axis, which may have no elements."""
    if extent > 0:
        return part(x, axis, start, extent)
    return _empty(x, [extent if d == axis else n for d, n in enumerate(x.shape)])


@aten("slice.Tensor")
def _slice_of(
    node: TorchNode, x: te.Tensor, dim: Axis = 0, start: int | None = None, end: int | None = None,
    step: int = 1,
) -> te.Tensor:  # fmt: skip
    places = range(x.shape[dim])[slice(start, end, step)]
    starts, steps = [0] * len(x.shape), [1] * len(x.shape)
    starts[dim], steps[dim] = places.start, step
    return strided_slice(x, starts, node.shape, steps)


@aten("select.int", shaped=True)
def _select(x: te.Tensor, dim: Axis, index: int | te.Tensor) -> te.Tensor:
    """The index may be the element of a tensor."""
    if isinstance(index, te.Tensor):
        return gather(x, index, dim)
    return part(x, dim, index % x.shape[dim], 1)


@onnx_op("Split", since=2)
def _split(
    node: OnnxNode, x: te.Tensor, split: Ints | None = None, *, axis: Axis = 0, num_outputs: int | None = None
) -> list[Value | None]:
    size = x.shape[axis]
    if split is None:
        count = node.count if num_outputs is None else num_outputs
        if not 1 <= count <= max(node.count, size):
            raise ValueError(f"num_outputs {count} does not split {size} elements")
        each = -(-size // count)
        split = [min(each, size - i * each) for i in range(count)]
    if sum(split) != size or len(split) < node.count:
        raise ValueError(f"sizes {split} do not split the {size} elements of axis {axis}")
    return _pieces(node, x, axis, split)


@aten("split_with_sizes.default", "split.Tensor", "split.sizes", "chunk.default", "tensor_split.sections")
def _split_of(
    node: TorchNode, x: te.Tensor, how: int | Sequence[int], dim: Axis = 0
) -> list[Value | None]:
    size = x.shape[dim]
    if not isinstance(how, int):
        sizes = [int(n) for n in how]
    elif node.name == "tensor_split":
        sizes = [size // how + (i < size % how) for i in range(how)]
    else:
        each = -(-size // how) if node.name == "chunk" else how
        sizes = [min(each, size - at) for at in range(0, size, each)]
    return _pieces(node, x, dim, sizes)


def _pieces(node: OperatorNode, x: te.Tensor, axis: int, sizes: Sequence[int]) -> list[Value | None]:
    """Parts of an axis one after the other, of which those are made that are used."""
    starts = np.cumsum([0, *sizes])
    return [_piece(x, axis, int(starts[i]), n) if i in node.used else None for i, n in enumerate(sizes)]


@aten("unbind.int")
def _unbind(node: TorchNode, x: te.Tensor, dim: Axis = 0) -> list[te.Tensor | None]:
    rest = without(x.shape, [dim])
    return [reshape(part(x, dim, i, 1), rest) if i in node.used else None for i in range(x.shape[dim])]


@aten("diagonal.default")
def _diagonal(node: TorchNode, x: te.Tensor, offset: int = 0, dim1: Axis = 0, dim2: Axis = 1) -> te.Tensor:
    def value(*at: Expr) -> Expr:
        rest, i = iter(at[:-1]), at[-1]
        both = {dim1: i + max(-offset, 0), dim2: i + max(offset, 0)}
        return x[tuple(both[d] if d in both else next(rest) for d in range(len(x.shape)))]

    return stage(node.shape, value, "diagonal")


@aten("unfold.default", along=True)
def _unfold(x: te.Tensor, dim: Axis, size: int, step: int) -> te.Tensor:
    """Windows of an axis; the last axis goes through a window."""
    count = (x.shape[dim] - size) // step + 1

    def value(*at: Expr) -> Expr:
        return x[tuple(i * step + at[-1] if d == dim else i for d, i in enumerate(at[:-1]))]

    return stage((*x.shape[:dim], count, *x.shape[dim + 1 :], size), value, "unfold")


@aten("as_strided.default")
def _as_strided(
    node: TorchNode, x: te.Tensor, size: Sequence[int], strides: Sequence[int], first: int
) -> te.Tensor:
    """Of a row-major tensor, from its element ``first`` on. Elements may be read several times."""
    last = first + sum((n - 1) * s for n, s in zip(size, strides, strict=True))
    if first < 0 or last >= math.prod(x.shape):
        raise UnsupportedForm("it reads the memory around a tensor")
    flat = reshape(x, (math.prod(x.shape),))

    def value(*at: Expr) -> Expr:
        return flat[first + sum(i * s for i, s in zip(at, strides, strict=True))]

    return stage(node.shape, value, "as_strided")


# --- joins and pads ---------------------------------------------------------------------------


@onnx_op("Concat", since=4)
def _concat(node: OnnxNode, *xs: Value, axis: int) -> te.Tensor:
    parts = [node.tensor(x) for x in xs if not (isinstance(x, KnownTensor) and 0 in x.shape)]
    return concat(parts, positive(axis, len(parts[0].shape)))


@aten("cat.default")
def _cat(node: TorchNode, xs: Sequence[Value], dim: int = 0) -> te.Tensor:
    """Old torch took tensors of shape (0,) of any other shape's company, so they are left out."""
    parts = [node.cast(x) for x in xs if not (isinstance(x, KnownTensor) and 0 in x.shape)]
    return concat(parts, positive(dim, len(node.shape)))


@aten("stack.default")
def _stack(node: TorchNode, xs: Sequence[Value], dim: int = 0) -> te.Tensor:
    axis = positive(dim, len(node.shape))
    shape = [1 if d == axis else n for d, n in enumerate(node.shape)]
    return concat([reshape(node.cast(x), shape) for x in xs], axis)


@onnx_op("Pad", since=2)
def _pad(
    x: te.Tensor, pads: Ints | None = None, fill: Operand | None = None, axes: Axes | None = None, *,
    mode: str = "constant", value: float = 0,
) -> te.Tensor:  # fmt: skip
    """Pads are an attribute before version 11."""
    pads, where = pads or [], tuple(range(len(x.shape))) if axes is None else axes
    if len(pads) != 2 * len(where):
        raise ValueError(f"{len(pads)} pads for {len(where)} axes; two are needed for each")
    sides = [(0, 0)] * len(x.shape)
    for i, d in enumerate(where):
        sides[d] = (pads[i], pads[i + len(where)])
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"mode {mode!r} is unknown")
    if mode != "constant" and any(min(s) < 0 for s in sides):
        return cut_and_pad(x, sides, mode)
    if fill is None:
        return pad(x, sides, mode, te.const(value, x.dtype))
    if math.prod(fill.shape) != 1:
        raise ValueError("its constant_value is not one number")
    one = te.const(fill.item(), x.dtype) if isinstance(fill, np.ndarray) else fill[(0,) * len(fill.shape)]
    return pad(x, sides, mode, one)


@onnx_op("CenterCropPad")
def _center_crop_pad(x: te.Tensor, shape: Ints, *, axes: Axes | None = None) -> te.Tensor:
    sides = [(0, 0)] * len(x.shape)
    for d, n in zip(range(len(x.shape)) if axes is None else axes, shape, strict=True):
        more = n - x.shape[d]
        # What is taken away begins at the half rounded down, what is added as well.
        before = more // 2 if more >= 0 else -((-more) // 2)
        sides[d] = (before, more - before)
    return pad(x, sides, fill=te.const(0, x.dtype))


@aten(
    *(f"{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    "_pad_circular.default", "constant_pad_nd.default",
)  # fmt: skip
def _pad_of(node: TorchNode, x: te.Tensor, pads: Sequence[int], value: Scalar = 0) -> te.Tensor:
    """torch gives the last axis first."""
    sides = [(0, 0)] * len(x.shape)
    for i in range(len(pads) // 2):
        sides[-1 - i] = (int(pads[2 * i]), int(pads[2 * i + 1]))
    if node.name == "_pad_circular":  # what is cut off comes back in no other mode
        return cut_and_pad(x, sides, "wrap")
    mode = {"reflection": "reflect", "replication": "edge"}.get(node.name.split("_")[0], "constant")
    return pad(x, sides, mode, te.const(value, x.dtype))


# --- writes to places that are known ----------------------------------------------------------


@aten("slice_scatter.default")
def _slice_scatter(
    x: te.Tensor, src: Cast, dim: Axis = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> te.Tensor:
    """``x`` with ``src`` at every ``step``-th place of an axis."""
    places = range(x.shape[dim])[slice(start, end, step)]
    if not len(places):
        return x
    first, last = places.start, places[-1]

    def value(*at: Expr) -> Expr:
        i = at[dim]
        inside = [i >= first] * (first > 0) + [i <= last] * (last < x.shape[dim] - 1)
        inside += [te.equal((i - first) % step, 0)] * (step > 1)
        own = src[(*at[:dim], (i - first) // step, *at[dim + 1 :])]
        return te.select(te.all(*inside), own, x[at]) if inside else own

    return stage(x.shape, value, "slice_scatter")


@aten("select_scatter.default")
def _select_scatter(x: te.Tensor, src: Cast, dim: Axis, index: int) -> te.Tensor:
    place = index % x.shape[dim]

    def value(*at: Expr) -> Expr:
        return te.select(te.equal(at[dim], place), src[without(at, [dim])], x[at])

    return stage(x.shape, value, "select_scatter")


@aten("diagonal_scatter.default")
def _diagonal_scatter(x: te.Tensor, src: Cast, offset: int = 0, dim1: Axis = 0, dim2: Axis = 1) -> te.Tensor:
    """``x`` with ``src`` on a diagonal of two axes. Other axes come first in ``src``."""

    def value(*at: Expr) -> Expr:
        place = at[dim1] - max(-offset, 0)
        inside = te.all(te.equal(at[dim2] - at[dim1], offset), place >= 0, place < src.shape[-1])
        return te.select(inside, src[(*without(at, [dim1, dim2]), place)], x[at])

    return stage(x.shape, value, "diagonal_scatter")


# --- what takes no more of a tensor than its shape ---------------------------------------------


_FULL = {"zeros": 0, "empty": 0, "ones": 1}


@aten(*(f"{name}.default" for kind in ("full", *_FULL) for name in (f"{kind}_like", f"new_{kind}")))
def _full(node: TorchNode, x: Value, *given: Any, **how: Any) -> Value:
    """The number is the last argument, or in the name."""
    kind = node.name.removeprefix("new_").removesuffix("_like")
    number = _FULL[kind] if kind in _FULL else given[-1]
    if isinstance(number, te.Tensor):
        return node.elementwise(lambda v: v, number)
    return filled(node, number)


def filled(node: TorchNode, value: Scalar) -> KnownTensor:
    """One number that is seen everywhere."""
    import torch

    return KnownTensor(torch.full((), value, dtype=getattr(torch, node.dtype)).expand(node.shape))


@onnx_op("Range", "NonZero", "ConstantOfShape")
def _unknown(*xs: Value) -> te.Tensor:
    """Where all is known, these are evaluated at import."""
    raise UnsupportedForm("the shape of its output must be known at import, but depends on data")


@onnx_op("NonMaxSuppression")
@aten("nonzero.default", "masked_select.default", "unique_dim.default", "_unique2.default")
def _depends_on_data(*xs: object, **how: object) -> te.Tensor:
    raise UnsupportedForm("the shape of its output depends on data")
