"""Operators that move elements: every one is a map whose value is one read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autotune.models.operators.base import Operand, number, stage
from autotune.models.operators.table import Axes, Ints, aten, onnx_op
from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.expr import maximum as index_maximum
from schedules.expr import minimum as index_minimum

# Most tensors that one stage joins: each adds a condition to every element.
JOINED = 16


@onnx_op("Transpose")
@aten("t.default", "numpy_T.default")
def transpose(x: te.Tensor, perm: Sequence[int] | None = None) -> te.Tensor:
    """Axis ``d`` of the result is axis ``perm[d]`` of ``x``, by default all are in reverse. Raises ValueError
    if ``perm`` is none."""
    perm = range(len(x.shape))[::-1] if perm is None else perm
    if sorted(perm) != list(range(len(x.shape))):
        raise ValueError(f"perm {list(perm)} does not permute the {len(x.shape)} axes of its input")
    if list(perm) == sorted(perm):
        return x

    def value(*at: Expr) -> Expr:
        return x[tuple(at[list(perm).index(d)] for d in range(len(perm)))]

    return stage([x.shape[p] for p in perm], value, "transpose")


def concat(xs: Sequence[te.Tensor], axis: int) -> te.Tensor:
    """Tensors one after the other along an axis. Raises ValueError if the other extents differ."""
    for x in xs:
        if (
            len(x.shape) != len(xs[0].shape)
            or x.dtype != xs[0].dtype
            or any(n != m for d, (n, m) in enumerate(zip(x.shape, xs[0].shape, strict=True)) if d != axis)
        ):
            raise ValueError(f"{x!r} does not join {xs[0]!r} along axis {axis}")
    while len(xs) > JOINED:
        xs = [_joined(xs[i : i + JOINED], axis) for i in range(0, len(xs), JOINED)]
    return _joined(xs, axis)


def _joined(xs: Sequence[te.Tensor], axis: int) -> te.Tensor:
    if len(xs) == 1:
        return xs[0]
    ends = [sum(x.shape[axis] for x in xs[: i + 1]) for i in range(len(xs))]

    def value(*at: Expr) -> Expr:
        def part(i: int) -> Expr:
            start = ends[i] - xs[i].shape[axis]
            own = xs[i][(*at[:axis], at[axis] - start, *at[axis + 1 :])]
            return own if i == len(xs) - 1 else te.select(at[axis] < ends[i], own, part(i + 1))

        return part(0)

    shape = list(xs[0].shape)
    shape[axis] = ends[-1]
    return stage(shape, value, "concat")


def strided_slice(
    x: te.Tensor, starts: Sequence[int], extents: Sequence[int], steps: Sequence[int]
) -> te.Tensor:
    """Of every axis ``extents`` elements from ``starts`` on, ``steps`` apart, which may be negative. Raises
    ValueError where nothing is left."""
    if any(n < 1 for n in extents):
        raise ValueError(f"nothing is left: the result has shape {list(extents)}")
    if tuple(extents) == x.shape and all(s == 1 for s, n in zip(steps, extents, strict=True) if n > 1):
        return x

    def value(*at: Expr) -> Expr:
        return x[tuple(i * s + b for i, b, s in zip(at, starts, steps, strict=True))]

    return stage(extents, value, "slice")


def part(x: te.Tensor, axis: int, start: int, extent: int) -> te.Tensor:
    """``extent`` elements of one axis from ``start`` on."""
    starts, extents = [0] * len(x.shape), list(x.shape)
    starts[axis], extents[axis] = start, extent
    return strided_slice(x, starts, extents, [1] * len(starts))


@aten("flip.default", along=True)
def flip(x: te.Tensor, axes: Axes) -> te.Tensor:
    """Backwards along axes."""
    ends = [n - 1 if d in axes else 0 for d, n in enumerate(x.shape)]
    return strided_slice(x, ends, x.shape, [-1 if d in axes else 1 for d in range(len(x.shape))])


def expand(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """Repeated along extents of 1, and along new axes in front."""
    if tuple(shape) == x.shape:
        return x
    more = len(shape) - len(x.shape)
    if more < 0 or any(n not in (1, m) for n, m in zip(x.shape, shape[more:], strict=True)):
        raise ValueError(f"{list(x.shape)} does not broadcast to {list(shape)}")

    def value(*at: Expr) -> Expr:
        return x[tuple(0 if n == 1 else i for n, i in zip(x.shape, at[more:], strict=True))]

    return stage(shape, value, "expand")


@onnx_op("Tile", since=6)
def tile(x: te.Tensor, repeats: Ints) -> te.Tensor:
    """The whole tensor several times along each axis."""
    if len(repeats) != len(x.shape) or any(r < 1 for r in repeats):
        raise ValueError(
            f"repeats {list(repeats)} are not one number above 0 for each axis of {list(x.shape)}"
        )
    if all(r == 1 for r in repeats):
        return x

    def value(*at: Expr) -> Expr:
        return x[
            tuple(
                0 if n == 1 else i if r == 1 else i % n for i, n, r in zip(at, x.shape, repeats, strict=True)
            )
        ]

    return stage([n * r for n, r in zip(x.shape, repeats, strict=True)], value, "tile")


def pad(
    x: te.Tensor, sides: Sequence[tuple[int, int]], mode: str = "constant", fill: ExprLike = 0.0
) -> te.Tensor:
    """Elements added on both sides of every axis; a negative number takes away. ``mode``: "constant" (adds
    ``fill``), "edge", "reflect" or "wrap", as numpy has them. Raises ValueError where nothing is left."""
    shape = [n + lo + hi for n, (lo, hi) in zip(x.shape, sides, strict=True)]
    if any(n < 1 for n in shape):
        raise ValueError(f"nothing is left: the result has shape {shape}")
    if not any(lo or hi for lo, hi in sides):
        return x

    def source(i: Expr, n: int, lo: int, hi: int) -> ExprLike:
        place = i - lo
        if mode == "edge":
            return index_minimum(index_maximum(place, 0), n - 1)
        if mode == "reflect":
            if n == 1:
                return 0
            turn = place % (2 * n - 2)
            return index_minimum(turn, 2 * n - 2 - turn)
        return place % n if mode == "wrap" else place

    def value(*at: Expr) -> Expr:
        inside, index = [], []
        for i, n, (lo, hi) in zip(at, x.shape, sides, strict=True):
            index.append(source(i, n, lo, hi) if lo or hi else i)
            if mode == "constant":
                inside += [i >= lo] * (lo > 0) + [i < n + lo] * (hi > 0)
        own = x[tuple(index)]
        return te.select(te.all(*inside), own, fill) if inside else own

    return stage(shape, value, "pad")


def cut_and_pad(x: te.Tensor, sides: Sequence[tuple[int, int]], mode: str) -> te.Tensor:
    """`pad`, where what negative numbers take away is not seen by what is added."""
    if any(min(s) < 0 for s in sides):
        x = pad(x, [(min(lo, 0), min(hi, 0)) for lo, hi in sides])
        sides = [(max(lo, 0), max(hi, 0)) for lo, hi in sides]
    return pad(x, sides, mode)


def padded(x: te.Tensor, first: int, sides: Sequence[tuple[int, int]], fill: float = 0.0) -> te.Tensor:
    """``x`` with elements of ``fill`` on the ``sides`` of its axes from ``first`` on."""
    every = [(0, 0)] * first + list(sides)
    return pad(x, every, fill=_stored(fill, x.dtype))


def _stored(fill: float, dtype: str) -> ExprLike:
    """A literal of a tensor's own dtype."""
    return number(fill, dtype) if dtype in ("float32", "float64", "int32", "int64") else te.const(fill, dtype)


