"""Stages over any number of axes, and reads that broadcast."""

from __future__ import annotations

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
