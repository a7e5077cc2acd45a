"""The geometry of windows, shared by convolutions and pools: output extents, padding, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import each, named
from schedules.ops.base import Array, Param, Params

# {parameter of an extent: (its description, an example)}.
_SIZES = {"l": ("elements of the input", 256), "d": ("planes of the input", 8),
          "h": ("rows of the input", 56), "w": ("columns of the input", 56),
          "k": ("taps of the kernel", 3), "kd": ("planes of the kernel", 3),
          "kh": ("rows of the kernel", 3), "kw": ("columns of the kernel", 3)}  # fmt: skip
# Parameters that convolutions and pools share.
BATCH = Param("b", "batch", 1)
CHANNELS = Param("c", "channels", example=64)
CI, CO = Param("ci", "input channels", example=64), Param("co", "output channels", example=64)
STRIDE = Param("stride", "the step between windows", 1)
PADDING = Param("padding", "elements added on both sides", 0, minimum=0)
DILATION = Param("dilation", "the distance between taps", 1)
GROUPS = Param("groups", "groups of channels that are convolved apart", 1)
# Elements added before and after each spatial axis.
Sides = Sequence[tuple[int, int]]


def sizes(names: Sequence[str]) -> list[Param]:
    """Parameters of extents of inputs and kernels."""
    return [Param(n, _SIZES[n][0], example=_SIZES[n][1], axes=int(n == "k")) for n in names]


def kernel_names(kernel: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Shorthands for the extents of a kernel: ``k``, and torch's ``kernel_size``."""
    return tuple((short, kernel) for short in ("k", "kernel_size") if (short,) != kernel)


def by_axis(param: Param, axes: int) -> Param:
    """The parameter, which may also be given as a number for each of ``axes`` axes."""
    return replace(param, axes=axes)


def both_sides(padding: int | tuple[int, ...], axes: int) -> Sides:
    """Padding that is alike before and after each axis."""
    return [(n, n) for n in each(padding, axes)]


def out_extent(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """Number of windows of ``kernel`` taps along ``size`` elements; below 1 if none fits."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def misfit(what: str, size: int, kernel: int, padding: int, dilation: int = 1) -> str | None:
    """Why a window is larger than the padded input, None if it is not."""
    reach = dilation * (kernel - 1) + 1
    if reach <= size + 2 * padding:
        return None
    return (
        f"the kernel reaches over {reach} elements, but {what}={size} with padding {padding} "
        f"has only {size + 2 * padding}; use a smaller kernel or more padding"
    )


def in_order(layout: str | None, batch: Any, places: Sequence[Any], *channels: Any) -> tuple[Any, ...]:
    """What belongs to the dimensions of an activation, such as extents, names and indices, in the order of
    the layout."""
    return (batch, *channels, *places) if layout == "NCHW" else (batch, *places, *channels)


def apart(layout: str | None, axes: Sequence[Any], channels: int = 1) -> tuple[Any, ...]:
    """Inverse of `in_order`: (batch, places, so many channels)."""
    batch, *rest = axes
    if layout == "NCHW":
        return batch, rest[channels:], rest[:channels]
    return batch, rest[:-channels], rest[-channels:]


def windows(p: Params, axes: Sequence[Expr], taps: Sequence[Expr]) -> list[Expr]:
    """The places in the padded input of the taps of output points."""
    step, far = (each(p.get(name, 1), len(axes)) for name in ("stride", "dilation"))
    return [a * s + t * d for a, t, s, d in zip(axes, taps, step, far, strict=True)]


def reach(p: Params, at: Sequence[int]) -> list[int]:
    """The first place in the padded input of the tap at ``at``."""
    return [i * far for i, far in zip(at, each(p.get("dilation", 1), len(at)), strict=True)]


def pad(
    x: te.Tensor, sides: Sides, fill: ExprLike, layout: str | None, places: Sequence[str], channels: str = "c"
) -> te.Tensor:
    """A stage named "pad": ``x`` with elements of ``fill`` on the ``sides`` of its places. ``places``,
    ``channels``: names of the stage's axes. Returns ``x`` if there is nothing to add."""
    first, names = (2 if layout == "NCHW" else 1), in_order(layout, "n", places, *channels)
    added = {first + d: side for d, side in enumerate(sides) if any(side)}
    if not added:
        return x
    shape = [n + sum(added.get(d, ())) for d, n in enumerate(x.shape)]

    def value(*index: Expr) -> Expr:
        inside = (c for d, (lo, _) in added.items() for c in (index[d] >= lo, index[d] < x.shape[d] + lo))
        at = tuple(i - added[d][0] if d in added else i for d, i in enumerate(index))
        return te.select(te.all(*inside), x[at], fill)

    return te.compute(shape, named(names, value), "pad")


def uneven_groups(p: Params) -> str | None:
    """Why channels cannot be cut into groups, None if they can."""
    wrong = next((name for name in ("ci", "co") if p[name] % p["groups"]), None)
    if wrong is None:
        return None
    return f"groups={p['groups']} does not divide {wrong}={p[wrong]}; every group needs as many channels"


def channels_last(x: Array, layout: str | None) -> Array:
    """An activation with its channels last."""
    return np.moveaxis(x, 1, -1) if layout == "NCHW" else x


def in_layout(x: Array, layout: str | None) -> Array:
    """Inverse of `channels_last`, contiguous."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1) if layout == "NCHW" else x)


def pad_array(x: Array, sides: Sides, fill: float) -> Array:
    """An array whose dimensions after the first are padded."""
    width = [(0, 0), *sides, *[(0, 0)] * (x.ndim - 1 - len(sides))]
    return np.pad(x, width, constant_values=fill)


def taps(x: Array, at: Sequence[int], out: Sequence[int], stride: int | tuple[int, ...]) -> Array:
    """The elements of a padded channels-last array that the tap at ``at`` reads, for all windows."""
    steps = each(stride, len(out))
    spatial = (slice(r, r + (n - 1) * s + 1, s) for r, n, s in zip(at, out, steps, strict=True))
    return x[(slice(None), *spatial)]
