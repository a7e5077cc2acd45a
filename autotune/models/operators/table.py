"""The tables of operators that have an expression, of ONNX and of ATen, and what their rows are given.

A row is a function of an operator's inputs, then of its attributes by name. The type of each parameter says
how it is taken (`Row`): as a tensor, a literal, an axis, as it is. So a function that states what an operator
computes may be its row, of both formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np

from autotune.errors import ModelError
from autotune.models.operators.base import (
    Array,
    Operand,
    UnsupportedForm,
    elementwise,
    floating,
    positive,
    positives,
    read,
    reshape,
    stage,
)
from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, computed, is_integer, wrapped
from schedules.expr import Expr


@dataclass(frozen=True, eq=False)
class Known:
    """A tensor that is known at import. ``value``: an array of numpy, or a tensor of torch. ``weight``: it is
    a parameter or a buffer, or made of some: its elements are never looked at, so that other weights give the
    same expression. ``name``: of the constant with its values; empty for one without a name."""

    value: Any
    weight: bool = False
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape)

    @property
    def dtype(self) -> str:
        """Its name."""
        dtype = self.value.dtype
        return str(getattr(dtype, "name", dtype)).removeprefix("torch.")

    @property
    def place(self) -> Any:
        """Equal for those that are one constant, while they are there: of torch, for the same memory."""
        x = self.value
        if isinstance(x, np.ndarray):
            return id(x)
        return x.data_ptr(), self.shape, tuple(x.stride()), self.dtype

    def array(self) -> Array:
        """Its values as numpy has them, in the same memory where that can be."""
        if isinstance(self.value, np.ndarray):
            return np.asarray(self.value, order="C")
        return to_numpy(self.value)

    def literal(self) -> Array | None:
        """The one number that all elements are: of torch as an array without axes, of numpy itself if it has
        one element. None where they differ, and of a weight."""
        x = self.value
        if self.weight or self.dtype not in DTYPES or 0 in self.shape:
            return None
        if isinstance(x, np.ndarray):
            return x if x.size == 1 else None
        first = x.reshape(-1)[0]
        return np.asarray(first.item(), DTYPES[self.dtype].numpy) if bool((x == first).all()) else None


def to_numpy(tensor: Any) -> Array:
    """The memory of a tensor of torch as numpy has it."""
    import torch

    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if plain.dtype == torch.bfloat16:
        return plain.view(torch.int16).numpy().view(DTYPES["bfloat16"].numpy)
    return plain.numpy()


# What an input of an operator may be: a stage, what is known, and of ATen a number.
Value = te.Tensor | Known
Scalar = bool | int | float

# How a row takes an argument, beside te.Tensor, Operand (a literal where it is known to be one number) and
# bool. Of other types it is taken as it is.
Floats = Annotated[te.Tensor, "floats"]  # of floating point
Ids = Annotated[te.Tensor, "ids"]  # of int32 or int64
Cast = Annotated[te.Tensor, "cast"]  # of ATen, in the dtype of the output
Axis = Annotated[int, "axis"]  # of the first tensor, counted from the front
Axes = Annotated[tuple[int, ...], "axes"]
# Of ONNX, an attribute or an input that must be known: newer versions have as an input what was an attribute.
Values = Annotated[Array, "known"]
Ints = Annotated[list[int], "ints"]
Int = Annotated[int, "integer"]
Zero = Annotated[int, "zero_point"]


@dataclass(frozen=True)
class Node:
    """One call of an operator while it is lowered. ``op``: its name. ``used``: numbers of the outputs that
    are used. ``constant``: makes a tensor of what is known. ``attributes``: by name, which are looked up
    where a parameter of a row has no input."""

    op: str
    used: frozenset[int]
    constant: Callable[[Known], te.Tensor] = field(repr=False)
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
        if isinstance(x, Known) and (found := x.literal()) is not None:
            return found
        return np.asarray(x) if isinstance(x, (bool, int, float)) else self.tensor(x, what)

    def table(self, array: Array) -> te.Tensor:
        """Values that are computed here as a tensor."""
        return self.constant(Known(np.ascontiguousarray(array)))

    def known(self, x: Any, what: str) -> Array:
        """An input that must be known at import, such as a shape; or an attribute."""
        if x is None:
            raise ModelError(f"its {what} is missing")
        if isinstance(x, te.Tensor):
            raise UnsupportedForm(
                f"its {what} must be known at import, but is computed or an input of the model; "
                "make it an initializer"
            )
        return x.array() if isinstance(x, Known) else np.asarray(x)

    def ints(self, x: Any, what: str) -> list[int]:
        """The integers of `known`."""
        return [int(n) for n in self.known(x, what).reshape(-1)]

    def integer(self, x: Any, what: str) -> int:
        """The one integer of `known`."""
        return int(self.known(x, what).item())

    def zero_point(self, x: Any, what: str) -> int:
        """One known number, 0 where it is left out."""
        found = np.zeros(()) if x is None else self.known(x, what)
        if found.size != 1:
            raise UnsupportedForm(f"its {what} is not one number")
        return int(found.item())


@dataclass(frozen=True)
class OnnxNode(Node):
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
class AtenNode(Node):
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
            return te.cast(fn(*(element(x, at, wide) for x in operands)), out)

        return stage(self.shape, value, name or self.name.strip("_"))

    def number(self, x: Scalar) -> Expr:
        """A number that torch makes one of the output's dtype, as what that is computed with."""
        return of_dtype(x, self.dtype)

    def cast(self, x: Value, dtype: str = "") -> te.Tensor:
        """An argument in another dtype, by default that of the output."""
        t, to = self.tensor(x), dtype or self.dtype
        return t if t.dtype == to else stage(t.shape, lambda *at: te.cast(t[at], to), "cast")


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
        raise UnsupportedForm(f"type {dtype} is not supported")
    return dtype