@onnx_op("DepthToSpace")
def depth_to_space(x: te.Tensor, blocksize: int, mode: str = "DCR") -> te.Tensor:
    """Channels of (n, c, h, w) to blocks of rows and columns; ``mode``: "DCR" or "CRD", where the block's
    place stands in the channel."""
    (n, c, h, w), block = x.shape, blocksize
    if c % (block * block):
        raise ValueError(f"{c} channels are no multiple of {block}²")
    depth = c // (block * block)

    def value(b: Expr, k: Expr, i: Expr, j: Expr) -> Expr:
        at = i % block * block + j % block
        channel = at * depth + k if mode == "DCR" else k * (block * block) + at
        return x[b, channel, i // block, j // block]

    return stage((n, depth, h * block, w * block), value, "depth_to_space")


@onnx_op("SpaceToDepth")
def space_to_depth(x: te.Tensor, blocksize: int, mode: str = "DCR") -> te.Tensor:
    """Inverse of `depth_to_space`."""
    (n, c, h, w), block = x.shape, blocksize
    if h % block or w % block:
        raise ValueError(f"{h} rows and {w} columns are no multiples of {block}")

    def value(b: Expr, k: Expr, i: Expr, j: Expr) -> Expr:
        at, channel = (k // c, k % c) if mode == "DCR" else (k % (block * block), k // (block * block))
        return x[b, channel, i * block + at // block, j * block + at % block]

    return stage((n, c * block * block, h // block, w // block), value, "space_to_depth")


@onnx_op("Trilu")
def trilu(x: te.Tensor, k: Operand | None = None, upper: bool = True) -> te.Tensor:
    """The triangle of the last two axes above the ``k``-th diagonal, or below; zeros elsewhere."""
    k = np.array(0) if k is None else k
    if math.prod(k.shape) != 1:
        raise ValueError(f"its k is of shape {list(k.shape)}, not one number")

    def value(*at: Expr) -> Expr:
        i, j = at[-2:]
        if isinstance(k, te.Tensor):
            by, place = k[(0,) * len(k.shape)], te.cast(j - i, k.dtype)
            keep = place >= by if upper else place <= by
        else:
            keep = j - i >= int(k.item()) if upper else j - i <= int(k.item())
        return te.select(keep, x[at], te.const(0, x.dtype))

    return stage(x.shape, value, "trilu")
