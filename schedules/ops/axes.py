"""Expressions over any number of axes: their names, broadcasting, and parameters with one number an axis."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from schedules.expr import Expr, ExprLike

# Most axes of a tensor whose shape is a parameter.
MOST_AXES = 8
# Names for them.
LETTERS = "ijklmnop"


def named(names: Sequence[str], fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn(*axes)`` with parameters of these names, because `te.compute` names its axes after them."""

    def call(*axes: Expr) -> Any:
        return fn(*axes)

    kind = inspect.Parameter.POSITIONAL_ONLY
    call.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return call


def each(x: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """One number an axis, of a parameter that may be one number for all."""
    return x if isinstance(x, tuple) else (x,) * axes


def broadcast(shape: Sequence[int], index: Sequence[Expr]) -> tuple[ExprLike, ...]:
    """Where in a tensor of ``shape`` the element at ``index`` of a larger one is from, by numpy's rules."""
    return tuple(0 if n == 1 else i for n, i in zip(shape, index[len(index) - len(shape) :], strict=True))
