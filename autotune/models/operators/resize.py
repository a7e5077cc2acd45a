"""Resizing along one axis: each output is a weighted sum of neighbours, whose places and weights are known.

Places are written as clip((i · p + q) // r) where such integers exist, so that no table of them is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from autotune.models.operators.base import Array, UnsupportedForm, number, stage
from autotune.models.operators.known import Value
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Axes, Floats, Ints, Values, aten, onnx_op
from schedules import te
from schedules.dtypes import DTYPES, computed, is_float
from schedules.expr import Expr
from schedules.expr import maximum as index_maximum
from schedules.expr import minimum as index_minimum


@dataclass(frozen=True)
class ResizeTaps:
    """Output ``i`` of an axis is the sum over t of ``weights[t, i]`` times element ``first[i] + t``, or times
    that at the end where there is none."""

    first: Array
    weights: Array


def coordinates(mode: str, size: int, out: int, scale: float) -> Array:
    """Where the outputs of an axis lie in its input, by ONNX's coordinate_transformation_mode. ``scale``:
    output by input."""
    i = np.arange(out, dtype=np.float64)
    length = scale * size
    match mode:
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return size / 2 * (1 - out / length) + (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if out > 1 else np.zeros(out)
        case "align_corners":
            return np.zeros(out) if length == 1 else i * (size - 1) / (length - 1)
        case "asymmetric":
            return i / scale
    raise ValueError(f"coordinate_transformation_mode {mode!r} is not supported")


def nearest_taps(x: Array, size: int, rounding: str) -> ResizeTaps:
    """The nearest element of each coordinate."""
    modes: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda v: np.ceil(v - 0.5), "round_prefer_ceil": lambda v: np.floor(v + 0.5),
        "floor": np.floor, "ceil": np.ceil,
    }  # fmt: skip
    if rounding not in modes:
        raise ValueError(f"nearest_mode {rounding!r} is unknown")
    at = np.clip(modes[rounding](x), 0, size - 1).astype(np.int64)
    return ResizeTaps(at, np.ones((1, len(x))))


def filter_taps(
    x: Array, size: int, scale: float, cubic: float | None, antialias: bool, exclude_outside: bool
) -> ResizeTaps:
    """Weights of a linear filter, or of a cubic one with the coefficient ``cubic`` (Keys, 1981).
    ``antialias``: the filter is as wide as the outputs are apart."""
    support, shrink = (1 if cubic is None else 2), min(scale, 1.0) if antialias else 1.0
    start = math.floor(-support / shrink) + 1
    count = 2 - 2 * start
    base = np.ceil(x).astype(np.int64) - 1
    distance = np.abs((np.arange(start, start + count)[:, None] - (x - base)) * shrink)
    weights = np.clip(1 - distance, 0, 1) if cubic is None else _cubic(distance, cubic)
    first = base + start
    if exclude_outside:
        places = first + np.arange(count)[:, None]
        weights = np.where((places < 0) | (places >= size), 0, weights)
    if antialias or exclude_outside:
        weights = weights / weights.sum(0)
    return ResizeTaps(first, weights)


def _cubic(d: Array, a: float) -> Array:
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def quotient_form(table: Array, size: int, ratios: list[Fraction]) -> tuple[int, int, int] | None:
    """(p, q, r) with clip((i · p + q) // r, 0, size - 1) = clip(table[i]) for all i, None if none of the
    ``ratios`` p / r has one.

    >>> quotient_form(np.array([0, 0, 1, 1]), 2, [Fraction(1, 2)])
    (1, 0, 2)
    """
    i, t = np.arange(len(table)), np.clip(table, 0, size - 1)
    for ratio in ratios:
        p, r = ratio.numerator, ratio.denominator
        low, high = t * r - i * p, (t + 1) * r - i * p - 1
        least = max((int(n) for n in low[t > 0]), default=None)  # at the ends one bound is free
        most = min((int(n) for n in high[t < size - 1]), default=None)
        q = min(least, 0) if most is None and least is not None else 0
        if least is not None and q < least:
            q = least
        if most is not None and q > most:
            q = most
        if least is not None and q < least:
            continue
        if np.array_equal(np.clip((i * p + q) // r, 0, size - 1), t):
            return p, q, r
    return None


def resample(
    x: te.Tensor, axis: int, taps: ResizeTaps, scale: float, constant: Callable[[Array], te.Tensor]
) -> te.Tensor:
    """``x`` with an axis replaced by its resampled one. ``constant``: makes a tensor of known values."""
    size, out, count = x.shape[axis], len(taps.first), len(taps.weights)
    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    ends = Fraction(size - 1, max(out - 1, 1))
    ratios = list(dict.fromkeys([Fraction(size, out), 1 / Fraction(scale).limit_denominator(4096), ends]))
    wide = computed(x.dtype)
    only = bool((taps.weights == 1).all()) and count == 1
    places: Callable[[Expr, int], Expr] = _places(taps, size, ratios, constant)
    weights = None if only else constant(np.ascontiguousarray(taps.weights.astype(DTYPES[wide].numpy)))

    def at(index: tuple[Expr, ...], place: Expr) -> Expr:
        return x[(*index[:axis], place, *index[axis + 1 :])]

    if weights is None:
        return stage(shape, lambda *i: at(i, places(i[axis], 0)), "resize")
    w = weights

    def value(*i: Expr) -> Expr:
        total = number(0, wide) if count == 0 else w[0, i[axis]] * at(i, places(i[axis], 0))
        for t in range(1, count):
            total = total + w[t, i[axis]] * at(i, places(i[axis], t))
        return te.cast(total, x.dtype)

    return stage(shape, value, "resize")


def _places(
    taps: ResizeTaps, size: int, ratios: list[Fraction], constant: Callable[[Array], te.Tensor]
) -> Callable[[Expr, int], Expr]:
    """The place of each tap of an output."""
    # The clip of a sum is the sum's clip only where the table itself is not cut off: so it is fitted uncut.
    low, high = int(taps.first.min()), int(taps.first.max())
    form = quotient_form(taps.first - low, high - low + 1, ratios)
    if form is not None:
        p, q, r = form

        def quotient(i: Expr, t: int) -> Expr:
            first = index_minimum(index_maximum((i * p + q) // r, 0), high - low) + low
            return index_minimum(index_maximum(first + t, 0), size - 1)

        return quotient
    table = constant(taps.first.astype(np.int64))
    return lambda i, t: te.minimum(te.maximum(table[i] + t, 0), size - 1)


# --- rows of ONNX -----------------------------------------------------------------------------

# Most elements of an axis of the result, and most times that one shrinks with a filter as wide.
MOST, FEWEST = 2**20, 16


def _check_mode(mode: str, x: te.Tensor, *smooth: str) -> None:
    """Raise ValueError for a mode that there is not, and UnsupportedForm for one that takes floats alone."""
    if mode not in ("nearest", *smooth):
        raise ValueError(f"mode {mode!r} is unknown")
    if mode != "nearest" and not is_float(x.dtype):
        raise UnsupportedForm(f"mode {mode} of {x.dtype} is not supported")


@onnx_op("Upsample", "Resize")
def _by_scales(
    node: OnnxNode, x: te.Tensor, scales: Values | None = None, *, mode: str = "nearest",
    height_scale: float = 1.0, width_scale: float = 1.0,
) -> te.Tensor:  # fmt: skip
    """The versions before Resize 11: outputs lie at i / scale. The nearest element is the one before, and the
    one after where an axis shrinks."""
    _check_mode(mode, x, "linear", "bilinear")
    if node.version == 1:  # of images
        by = [1.0, 1.0, height_scale, width_scale]
    else:
        by = [] if scales is None else [float(s) for s in scales.reshape(-1)]
    out = _extents(x.shape, by)
    if out == list(x.shape):
        return x  # as ONNX Runtime, whatever the scales are
    for axis, (size, n, scale) in enumerate(zip(x.shape, out, by, strict=True)):
        if scale != 1:
            places = coordinates("asymmetric", size, n, scale)
            if mode == "nearest":
                taps = nearest_taps(places, size, "ceil" if scale < 1 else "floor")
            else:
                taps = filter_taps(places, size, scale, None, False, False)
            x = resample(x, axis, taps, scale, node.table)
    return x


def _extents(extents: Sequence[int], scales: Sequence[float]) -> list[int]:
    """Extents of the output for the scale of each axis."""
    if len(scales) != len(extents) or any(not math.isfinite(s) or s <= 0 for s in scales):
        raise ValueError(f"scales {scales} are not one number above 0 for each of {len(extents)} axes")
    return _checked([math.floor(n * s) for n, s in zip(extents, scales, strict=True)])


def _checked(extents: list[int]) -> list[int]:
    """Themselves. Raises ValueError for extents that no result may have."""
    if any(not 1 <= n <= MOST for n in extents):
        raise ValueError(f"extents {extents} are not from 1 to {MOST}")
    return extents


@onnx_op("Resize", since=11)
def _resize(
    node: OnnxNode, x: te.Tensor, roi: Value | None = None, scales: Value | None = None,
    sizes: Ints | None = None, *, axes: Axes | None = None, keep_aspect_ratio_policy: str = "stretch",
    coordinate_transformation_mode: str = "half_pixel", extrapolation_value: float = 0.0,
) -> te.Tensor:  # fmt: skip
    axes = tuple(range(len(x.shape))) if axes is None else axes
    extents = [x.shape[d] for d in axes]
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    if crop and not sizes:
        raise UnsupportedForm("tf_crop_and_resize is supported with sizes only, not with scales")
    if sizes:
        out, by = _of_sizes(extents, sizes, keep_aspect_ratio_policy)
    else:
        if scales is None:
            raise ValueError("neither scales nor sizes are given")
        by = [float(s) for s in node.known(scales, "scales").reshape(-1)]
        out = _extents(extents, by)
    places = dict(zip(axes, _crop(node.known(roi, "roi"), extents, out), strict=True)) if crop else {}
    made = _resampled(node, x, list(zip(axes, out, by, strict=True)), places)
    return _filled(made, places, x.shape, extrapolation_value)


def _crop(roi: Array, extents: Sequence[int], out: Sequence[int]) -> list[Array]:
    """Where the outputs of each axis lie in the part of the input that ``roi`` tells. Rounded as by ONNX."""
    ends = roi.astype(np.float32).reshape(-1)
    if len(ends) != 2 * len(extents) or not np.isfinite(ends).all():
        raise ValueError(f"a roi of {len(ends)} numbers for {len(extents)} axes")
    found = []
    for a, b, n, size in zip(ends[: len(out)], ends[len(out) :], out, extents, strict=True):
        last, i = np.float32(size - 1), np.arange(n, dtype=np.float32)
        step = i * (b - a) * last / np.float32(n - 1) if n > 1 else (b - a) * last / np.full(1, 2, np.float32)
        found.append(step + a * last)
    return found


def _filled(t: te.Tensor, places: Mapping[int, Array], shape: Sequence[int], outside: float) -> te.Tensor:
    """``t`` with what lies outside the input as ``outside``, which is at the ends of axes."""
    inside: dict[int, tuple[int, int]] = {}
    for d, x in places.items():
        (at,) = np.nonzero((x >= 0) & (x <= shape[d] - 1))
        inside[d] = (int(at[0]), int(at[-1]) + 1) if at.size else (0, 0)
    cut = {d: ends for d, ends in inside.items() if ends != (0, t.shape[d])}
    if not cut:
        return t
    wide = computed(t.dtype)
    other = te.const(outside if is_float(wide) else int(outside), wide)

    def value(*at: Expr) -> Expr:
        within = [c for d, (a, b) in cut.items() for c in (at[d] >= a, at[d] < b)]
        return te.cast(te.select(te.all(*within), te.cast(t[at], wide), other), t.dtype)

    return stage(t.shape, value, "crop")


def _of_sizes(extents: list[int], sizes: list[int], policy: str) -> tuple[list[int], list[float]]:
    """(extents of the output, scales) for the sizes that are asked for."""
    if len(sizes) != len(extents) or any(n < 1 for n in sizes):
        raise ValueError(f"sizes {sizes} are not one number above 0 for each of {len(extents)} axes")
    by = [n / m for n, m in zip(sizes, extents, strict=True)]
    if policy == "stretch":
        return _checked(sizes), by
    scale = max(by) if policy == "not_smaller" else min(by)
    return _checked([math.floor(scale * n + 0.5) for n in extents]), [scale] * len(extents)


def _resampled(
    node: OnnxNode, x: te.Tensor, how: Sequence[tuple[int, int, float]], places: Mapping[int, Array]
) -> te.Tensor:
    """``how``: (axis, extent, scale). ``places``: {axis: of its outputs}, if no transformation tells them."""
    given = node.attributes
    mode, transform = given.get("mode", "nearest"), given.get("coordinate_transformation_mode", "half_pixel")
    antialias, outside = bool(given.get("antialias")), bool(given.get("exclude_outside"))
    cubic = float(given.get("cubic_coeff_a", -0.75)) if mode == "cubic" else None
    _check_mode(mode, x, "linear", "cubic")
    for axis, out, scale in how:
        size = x.shape[axis]
        if axis not in places and size == out and scale == 1:
            continue
        at = places[axis] if axis in places else coordinates(transform, size, out, scale)
        if mode == "nearest":
            taps = nearest_taps(at, size, given.get("nearest_mode", "round_prefer_floor"))
        elif antialias and scale < 1 / FEWEST:
            raise UnsupportedForm(f"it shrinks more than {FEWEST} times with antialias")
        else:
            taps = filter_taps(at, size, scale, cubic, antialias, outside)
        x = resample(x, axis, taps, scale, node.table)
    return x


# --- rows of ATen -----------------------------------------------------------------------------


@aten(*(f"upsample_nearest{n}d.{form}" for n in (1, 2, 3) for form in ("vec", "default")))
def _nearest(node: TorchNode, x: te.Tensor, size: Any, *factors: Any) -> te.Tensor:
    """Element ⌊i / factor⌋."""
    for axis, out, scale in _scales(x, node.shape, factors):
        taps = nearest_taps(np.floor(np.arange(out) / scale), x.shape[axis], "floor")
        x = resample(x, axis, taps, scale, node.table)
    return x


@aten(
    "upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
    "upsample_bilinear2d.default", "upsample_bicubic2d.default", "_upsample_bilinear2d_aa.default",
    "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.default", "_upsample_bicubic2d_aa.vec",
)  # fmt: skip
def _smooth(node: TorchNode, x: Floats, size: Any, align_corners: bool, *factors: Any) -> te.Tensor:
    """Filters of "aa" are as wide as the outputs are apart: weights are inside the image alone, and their sum
    is 1."""
    wide, cubic = node.name.endswith("_aa"), "cubic" in node.name
    for axis, out, scale in _scales(x, node.shape, factors):
        n = x.shape[axis]
        if align_corners and wide:
            if out == 1 or n == 1:
                raise UnsupportedForm("align_corners with one element is not supported")
            scale = (out - 1) / (n - 1)
        if align_corners and not wide:
            places = np.arange(out) * ((n - 1) / (out - 1)) if out > 1 else np.zeros(out)
        else:
            places = (np.arange(out) + 0.5) / scale - 0.5
        coefficient = (-0.5 if wide else -0.75) if cubic else None
        x = resample(x, axis, filter_taps(places, n, scale, coefficient, wide, wide), scale, node.table)
    return x


def _scales(t: te.Tensor, shape: Sequence[int], factors: Sequence[Any]) -> list[tuple[int, int, float]]:
    """(axis, extent of the output, output by input) of every axis that changes. ``factors``: one an axis, or
    a list of them."""
    given = list(factors[0] if len(factors) == 1 and isinstance(factors[0], (list, tuple)) else factors)
    out = []
    for i, d in enumerate(range(2, len(t.shape))):
        exact = given[i] if i < len(given) and given[i] is not None else shape[d] / t.shape[d]
        if shape[d] != t.shape[d] or not math.isclose(exact, 1):
            out.append((d, shape[d], float(exact)))
    return out
