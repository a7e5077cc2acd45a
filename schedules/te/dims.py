"""Sizes that vary: a `Dim` stands for an extent that is known only when a kernel is called.

A dimension is a variable of the expression. Arithmetic on it makes expressions, so that ``m + 2`` may be an
extent too. One that has no number when a compute DAG is made stays open: one kernel is for all of its sizes
(`schedules.te.open_sizes`). `at_sizes` puts numbers in the place of dimensions, and then each size has a
kernel of its own; ``te.cast(m, "float32")`` may be a value there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Cast, Const, Expr, Hole, Var
from schedules.te.scalars import cast

# Largest extent of an axis: a larger one is surely a mistake, and overflows byte counts.
MAX_EXTENT = 2**40


@dataclass(frozen=True, slots=True, eq=False)
class Dim(Var):
    """A size from ``lo`` to ``hi``, both included. It is itself only: two of the same bounds are two sizes.
    ``name`` may be empty. ``open``: whether one kernel is for all of its values; None: if it can be."""

    lo: int
    hi: int
    open: bool | None = None

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{f'{self.name}=' if self.name else ''}{self.lo}..{self.hi}"


@dataclass(frozen=True, slots=True)
class SizeHole(Hole):
    """The hole of an open size that knows its dimension. ``name``: that of the variable of the size."""

    dim: Dim


def dim(lo: int, hi: int, name: str = "", *, open: bool | None = None) -> Dim:
    """A size that varies from ``lo`` to ``hi`` (elements), both included, for `autotune.tune` and
    `autotune.load` in the place of a size, and for extents of `te`.

    ``name``: for messages, and for `DynamicKernel.at`. A parameter of an operator names its size itself.
    ``open``: True makes one kernel for all sizes: one search, one compilation (ADR 79). Extents, indices and
    values may depend on the size. A call reads it from the shapes of the inputs. A row-major argument has it
    in its outermost dimension; give others fixed strides. False makes a kernel for each size (ADR 51). None,
    the default, is True where the program and the target allow it. Else it is False, and a warning says why
    (ADR 93).

    Raises `WorkloadError` unless ``1 <= lo <= hi``. Example:

        m = at.dim(1, 512)
        A = te.placeholder((m, 64)); B = te.compute((m, 64), lambda i, j: A[i, j] * 2.0)
        at.tune([A, B]); kernel = at.load([A, B])  # one kernel for 1 to 512 rows
    """
    for bound in (lo, hi):
        if isinstance(bound, bool) or not hasattr(bound, "__index__"):
            raise WorkloadError(f"dim({lo!r}, {hi!r}): {bound!r} is not an integer")
    if not 1 <= int(lo) <= int(hi):
        raise WorkloadError(f"dim({lo}, {hi}): give the least size, from 1 on, then one that is not below it")
    if name and not name.isidentifier():
        raise WorkloadError(f"dim({lo}, {hi}): the name {name!r} is not an identifier")
    if open is not None and not isinstance(open, bool):
        raise WorkloadError(f"dim({lo}, {hi}): open={open!r} is none of True, False and None")
    return Dim(name, int(lo), int(hi), open)


def dims_of(values: Iterable[Any]) -> list[Dim]:
    """The dimensions in extents and expressions, each once, in the order in which they are met."""
    found = (x for v in values if isinstance(v, Expr) for x in E.walk(v) if isinstance(x, Dim))
    return list(dict.fromkeys(found))


def check_stride(name: str, stride: Any, sizes: Collection[Dim]) -> None:
    """Raise `WorkloadError` for a stride of argument ``name`` that depends on an open size: on one that may
    be open and is not among ``sizes``, which have numbers."""
    if found := [d for d in dims_of([stride]) if d.open is not False and d.lo < d.hi and d not in sizes]:
        raise WorkloadError(
            f"a stride of argument {name} depends on the open size {found[0]!r}; give a number, as of rows "
            "that have room for the largest size, or open=False for a kernel of each size"
        )


def at_sizes(e: Expr, sizes: Mapping[Dim, int] | Mapping[Dim, Expr]) -> Expr:
    """An expression with numbers, or other expressions, for those of its dimensions that ``sizes`` has, as it
    would be if they had been written there. Raises `WorkloadError`, TypeError and ZeroDivisionError for what
    is no expression then."""

    def visit(x: Expr) -> Expr | None:
        if isinstance(x, Dim) and x in sizes:
            return E.wrap(sizes[x])
        if isinstance(x, Cast) and E.dtype_of(x.a) == INDEX and dims_of([x.a]):
            return cast(at_sizes(x.a, sizes), x.dtype)
        return None

    return E.rewrite(e, visit) if sizes else e


def extent_at(extent: Any, sizes: Mapping[Dim, int]) -> int:
    """An extent as a number. Raises `WorkloadError` for one that is no positive integer."""
    number = _number_at("extent", extent, sizes)
    if number is None or number < 1:
        at = ", ".join(f"{d!r}: {n}" for d, n in sizes.items())
        raise WorkloadError(
            f"the extent {E.show(extent)} is {number} at {at}; every extent must be at least 1: raise the "
            "least size"
        )
    if number > MAX_EXTENT:
        raise WorkloadError(f"the extent {E.show(extent)} is {number}, outside 1..{MAX_EXTENT}")
    return number


def stride_at(stride: Any, sizes: Mapping[Dim, int]) -> int:
    """A stride as a number. Raises `WorkloadError` for one that is no integer."""
    number = _number_at("stride", stride, sizes)
    if number is None or abs(number) > MAX_EXTENT:
        raise WorkloadError(f"the stride {E.show(stride)} is {number}, no integer of at most {MAX_EXTENT}")
    return number


def _number_at(what: str, x: Any, sizes: Mapping[Dim, int]) -> int | None:
    """An integer, or an expression of dimensions, as a number; None where it is none."""
    if not isinstance(x, Expr):
        return int(x)
    try:
        value = at_sizes(x, sizes)
    except (TypeError, ZeroDivisionError) as err:
        raise WorkloadError(f"the {what} {E.show(x)}: {err}") from None
    return int(value.value) if isinstance(value, Const) else None
