"""Stages over any number of axes, and reads that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import ModelError
from schedules import te
from schedules.dtypes import computed, is_float
from schedules.expr import Const, Expr, ExprLike
from schedules.ops.axes import LETTERS, broadcast, named

Array = NDArray[Any]
# A tensor, or a known array of one element: a literal.
Operand = te.Tensor | Array


class UnsupportedForm(ModelError):
    """An operator that is known, but not in this form. The message is the reason alone."""


def dtype_of(x: Operand) -> str:
    """The name of an operand's dtype."""
    return x.dtype if isinstance(x, te.Tensor) else x.dtype.name


def axis_names(n: int) -> Sequence[str]:
    """Names of ``n`` axes."""
    return LETTERS[:n] if n <= len(LETTERS) else [f"i{d}" for d in range(n)]


def stage(shape: Sequence[int], value: Callable[..., Any], name: str = "y") -> te.Tensor:
    """``out[axes] = value(*axes)``."""
    made: te.Tensor = stages(shape, value, name)
    return made


def stages(shape: Sequence[int], value: Callable[..., Any], name: str | Sequence[str]) -> Any:
    """`stage`, where ``value`` may be a reduction over tuples, which gives a tuple of tensors."""
    return te.compute(tuple(shape), named(axis_names(len(shape)), value), name)


def read(x: Operand, index: Sequence[Expr]) -> Expr:
    """The element of an operand that broadcasts to the tensor whose element at ``index`` is computed. A
    literal is of the dtype that is computed with."""
    if isinstance(x, te.Tensor):
        return x[broadcast(x.shape, index)]
    name = x.dtype.name
    return te.const(x.item(), name if name == "bool" else computed(name))


def elementwise(fn: Callable[..., ExprLike], *xs: Operand, dtype: str = "", name: str = "y") -> te.Tensor:
    """``fn`` of the elements of operands that broadcast to one shape, by numpy's rules. ``dtype``: of the
    result, by default that of the first operand. Raises ValueError for shapes that do not fit."""
    shape = np.broadcast_shapes(*(x.shape for x in xs))
    out = dtype or dtype_of(xs[0])
    return stage(shape, lambda *at: te.cast(fn(*(read(x, at) for x in xs)), out), name)


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


def floating(x: te.Tensor) -> te.Tensor:
    """Itself. Raises UnsupportedForm for what is no tensor of floating point."""
    if not is_float(x.dtype):
        raise UnsupportedForm(f"{x.dtype} is not supported by it, only floating point")
    return x


def cast(x: te.Tensor, dtype: str) -> te.Tensor:
    """A tensor in another dtype; itself where it has that."""
    return x if x.dtype == dtype else elementwise(lambda v: v, x, dtype=dtype, name="cast")


def number(value: float, dtype: str) -> Const:
    """A literal of the dtype that values of ``dtype`` are computed with."""
    return te.const(value, computed(dtype))


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
