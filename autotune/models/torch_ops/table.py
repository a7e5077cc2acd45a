"""The table of ATen operators that have an expression, and what a row is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.models.lowering.base import Array, Operand, UnsupportedForm, floating, read, stage
from autotune.models.lowering.movement import reshape
from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, computed, is_integer, wrapped
from schedules.expr import Expr


@dataclass(frozen=True, eq=False)
class KnownTensor:
    """A tensor that is known at import. ``tensor``: of torch. ``weight``: it is a parameter or a buffer, or
    made of some: its elements are never looked at, so that other weights give the same expression."""

    tensor: Any
    weight: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """Its name."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def literal(self) -> Array | None:
        """The one number that all elements are, as an array without axes; None where they differ, and of a
        weight."""
        if self.weight or not self.tensor.numel() or self.dtype not in DTYPES:
            return None
        first = self.tensor.reshape(-1)[0]
        if not bool((self.tensor == first).all()):
            return None
        return np.asarray(first.item(), DTYPES[self.dtype].numpy)


# What an argument of an operator may be: a stage, a known tensor, a number.
Value = te.Tensor | KnownTensor
Scalar = bool | int | float


@dataclass(frozen=True)
class TorchNode:
    """One call of an operator while it is lowered. ``op``: its overload, such as "aten.add.Tensor".
    ``shape``, ``dtype``: of its output, of the first one where there are several. ``common``: the dtype that
    its tensors and numbers promote to. ``used``: numbers of the outputs that the program uses. ``constant``:
    makes a tensor of a known one."""

    op: str
    shape: tuple[int, ...]
    dtype: str
    common: str
    used: frozenset[int]
    constant: Callable[[KnownTensor], te.Tensor] = field(repr=False)

    @property
    def name(self) -> str:
        """The operator without namespace and overload."""
        return self.op.split(".")[1]

    def only(self, count: int) -> None:
        """Raise UnsupportedForm if the program uses more than the first ``count`` outputs."""
        if more := sorted(n for n in self.used if n >= count):
            raise UnsupportedForm(f"its output {more[0]} is used, and has no expression")

    def tensor(self, x: Value) -> te.Tensor:
        """An argument as a tensor."""
        return x if isinstance(x, te.Tensor) else self.constant(x)

    def table(self, array: Array) -> te.Tensor:
        """Values that are computed here as a tensor."""
        import torch

        return self.constant(KnownTensor(torch.from_numpy(np.ascontiguousarray(array)), False))

    def optional(self, x: Value | None) -> te.Tensor | None:
        return None if x is None else self.tensor(x)

    def operand(self, x: Value | Scalar) -> Operand:
        """An argument as a tensor, or as a literal where it is one number."""
        if isinstance(x, KnownTensor):
            found = x.literal()
            return self.constant(x) if found is None else found
        return x if isinstance(x, te.Tensor) else np.asarray(x)

    def floats(self, x: Value) -> te.Tensor:
        """An argument as a tensor of floating point."""
        return floating(self.tensor(x))

    def fits(self, *xs: Value | Scalar | None) -> None:
        """Raise UnsupportedForm for a number that the output's dtype of integers does not have, where torch
        raises too. As there, unsigned ones have negative numbers, which wrap."""
        for x in xs if is_integer(self.dtype) else ():
            least, most = DTYPES[self.dtype].range[0], DTYPES[self.dtype].range[-1]
            if isinstance(x, int) and not (least or -most) <= x <= most:
                raise UnsupportedForm(f"{x} is not a value of {self.dtype}; use one from {least} to {most}")

    def elementwise(
        self, fn: Callable[..., Any], *xs: Value | Scalar, common: str = "", dtype: str = "", name: str = ""
    ) -> te.Tensor:
        """``fn`` of the elements, each as the dtype that ``common`` is computed with, by default that of the
        output."""
        operands = [self.operand(x) for x in xs]
        wide, out = common or self.dtype, dtype or self.dtype

        def element(x: Operand, at: Sequence[Expr]) -> Expr:
            return of_dtype(read(x, at) if isinstance(x, te.Tensor) else x.item(), wide)

        def value(*at: Expr) -> Expr:
            return te.cast(fn(*(element(x, at) for x in operands)), out)

        return stage(self.shape, value, name or self.name.strip("_"))

    def number(self, x: Scalar, dtype: str = "") -> Expr:
        """A number that torch makes one of a dtype, by default that of the output, as what that is computed
        with."""
        return of_dtype(x, dtype or self.dtype)

    def cast(self, x: Value, dtype: str = "") -> te.Tensor:
        """An argument in another dtype, by default that of the output."""
        t, to = self.tensor(x), dtype or self.dtype
        return t if t.dtype == to else stage(t.shape, lambda *at: te.cast(t[at], to), "cast")


def of_dtype(x: Expr | Scalar, dtype: str) -> Expr:
    """An element or a number as one of ``dtype``, in the dtype that is computed with. Beside a tensor of
    integers a number takes their dtype, and wraps, as in torch: beside uint8, -1 is 255."""
    kind = dtype if dtype == "bool" else computed(dtype)
    if isinstance(x, Expr):
        integers = is_integer(dtype) and is_integer(E.dtype_of(x))
        return te.cast(te.cast(x, dtype) if integers else x, kind)
    if dtype == "bool":
        return te.const(bool(x), dtype)
    return te.const(wrapped(int(x), dtype) if is_integer(dtype) else x, kind)


Lowered = Value | Sequence[Value | None]
Lower = Callable[..., Lowered]
# {overload: function(node, *arguments) that makes its outputs, None for one that has no expression}.
ROWS: dict[str, Lower] = {}


def aten(*overloads: str, along: bool = False) -> Callable[[Lower], Lower]:
    """Enter a function into the table, for overloads of ATen: "add.Tensor"; of another library of operators
    with its name: "library::name.default". ``along``: it works along axes of its first tensor, which is a row
    of one where it has none."""

    def enter(lower: Lower) -> Lower:
        for name in overloads:
            library, _, op = name.rpartition("::")
            ROWS[f"{library or 'aten'}.{op}"] = _of_rows(lower) if along else lower
        return lower

    return enter


def _of_rows(lower: Lower) -> Lower:
    def lowered(node: TorchNode, x: Value, *args: Any, **how: Any) -> Lowered:
        if x.shape:
            return lower(node, x, *args, **how)
        made = lower(node, reshape(node.tensor(x), (1,)), *args, **how)
        if isinstance(made, te.Tensor):
            return reshape(made, node.shape)
        return [reshape(y, node.shape) if isinstance(y, te.Tensor) else y for y in made]  # type: ignore[union-attr]

    return lowered
