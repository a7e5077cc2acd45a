"""The table of ONNX operators that have an expression, and what a row is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import helper

from autotune.errors import ModelError
from autotune.models.lowering.base import Array, Operand, UnsupportedForm, floating
from schedules import te
from schedules.dtypes import DTYPES
from schedules.expr import Expr

# What a name in a model's graph stands for: a stage, or an array that is known at import.
Value = te.Tensor | Array
Lowered = Value | Sequence[Value | None]


@dataclass(frozen=True)
class OnnxNode:
    """One node while it is lowered. ``version``: the version of the operator that the model means.
    ``outputs``: names, empty for those that the model does not use. ``constant``: makes a tensor of a known
    array."""

    op: str
    version: int
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    constant: Callable[[Array], te.Tensor] = field(repr=False)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or the default of the operator's schema, or ``default``."""
        found = self.attributes.get(name)
        return default if found is None else found

    def wants(self, output: int) -> bool:
        """Whether the model uses an output."""
        return output < len(self.outputs) and bool(self.outputs[output])

    def only(self, count: int) -> None:
        """Raise UnsupportedForm if the model uses more than the first ``count`` outputs."""
        if any(self.outputs[count:]):
            raise UnsupportedForm(f"its output {count} is used, and has no expression")

    def tensor(self, x: Value | None, what: str = "input") -> te.Tensor:
        """An input as a tensor."""
        if x is None:
            raise ModelError(f"its {what} is missing")
        return x if isinstance(x, te.Tensor) else self.constant(x)

    def floats(self, x: Value | None) -> te.Tensor:
        """An input as a tensor of floating point."""
        return floating(self.tensor(x))

    def optional(self, x: Value | None) -> te.Tensor | None:
        return None if x is None else self.tensor(x)

    def operand(self, x: Value | None, what: str = "input") -> Operand:
        """An input as a tensor, or as a literal if it is known and has one element."""
        if isinstance(x, np.ndarray) and x.size == 1 and x.dtype.name in DTYPES:
            return x
        return self.tensor(x, what)

    def known(self, x: Value | None, what: str) -> Array:
        """An input that must be known at import, such as a shape."""
        if x is None:
            raise ModelError(f"its {what} is missing")
        if not isinstance(x, np.ndarray):
            raise UnsupportedForm(
                f"its {what} must be known at import, but is computed or an input of the model; "
                "make it an initializer"
            )
        return x

    def zero_point(self, x: Value | None, what: str) -> int:
        """One known number, 0 where it is left out."""
        found = np.zeros(()) if x is None else self.known(x, what)
        if found.size != 1:
            raise UnsupportedForm(f"its {what} is not one number")
        return int(found.item())

    def ints(self, x: Value | None, what: str) -> list[int]:
        """The integers of an input that must be known."""
        return [int(n) for n in self.known(x, what).reshape(-1)]

    def either(self, name: str, x: Value | None) -> list[int] | None:
        """Integers that older versions have as an attribute, and newer ones as an input. None if neither is
        there."""
        if x is not None:
            return self.ints(x, name)
        found = self.attributes.get(name)
        return None if found is None else [int(n) for n in found]


def named_type(elem_type: int) -> str:
    """The dtype of a number that stands for a type of ONNX."""
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type)).name
    if dtype not in DTYPES:
        raise UnsupportedForm(f"type {dtype} is not supported")
    return dtype


def less(zero: int) -> Callable[[Expr], Expr]:
    """What takes a zero point away, in int32."""
    return lambda x: te.cast(x, "int32") - zero


Lower = Callable[..., Lowered]


@dataclass(frozen=True)
class OperatorVersion:
    """``lower(node, *inputs)`` makes the outputs, for versions of the operator from ``since`` on."""

    since: int
    lower: Lower


ROWS: dict[str, list[OperatorVersion]] = {}


def onnx_op(*names: str, since: int = 1) -> Callable[[Lower], Lower]:
    """Enter a function into the table, for operators of ONNX's own domain."""

    def enter(lower: Lower) -> Lower:
        for name in names:
            ROWS.setdefault(name, []).append(OperatorVersion(since, lower))
        return lower

    return enter


def row(op: str, version: int) -> OperatorVersion | None:
    """The row for a version of an operator."""
    fits = [r for r in ROWS.get(op, ()) if r.since <= version]
    return max(fits, key=lambda r: r.since, default=None)
