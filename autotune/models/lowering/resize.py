"""Resizing along one axis: each output is a weighted sum of neighbours, whose places and weights are known.

Places are written as clip((i · p + q) // r) where such integers exist, so that no table of them is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from autotune.models.lowering.base import Array, number, stage
from schedules import te
from schedules.dtypes import DTYPES, computed
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
