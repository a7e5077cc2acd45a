"""Cumulative functions of tensors: sums, products and extremes up to each element. `schedules.te` exports
them."""

from __future__ import annotations

import operator
from collections.abc import Callable

from schedules import expr as E
from schedules.expr import Expr
from schedules.te.associative import Order, Values, scan_of
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
    return _cumulative("cumsum", operator.add, x, Order(axis, reverse, exclusive), dtype, block, name)


def cumprod(
    x: Tensor, axis: int = 0, reverse: bool = False, exclusive: bool = False, dtype: str | None = None,
    block: int | None = None, name: str | None = None,
) -> Tensor:  # fmt: skip
    """Π of the elements of a tensor up to each along ``axis``: as `cumsum`, from 1 on.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.cumprod(x, exclusive=True)
    """
    return _cumulative("cumprod", operator.mul, x, Order(axis, reverse, exclusive), dtype, block, name)


def cummax(
    x: Tensor, axis: int = 0, reverse: bool = False, block: int | None = None, name: str | None = None
) -> Tensor:
    """The largest of the elements of a tensor up to each along ``axis``; NaN from the first NaN on. Else as
    `cumsum`.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.cummax(x)
    """
    return _cumulative("cummax", E.maximum, x, Order(axis, reverse, False), None, block, name)


def cummin(
    x: Tensor, axis: int = 0, reverse: bool = False, block: int | None = None, name: str | None = None
) -> Tensor:
    """The smallest of the elements of a tensor up to each along ``axis``; NaN from the first NaN on. Else as
    `cumsum`.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.cummin(x)
    """
    return _cumulative("cummin", E.minimum, x, Order(axis, reverse, False), None, block, name)


def _cumulative(
    what: str, join: Callable[[Expr, Expr], Expr], x: Tensor, order: Order, dtype: str | None,
    block: int | None, name: str | None,
) -> Tensor:  # fmt: skip
    def joined(x: Values, y: Values) -> Values:
        return (join(x[0], y[0]),)

    made: Tensor
    (made,) = scan_of(what, joined, (x,), order, None, block, name or what, dtype)
    return made