# --- tables -----------------------------------------------------------------------------------

Lower = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """``lower`` makes the outputs of an operator, None for one that has no expression, for its versions from
    ``since`` on. A parameter named ``node`` gets that. ``along``: it works along axes of its first tensor,
    which is a row of one where it has none. ``shaped``: what it makes has the elements of the output in
    order, and gets its shape."""

    lower: Lower
    since: int = 1
    along: bool = False
    shaped: bool = False

    @cached_property
    def parameters(self) -> list[tuple[Parameter, str, bool]]:
        """Each parameter with how it is taken, and whether it may be None."""
        hints = get_type_hints(self.lower, include_extras=True)
        return [(p, *_way(hints.get(p.name))) for p in signature(self.lower).parameters.values()]

    def outputs(self, node: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What it makes of the inputs of a node, and of those that are given by name."""
        args, left, named = [], iter(inputs), dict(named)
        taken = _Taken(node, self.along)
        for p, way, optional in self.parameters:
            if p.name == "node":
                args.append(node)
            elif p.kind is Parameter.VAR_POSITIONAL:
                args += [taken.take(x, way, p.name) for x in left]
            elif p.kind is Parameter.POSITIONAL_OR_KEYWORD and (x := next(left, left)) is not left:
                args.append(None if x is None and optional else taken.take(x, way, p.name))
            elif p.name in named or p.name in node.attributes:
                x = named.get(p.name, node.attributes.get(p.name))
                named[p.name] = None if x is None else taken.take(x, way, p.name)
        made = self.lower(*args, *left, **named)
        if not (self.shaped or taken.is_number):
            return made
        if isinstance(made, (list, tuple)):
            return [reshape(y, node.shape) if isinstance(y, te.Tensor) else y for y in made]
        return reshape(made, node.shape)


class _Taken:
    """The arguments of a row, one after the other."""

    def __init__(self, node: Node, along: bool) -> None:
        self.node, self.along, self.rank, self.is_number = node, along, -1, False

    def take(self, x: Any, way: str, name: str) -> Any:
        """An argument as a row takes it."""
        if way == "axis":
            return positive(self.node.integer(x, name), self.rank)
        if way == "axes":
            return positives(self.node.ints(x, name), self.rank)
        if way in ("known", "ints", "integer", "zero_point"):
            return getattr(self.node, way)(x, name)
        made = bool(x) if way == "bool" else getattr(self.node, way)(x) if way else x
        if self.rank < 0 and isinstance(made, (te.Tensor, Known)):
            if self.along and not made.shape:
                self.is_number, made = True, reshape(self.node.tensor(made), (1,))
            self.rank = len(made.shape)
        return made


def _way(hint: Any) -> tuple[str, bool]:
    """(how an argument is taken whose parameter has a type, whether it may be None)."""
    optional = hint is None or NoneType in get_args(hint)
    if NoneType in get_args(hint):
        rest = [x for x in get_args(hint) if x is not NoneType]
        hint = rest[0] if len(rest) == 1 else Operand if set(rest) == set(get_args(Operand)) else None
    if hint in (te.Tensor, Operand, bool):
        return {te.Tensor: "tensor", Operand: "operand", bool: "bool"}[hint], optional
    return str(hint.__metadata__[0]) if hasattr(hint, "__metadata__") else "", optional


class Table:
    """Rows by the names of operators. ``prefix``: what names without a library have in front."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self.rows: dict[str, list[Row]] = {}

    def __call__(self, *names: str, **how: Any) -> Callable[[Lower], Lower]:
        """Enter a function into the table, for operators of ONNX's own domain, or overloads of ATen such as
        "add.Tensor"; of another library with its name: "library::name.default". ``how``: fields of `Row`."""

        def enter(lower: Lower) -> Lower:
            for name in names:
                library, _, op = name.rpartition("::")
                key = f"{library}.{op}" if library else self.prefix + op
                self.rows.setdefault(key, []).append(Row(lower, **how))
            return lower

        return enter

    def __contains__(self, op: str) -> bool:
        return op in self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def get(self, op: str, version: int = 1) -> Row | None:
        """The row for a version of an operator."""
        fits = [r for r in self.rows.get(op, ()) if r.since <= version]
        return max(fits, key=lambda r: r.since, default=None)


onnx_op, aten, complex_op = Table(), Table("aten."), Table("aten.")
