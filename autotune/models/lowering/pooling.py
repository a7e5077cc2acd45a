"""Pools with channels first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.models.lowering.base import Array, cast, stage
from autotune.models.lowering.convolution import _axes
from autotune.models.lowering.movement import pad, padded
from autotune.models.lowering.windows import Windows
from schedules import te
from schedules.expr import Expr, ExprLike
from schedules.te.scalars import limit


def _folded(
    x: te.Tensor,
    z: te.Tensor,
    at: Windows,
    fold: Callable[..., te.Reduction],
    of: Callable[[Expr], Any],
    name: str,
) -> te.Tensor:
    """The reduction of every window of the padded ``z``."""
    taps, over = _axes(at.kernel, "rstuvw")

    def value(n: Expr, c: Expr, *place: Expr) -> Any:
        own = of(z[(n, c, *at.places(place, taps))])
        return fold(own, axis=over) if over else own

    return stage((*x.shape[:2], *at.out), value, name)


def max_pool(x: te.Tensor, at: Windows) -> te.Tensor:
    """The largest element of every window of (n, c, sizes…)."""
    lowest = limit(x.dtype, -1)
    z = pad(x, ((0, 0), (0, 0), *at.padding), fill=lowest)
    return cast(_folded(x, z, at, te.max, lambda v: v, "max_pool"), x.dtype)


def average_pool(x: te.Tensor, at: Windows, count_padding: bool) -> te.Tensor:
    """The average of every window. What lies around the input is 0, and counts or not; what a last window has
    beyond that never counts."""
    total = _folded(x, padded(x, 2, at.padding), at, te.sum, lambda v: v, "total")
    ranges, counts = [], []
    for d, (lo, hi) in enumerate(at.sides):
        first, last = (0, at.sizes[d] + lo + hi) if count_padding else (lo, lo + at.sizes[d])
        ranges.append((first, last))
        counts.append(_counts(np.arange(at.out[d]) * at.stride[d], at.kernel[d], at.dilation[d], first, last))

    def mean(n: Expr, c: Expr, *place: Expr) -> Expr:
        same = math.prod(min(k) for k in counts if len(k) == 1)
        various: list[Expr] = []
        for d, i in enumerate(place):
            if len(counts[d]) == 1:
                continue
            start, far = i * at.stride[d], at.dilation[d]
            first, last = ranges[d]
            # Taps t with first <= start + far t < last.
            low = te.maximum(first - start + far - 1, 0) // far
            high = te.minimum((last - start + far - 1) // far, at.kernel[d])
            various.append(high - low)
        y = total[(n, c, *place)]
        if not various:
            return te.cast(y / float(same), x.dtype)
        count: ExprLike = math.prod(various, start=same)
        return te.cast(y / te.cast(count, y_dtype), x.dtype)

    y_dtype = total.dtype
    return stage(total.shape, mean, "average_pool")


def _counts(start: Array, kernel: int, dilation: int, first: int, last: int) -> set[int]:
    """How many taps of windows lie in ``first`` to ``last``: the numbers that occur."""
    low = np.maximum(-(-(first - start) // dilation), 0)
    high = np.minimum(-(-(last - start) // dilation), kernel)
    return set(map(int, np.unique(high - low)))


def lp_pool(x: te.Tensor, at: Windows, p: int) -> te.Tensor:
    """(Σ |x|ᵖ)^(1/p) of every window."""

    def powered(v: Expr) -> Expr:
        return v * v if p == 2 else te.pow(te.abs(v), float(p))

    total = _folded(x, padded(x, 2, at.padding), at, te.sum, powered, "total")

    def root(*i: Expr) -> Expr:
        y = total[i]
        return te.cast(te.sqrt(y) if p == 2 else te.pow(y, 1.0 / p), x.dtype)

    return stage(total.shape, root, "lp_pool")
