"""What a row is given: one call of an operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from autotune.errors import ModelError
from autotune.models.operators.base import (
    Array,
    Operand,
    UnsupportedForm,
    elementwise,
    floating,
    read,
    stage,
)
from autotune.models.operators.known import KnownTensor, Scalar, Value
from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, computed, is_integer, wrapped
from schedules.expr import Expr
from schedules.te.scalars import instead_of


@dataclass(frozen=True)
class OperatorNode:
    """One call of an operator while it is lowered. ``op``: its name. ``used``: numbers of the outputs that
    are used. ``constant``: makes a tensor of what is known. ``attributes``: by name, which are looked up
    where a parameter of a row has no input."""

    op: str
    used: frozenset[int]
    constant: Callable[[KnownTensor], te.Tensor] = field(repr=False)
    attributes: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    def only(self, count: int) -> None:
        """Raise UnsupportedForm if more than the first ``count`` outputs are used."""
        if more := sorted(n for n in self.used if n >= count):
            raise UnsupportedForm(f"its output {more[0]} is used, and has no expression")

    def tensor(self, x: Value | None, what: str = "input") -> te.Tensor:
        """An argument as a tensor."""
        if x is None:
            raise ModelError(f"its {what} is missing")
        return x if isinstance(x, te.Tensor) else self.constant(x)

    def floats(self, x: Value | None) -> te.Tensor:
        """An argument as a tensor of floating point."""
        return floating(self.tensor(x))

    def operand(self, x: Value | Scalar | None, what: str = "input") -> Operand:
        """An argument as a tensor, or as a literal where it is known to be one number."""
        if isinstance(x, KnownTensor) and (found := x.literal()) is not None:
            return found
        return np.asarray(x) if isinstance(x, (bool, int, float)) else self.tensor(x, what)

    def table(self, array: Array) -> te.Tensor:
        """Values that are computed here as a tensor."""
        return self.constant(KnownTensor(np.ascontiguousarray(array)))

    def known(self, x: Any, what: str) -> Array:
        """An input that must be known at import, such as a shape; or an attribute."""
        if x is None:
            raise ModelError(f"its {what} is missing")
        if isinstance(x, te.Tensor):
            raise UnsupportedForm(
                f"its {what} must be known at import, but is computed or an input of the model; "
                "make it an initializer"
            )
        return x.array() if isinstance(x, KnownTensor) else np.asarray(x)

    def ints(self, x: Any, what: str) -> list[int]:
        """The integers of `known`."""
        return [int(n) for n in self.known(x, what).reshape(-1)]

    def integer(self, x: Any, what: str) -> int:
        """The one integer of `known`."""
        return int(self.known(x, what).item())


@dataclass(frozen=True)
class OnnxNode(OperatorNode):
    """``version``: the version of the operator that the model means. ``count``: of the outputs that the node
    names."""

    version: int
    count: int

    def ids(self, x: Value) -> te.Tensor:
        """Indices."""
        t = self.tensor(x)
        if t.dtype not in ("int32", "int64"):
            raise ValueError(f"indices are {t.dtype}, not int32 or int64")
        return t

    def elementwise(
        self, fn: Callable[..., Any], *xs: Value | Operand | None, dtype: str = "", name: str = ""
    ) -> te.Tensor:
        """``fn`` of the elements, by default in the dtype of the first input. Raises UnsupportedForm for an
        older form, which broadcasts by its attributes."""
        if self.version < 7 and self.attributes.get("broadcast"):
            raise UnsupportedForm(
                f"version {self.version} broadcasts by an axis; convert the model to opset 13"
            )
        given = [x if isinstance(x, np.ndarray) else self.operand(x) for x in xs]
        return elementwise(fn, *given, dtype=dtype, name=name or self.op.lower())


@dataclass(frozen=True)
class TorchNode(OperatorNode):
    """``op``: the overload, such as "aten.add.Tensor". ``shape``, ``dtype``: of its output, of the first one
    where there are several. ``common``: the dtype that its tensors and numbers promote to."""

    shape: tuple[int, ...]
    dtype: str
    common: str

    @property
    def name(self) -> str:
        """The operator without namespace and overload."""
        return self.op.split(".")[1]

    def ids(self, x: Value) -> te.Tensor:
        """Indices."""
        t = self.tensor(x)
        if t.dtype not in ("int32", "int64"):
            raise UnsupportedForm(f"indices of {t.dtype} are not supported, only of int32 and int64")
        return t

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

        def value(*at: Expr) -> Expr:
            return _stored(fn(*(element(x, at, wide) for x in operands)), out)

        return stage(self.shape, value, name or self.name.strip("_"))

    def number(self, x: Scalar) -> Expr:
        """A number that torch makes one of the output's dtype, as what that is computed with."""
        return of_dtype(x, self.dtype)

    def cast(self, x: Value, dtype: str = "") -> te.Tensor:
        """An argument in another dtype, by default that of the output."""
        t, to = self.tensor(x), dtype or self.dtype
        return t if t.dtype == to else stage(t.shape, lambda *at: _stored(t[at], to), "cast")


def _stored(v: Expr, dtype: str) -> Expr:
    """A cast as torch has it: without an infinity, what is too large is the largest."""
    return te.cast(v, dtype, saturate=not DTYPES[dtype].infinite)


def element(x: Operand, at: Sequence[Expr], dtype: str) -> Expr:
    """`of_dtype` of the element of an operand that broadcasts to the tensor whose element is at ``at``."""
    return of_dtype(read(x, at) if isinstance(x, te.Tensor) else x.item(), dtype)


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


def numpy_type(elem_type: int) -> np.dtype[Any]:
    """The dtype of a number that stands for a type of ONNX."""
    from onnx import helper

    return np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))


def named_type(elem_type: int) -> str:
    """The name of such a dtype. Raises UnsupportedForm for one that tensors do not have."""
    return supported(numpy_type(elem_type).name)


def supported(dtype: str) -> str:
    """Itself. Raises UnsupportedForm for a dtype that tensors do not have."""
    if dtype not in DTYPES:
        raise UnsupportedForm(f"type {dtype} is not supported; cast it to one of {instead_of(dtype)}")
    return dtype


