"""Cumulative functions of tensors: sums, products and extremes up to each element. `schedules.te` exports
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Const, Expr
from schedules.te import language
from schedules.te.extent import written
from schedules.te.language import compute, reduce_axis
from schedules.te.recurrences import axes_of, scan, state
from schedules.te.scalars import cast, limit, select
from schedules.te.tensors import Tensor


def cumsum(
    x: Tensor, axis: int = 0, reverse: bool = False, exclusive: bool = False, dtype: str | None = None,
    block: int | None = None, name: str | None = None,
) -> Tensor:  # fmt: skip
    """Σ of the elements of a tensor up to each along ``axis``, of its shape. ``reverse``: from each to the
    last. ``exclusive``: without the element itself, so that the first is 0. ``dtype``: in which it is added
    up, and of the result; by default that of ``x``, or what it is computed with.

    ``block``: how many elements of the axis are added up one after another. The sums of blocks are added up
    before, so that blocks run in parallel: elements are read twice, and floats are added in another order.
    None: all of them are one block. Raises `WorkloadError`.

    >>> x = te.placeholder((4,), name="x")
    >>> te.evaluate(te.dag([x, te.cumsum(x)]), [np.arange(4, dtype="float32")])[0]
    array([0., 1., 3., 6.], dtype=float32)
    """
    return _cumulative("cumsum", x, axis, reverse, exclusive, dtype, block, name)


def cumprod(
    x: Tensor, axis: int = 0, reverse: bool = False, exclusive: bool = False, dtype: str | None = None,
    block: int | None = None, name: str | None = None,
) -> Tensor:  # fmt: skip
    """Π of the elements of a tensor up to each along ``axis``: as `cumsum`, from 1 on.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.cumprod(x, exclusive=True)
    """
    return _cumulative("cumprod", x, axis, reverse, exclusive, dtype, block, name)


def cummax(
    x: Tensor, axis: int = 0, reverse: bool = False, block: int | None = None, name: str | None = None
) -> Tensor:
    """The largest of the elements of a tensor up to each along ``axis``; NaN from the first NaN on. Else as
    `cumsum`.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.cummax(x)
    """
    return _cumulative("cummax", x, axis, reverse, False, None, block, name)


def cummin(
    x: Tensor, axis: int = 0, reverse: bool = False, block: int | None = None, name: str | None = None
) -> Tensor:
    """The smallest of the elements of a tensor up to each along ``axis``; NaN from the first NaN on. Else as
    `cumsum`.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.cummin(x)
    """
    return _cumulative("cummin", x, axis, reverse, False, None, block, name)


@dataclass(frozen=True)
class _Fold:
    """How elements are combined: two of them, all of an axis, and what changes nothing in a dtype."""

    join: Callable[[Expr, Expr], Expr]
    fold: Callable[..., Any]
    neutral: Callable[[str], Const]


def _number(value: int) -> Callable[[str], Const]:
    return lambda d: Const(float(value) if E.is_float(d) else value, d)


_FOLDS = {
    "cumsum": _Fold(lambda a, b: a + b, language.sum, _number(0)),
    "cumprod": _Fold(lambda a, b: a * b, language.prod, _number(1)),
    "cummax": _Fold(E.maximum, language.max, lambda d: limit(d, -1)),
    "cummin": _Fold(E.minimum, language.min, lambda d: limit(d, 1)),
}


@dataclass(frozen=True)
class _Order:
    """Along which dimension elements are combined, from which end, and whether with the element itself."""

    axis: int
    reverse: bool
    exclusive: bool

    def end(self, extent: Any) -> Any:
        """The first index that is combined."""
        return written(extent) - 1 if self.reverse else 0


def _cumulative(
    what: str, x: Any, axis: int, reverse: bool, exclusive: bool, dtype: str | None, block: int | None,
    name: str | None,
) -> Tensor:  # fmt: skip
    if not isinstance(x, Tensor) or x.carry is not None:
        raise WorkloadError(f"te.{what} takes a tensor, got {x!r}; of elements make one with te.compute")
    (d,) = axes_of(axis, x.ndim, f"te.{what}")

    def element(*at: Any) -> Expr:
        v = E.widen(x[at])
        return v if dtype is None else cast(v, dtype)

    order = _Order(d, reverse, exclusive)
    if block is None:
        return _along(_FOLDS[what], x.shape, element, order, name or what)
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise WorkloadError(f"te.{what}: block={block!r} is no number of elements; give one from 1 on")
    if not isinstance(x.shape[d], int):
        raise WorkloadError(f"te.{what}: block={block} along an axis that varies; leave block out there")
    return _in_blocks(_FOLDS[what], x.shape, element, order, block, name or what)


def _along(
    f: _Fold, shape: Sequence[Any], element: Callable[..., Expr], order: _Order, name: str,
    start: Callable[..., Expr] | None = None,
) -> Tensor:  # fmt: skip
    """Elements combined one after another. ``start``: what comes before the first, of the indices; by default
    what changes nothing."""
    d, step = order.axis, -1 if order.reverse else 1
    dtype = E.dtype_of(element(*(Const(0) for _ in shape)))
    first: Callable[..., Expr] = start or (lambda *_: f.neutral(dtype))
    y = state(shape, dtype, first, d, name, order.reverse)

    def value(*at: Any) -> Expr:
        before = (*at[:d], at[d] - step, *at[d + 1 :])
        if not order.exclusive:
            return f.join(y[before], element(*at))
        begins = E.compare("==", at[d], order.end(shape[d]))
        return select(begins, first(*at), f.join(y[before], element(*before)))

    made: Tensor = scan(y, compute(shape, value, name))
    return made


def _in_blocks(
    f: _Fold, shape: Sequence[Any], element: Callable[..., Expr], order: _Order, block: int, name: str
) -> Tensor:
    """Each block combined from what all blocks before it are together: these are combined first."""
    d, extent = order.axis, shape[order.axis]
    count = -(-extent // block)

    def padded(*at: Any) -> Expr:  # of a block and a place in it
        i = at[d] * block + at[d + 1]
        v = element(*at[:d], i, *at[d + 2 :])
        return v if extent % block == 0 else select(i < extent, v, f.neutral(E.dtype_of(v)))

    k = reduce_axis(block, "k")
    cut = (*shape[:d], count, block, *shape[d + 1 :])
    totals = compute(
        (*shape[:d], count, *shape[d + 1 :]),
        lambda *at: f.fold(padded(*at[: d + 1], k, *at[d + 1 :]), axis=k),
        f"{name}_total",
    )
    of_blocks = replace(order, exclusive=True)
    before = _along(f, totals.shape, lambda *at: totals[at], of_blocks, f"{name}_before")
    within = replace(order, axis=d + 1)
    inside = _along(f, cut, padded, within, f"{name}_block", lambda *at: before[(*at[: d + 1], *at[d + 2 :])])
    made: Tensor = compute(
        shape, lambda *at: inside[(*at[:d], at[d] // block, at[d] % block, *at[d + 1 :])], name
    )
    return made
