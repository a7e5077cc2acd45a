"""The tables of operators that have an expression, of ONNX and of ATen, and what their rows are given.

A row is a function of an operator's inputs, then of its attributes by name. The type of each parameter says
how it is taken: as a tensor, a literal, an axis, as it is. So a function that states what an operator
computes may be its row, of both formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter, signature
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

from autotune.models.operators.axes import positive, positives, reshape
from autotune.models.operators.base import (
    Array,
    Operand,
)
from autotune.models.operators.known import KnownTensor
from autotune.models.operators.node import OperatorNode
from schedules import te

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


Lower = Callable[..., Any]


@dataclass(frozen=True)
class OperatorRow:
    """``lower`` makes the outputs of an operator, None for one that has no expression, for its versions from
    ``since`` on. A parameter named ``node`` gets that. ``along``: it works along axes of its first tensor,
    which is a row of one where it has none. ``shaped``: what it makes has the elements of the output in
    order, and gets its shape. ``inputs``: their parameters, where these are not the first ones. ``names``:
    {parameter: attribute}, where that has another name."""

    lower: Lower
    since: int = 1
    along: bool = False
    shaped: bool = False
    inputs: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def parameters(self) -> list[tuple[Parameter, str, bool]]:
        """Each parameter with how it is taken, and whether it may be None."""
        hints = get_type_hints(self.lower, include_extras=True)
        return [(p, *_way(hints.get(p.name))) for p in signature(self.lower).parameters.values()]

    def outputs(self, node: Any, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What it makes of the inputs of a node, and of those that are given by name."""
        if self.inputs:
            inputs, named = (), dict(zip(self.inputs, inputs, strict=False))
        args, left, named = [], iter(inputs), dict(named)
        taken = _Taken(node, self.along)
        for p, way, optional in self.parameters:
            if p.name == "node":
                args.append(node)
            elif p.kind is Parameter.VAR_POSITIONAL:
                args += [taken.take(x, way, p.name) for x in left]
            elif p.kind is Parameter.POSITIONAL_OR_KEYWORD and (x := next(left, left)) is not left:
                args.append(None if x is None and optional else taken.take(x, way, p.name))
            else:
                attribute = node.attributes.get(self.names.get(p.name, p.name), p.default)
                if (x := named.get(p.name, attribute)) is not Parameter.empty:
                    named[p.name] = None if x is None else taken.take(x, way, p.name)
        made = self.lower(*args, *left, **named)
        if not (self.shaped or taken.is_number):
            return made
        if isinstance(made, (list, tuple)):
            return [reshape(y, node.shape) if isinstance(y, te.Tensor) else y for y in made]
        return reshape(made, node.shape)


class _Taken:
    """The arguments of a row, one after the other."""

    def __init__(self, node: OperatorNode, along: bool) -> None:
        self.node, self.along, self.rank, self.is_number = node, along, -1, False

    def take(self, x: Any, way: str, name: str) -> Any:
        """An argument as a row takes it."""
        if way == "axis":
            return positive(self.node.integer(x, name), self.rank)
        if way == "axes":
            return positives(self.node.ints(x, name), self.rank)
        if way in ("known", "ints", "integer"):
            return getattr(self.node, way)(x, name)
        if self.rank < 0 and isinstance(x, (te.Tensor, KnownTensor)):
            if self.along and not x.shape:
                self.is_number, x = True, reshape(self.node.tensor(x), (1,))
            self.rank = len(x.shape)
        return bool(x) if way == "bool" else getattr(self.node, way)(x) if way else x


def _way(hint: Any) -> tuple[str, bool]:
    """(how an argument is taken whose parameter has a type, whether it may be None)."""
    optional = hint is None or NoneType in get_args(hint)
    if NoneType in get_args(hint):
        rest = [x for x in get_args(hint) if x is not NoneType]
        hint = rest[0] if len(rest) == 1 else Operand if set(rest) == set(get_args(Operand)) else None
    if hint in (te.Tensor, Operand, bool):
        return {te.Tensor: "tensor", Operand: "operand", bool: "bool"}[hint], optional
    return str(hint.__metadata__[0]) if hasattr(hint, "__metadata__") else "", optional


class OperatorTable(dict[str, list[OperatorRow]]):
    """{operator: its rows}. ``prefix``: what names without a library have in front."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix

    def __call__(self, *names: str, **how: Any) -> Callable[[Lower], Lower]:
        """Enter a function into the table, for operators of ONNX's own domain, or overloads of ATen such as
        "add.Tensor"; of another library with its name: "library::name.default". ``how``: fields of a row."""

        def enter(lower: Lower) -> Lower:
            for name in names:
                library, _, op = name.rpartition("::")
                key = f"{library}.{op}" if library else self.prefix + op
                self.setdefault(key, []).append(OperatorRow(lower, **how))
            return lower

        return enter

    def row(self, op: str, version: int = 1) -> OperatorRow | None:
        """The row for a version of an operator."""
        fits = [r for r in self.get(op, ()) if r.since <= version]
        return max(fits, key=lambda r: r.since, default=None)


onnx_op, aten, complex_op = OperatorTable(), OperatorTable("aten."), OperatorTable("aten.")
