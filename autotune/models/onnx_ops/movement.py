"""Operators that move elements, and those that tell shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import helper

from autotune.models.lowering import movement as m
from autotune.models.lowering.base import Array, UnsupportedForm, positive, positives
from autotune.models.onnx_ops.table import OnnxNode, Value, onnx_op
from schedules import te
from schedules.dtypes import DTYPES

# Most elements of a value that is made at import of a shape alone.
MOST = 2**26


@onnx_op("Shape")
def _shape(node: OnnxNode, x: Value) -> Array:
    start, end = node.attr("start", 0), node.attr("end")
    return np.array(x.shape[slice(start, end)], np.int64)


@onnx_op("Size")
def _size(node: OnnxNode, x: Value) -> Array:
    return np.array(math.prod(x.shape), np.int64)


@onnx_op("EyeLike")
def _eye_like(node: OnnxNode, x: Value) -> Array:
    to = node.attr("dtype")
    dtype = np.dtype(x.dtype) if to is None else np.dtype(helper.tensor_dtype_to_np_dtype(to))
    if math.prod(x.shape) > MOST:
        raise ValueError(f"a known value of shape {list(x.shape)}, more than {MOST} elements")
    rows, columns = x.shape
    return np.eye(rows, columns, k=node.attr("k", 0), dtype=dtype)


@onnx_op("Reshape", since=5)
def _reshape(node: OnnxNode, x: Value, shape: Value) -> te.Tensor:
    t = node.tensor(x)
    to = node.ints(shape, "shape")
    if not node.attr("allowzero", 0):
        if any(n == 0 and d >= len(t.shape) for d, n in enumerate(to)):
            raise ValueError(f"shape {to} copies a dimension that {list(t.shape)} does not have")
        to = [t.shape[d] if n == 0 else n for d, n in enumerate(to)]
    return m.reshape(t, _filled(t, to))


def _filled(t: te.Tensor, shape: Sequence[int]) -> list[int]:
    """A shape whose -1 is the rest."""
    size, known = math.prod(t.shape), math.prod(n for n in shape if n != -1)
    if (
        any(n < -1 for n in shape)
        or list(shape).count(-1) > 1
        or (-1 in shape and (not known or size % known))
    ):
        raise ValueError(f"{list(t.shape)} does not fit shape {list(shape)}")
    return [size // known if n == -1 else n for n in shape]


@onnx_op("Flatten")
def _flatten(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    axis = node.attr("axis", 1)
    if not -len(t.shape) <= axis <= len(t.shape):
        raise ValueError(f"axis {axis} is outside its input's axes")
    axis = axis + len(t.shape) if axis < 0 else axis
    return m.reshape(t, (math.prod(t.shape[:axis]), math.prod(t.shape[axis:])))


@onnx_op("Squeeze")
def _squeeze(node: OnnxNode, x: Value, axes: Value | None = None) -> te.Tensor:
    t = node.tensor(x)
    given = node.either("axes", axes)
    which = [d for d, n in enumerate(t.shape) if n == 1] if given is None else positives(given, len(t.shape))
    if bad := [d for d in which if t.shape[d] != 1]:
        raise ValueError(f"axis {bad[0]} of {list(t.shape)} is not of extent 1")
    return m.reshape(t, [n for d, n in enumerate(t.shape) if d not in which])


@onnx_op("Unsqueeze")
def _unsqueeze(node: OnnxNode, x: Value, axes: Value | None = None) -> te.Tensor:
    t = node.tensor(x)
    given = node.either("axes", axes) or []
    rank = len(t.shape) + len(given)
    where, rest = positives(given, rank), iter(t.shape)
    return m.reshape(t, [1 if d in where else next(rest) for d in range(rank)])


@onnx_op("Transpose")
def _transpose(node: OnnxNode, x: Value) -> te.Tensor:
    t = node.tensor(x)
    return m.transpose(t, node.attr("perm", list(range(len(t.shape)))[::-1]))


@onnx_op("Concat", since=4)
def _concat(node: OnnxNode, *xs: Value) -> te.Tensor:
    parts = [node.tensor(x) for x in xs if not (isinstance(x, np.ndarray) and not x.size)]
    return m.concat(parts, positive(node.attr("axis"), len(parts[0].shape)))


@onnx_op("Split", since=2)
def _split(node: OnnxNode, x: Value, split: Value | None = None) -> list[Value | None]:
    t = node.tensor(x)
    axis = positive(node.attr("axis", 0), len(t.shape))
    sizes, size = node.either("split", split), t.shape[axis]
    if sizes is None:
        count = node.attr("num_outputs", len(node.outputs))
        if not 1 <= count <= max(len(node.outputs), size):
            raise ValueError(f"num_outputs {count} does not split {size} elements")
        each = -(-size // count)
        sizes = [min(each, size - i * each) for i in range(count)]
    if sum(sizes) != size or len(sizes) < len(node.outputs):
        raise ValueError(f"sizes {sizes} do not split the {size} elements of axis {axis}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        _part(t, axis, at, n) if node.wants(i) else None
        for i, (at, n) in enumerate(zip(starts, sizes, strict=True))
    ]


def _part(t: te.Tensor, axis: int, at: int, n: int) -> Value:
    return (
        m.part(t, axis, at, n) if n > 0 else _empty(t, [n if d == axis else k for d, k in enumerate(t.shape)])
    )


def _empty(t: te.Tensor, shape: Sequence[int]) -> Array:
    """A tensor without elements is known."""
    return np.empty(tuple(shape), DTYPES[t.dtype].numpy)


@onnx_op("Slice")
def _slice(
    node: OnnxNode, x: Value, starts: Value | None = None, ends: Value | None = None,
    axes: Value | None = None, steps: Value | None = None,
) -> Value:  # fmt: skip
    """Bounds are attributes before version 10."""
    t = node.tensor(x)
    begin, end = node.either("starts", starts), node.either("ends", ends)
    if begin is None or end is None or len(begin) != len(end):
        raise ValueError("its starts and ends are not as many")
    which = node.either("axes", axes)
    where = positives(which if which is not None else list(range(len(begin))), len(t.shape))
    by = node.either("steps", steps) or [1] * len(begin)
    if len(where) != len(begin) or len(by) != len(begin):
        raise ValueError("its starts, axes and steps are not as many")
    first, extents, step = [0] * len(t.shape), list(t.shape), [1] * len(t.shape)
    for axis, lo, hi, s in zip(where, begin, end, by, strict=True):
        if s == 0:
            raise ValueError("a step is 0")
        places = range(t.shape[axis])[slice(lo, hi, s)]  # Python's rules are ONNX's
        first[axis], extents[axis], step[axis] = places.start, len(places), s
    return m.strided_slice(t, first, extents, step) if all(extents) else _empty(t, extents)


@onnx_op("Pad", since=2)
def _pad(
    node: OnnxNode, x: Value, pads: Value | None = None, fill: Value | None = None, axes: Value | None = None
) -> te.Tensor:
    """Pads are an attribute before version 11."""
    t = node.tensor(x)
    rank = len(t.shape)
    given = node.either("pads", pads) or []
    where = positives(node.ints(axes, "axes"), rank) if axes is not None else tuple(range(rank))
    if len(given) != 2 * len(where):
        raise ValueError(f"{len(given)} pads for {len(where)} axes; two are needed for each")
    sides = [(0, 0)] * rank
    for i, d in enumerate(where):
        sides[d] = (given[i], given[i + len(where)])
    mode = node.attr("mode", "constant")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise ValueError(f"mode {mode!r} is unknown")
    if mode != "constant" and any(min(s) < 0 for s in sides):
        return m.cut_and_pad(t, sides, mode)
    if fill is None:
        return m.pad(t, sides, mode, te.const(node.attr("value", 0), t.dtype))
    value = node.operand(fill)
    if value.size != 1 if isinstance(value, np.ndarray) else math.prod(value.shape) != 1:
        raise ValueError("its constant_value is not one number")
    one = value if isinstance(value, np.ndarray) else value[(0,) * len(value.shape)]
    return m.pad(t, sides, mode, te.const(one.item(), t.dtype) if isinstance(one, np.ndarray) else one)


@onnx_op("Expand")
def _expand(node: OnnxNode, x: Value, shape: Value) -> te.Tensor:
    t = node.tensor(x)
    return m.expand(t, np.broadcast_shapes(t.shape, tuple(node.ints(shape, "shape"))))


@onnx_op("Tile", since=6)
def _tile(node: OnnxNode, x: Value, repeats: Value) -> te.Tensor:
    return m.tile(node.tensor(x), node.ints(repeats, "repeats"))


@onnx_op("DepthToSpace")
def _depth_to_space(node: OnnxNode, x: Value) -> te.Tensor:
    return m.depth_to_space(node.tensor(x), node.attr("blocksize"), node.attr("mode", "DCR"))


@onnx_op("SpaceToDepth")
def _space_to_depth(node: OnnxNode, x: Value) -> te.Tensor:
    return m.space_to_depth(node.tensor(x), node.attr("blocksize"), node.attr("mode", "DCR"))


@onnx_op("Trilu")
def _trilu(node: OnnxNode, x: Value, k: Value | None = None) -> te.Tensor:
    by = np.array(0) if k is None else node.operand(k, "k")
    if math.prod(by.shape) != 1:
        raise ValueError(f"its k is of shape {list(by.shape)}, not one number")
    return m.trilu(node.tensor(x), by, bool(node.attr("upper", 1)))


@onnx_op("CenterCropPad")
def _center_crop_pad(node: OnnxNode, x: Value, shape: Value) -> te.Tensor:
    t = node.tensor(x)
    axes = positives(node.attr("axes", list(range(len(t.shape)))), len(t.shape))
    sides = [(0, 0)] * len(t.shape)
    for d, n in zip(axes, node.ints(shape, "shape"), strict=True):
        more = n - t.shape[d]
        # What is taken away begins at the half rounded down, what is added as well.
        before = more // 2 if more >= 0 else -((-more) // 2)
        sides[d] = (before, more - before)
    return m.pad(t, sides, fill=te.const(0, t.dtype))


@onnx_op("Range", "NonZero", "ConstantOfShape")
def _unknown(node: OnnxNode, *xs: Value) -> te.Tensor:
    """Where all is known, these are evaluated at import."""
    raise UnsupportedForm("the shape of its output must be known at import, but depends on data")
