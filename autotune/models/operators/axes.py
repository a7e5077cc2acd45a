"""The axes of tensors: their numbers, and the same elements with other axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autotune.models.operators.base import stage
from schedules import te
from schedules.expr import Expr, ExprLike


def segments(a: Sequence[int], b: Sequence[int]) -> list[tuple[range, range]]:
    """The dimensions of two shapes of one size, cut where both have the same elements before. Extents of 1
    are in no segment of their own, unless they are last.

    >>> segments((6, 4), (2, 3, 4))
    [(range(0, 1), range(0, 2)), (range(1, 2), range(2, 3))]
    """
    out, i, j = [], 0, 0
    while i < len(a) or j < len(b):
        start, m, n = (i, j), 1, 1
        while (i, j) == start or m != n:
            if i < len(a) and (m <= n or j >= len(b)):
                m, i = m * a[i], i + 1
            else:
                n, j = n * b[j], j + 1
        out.append((range(start[0], i), range(start[1], j)))
    return out


def reshape(x: te.Tensor, shape: Sequence[int]) -> te.Tensor:
    """The same elements in row-major order. Raises ValueError for a shape of another size."""
    shape = tuple(shape)
    if math.prod(shape) != math.prod(x.shape):
        raise ValueError(f"{list(x.shape)} has {math.prod(x.shape)} elements, which do not fit {list(shape)}")
    if shape == x.shape:
        return x
    cut = segments(shape, x.shape)

    def value(*at: Expr) -> Expr:
        index: list[ExprLike] = [0] * len(x.shape)
        for new, old in cut:
            flat: ExprLike = 0
            for d in new:
                flat = flat * shape[d] + at[d] if shape[d] > 1 else flat
            rest = [d for d in old if x.shape[d] > 1]
            for d in reversed(rest):
                first = d == rest[0]
                index[d] = flat if first else flat % x.shape[d]
                flat = flat if first else flat // x.shape[d]
        return x[tuple(index)]

    return stage(shape, value, "reshape")


def without(index: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    """``index`` without what stands at ``axes``."""
    return tuple(v for d, v in enumerate(index) if d not in axes)


def within(kept: Sequence[Any], axes: Sequence[int], others: Sequence[Any]) -> tuple[Any, ...]:
    """Inverse of `without`: ``others`` at ``axes``, in order, and ``kept`` elsewhere."""
    rest, given = iter(kept), dict(zip(axes, others, strict=True))
    return tuple(given[d] if d in given else next(rest) for d in range(len(kept) + len(axes)))


def positive(axis: int, rank: int) -> int:
    """An axis counted from the front. Raises ValueError if there is none."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is outside {-rank}..{rank - 1}, the axes of its input")
    return axis % rank


def positives(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front. Raises ValueError for one that is none, or is named twice."""
    found = tuple(positive(int(a), rank) for a in axes)
    if len(set(found)) != len(found):
        raise ValueError(f"axes {list(axes)} name one twice")
    return found
