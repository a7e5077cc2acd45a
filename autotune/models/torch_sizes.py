"""Exported programs whose sizes torch left open: which sizes there are, and the program at numbers for them.

A program has an expression of symbols for each size that is not a number. With a number for each symbol it is
the program that an export of inputs of these sizes gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import ModelError
from autotune.models.model import identifier
from schedules.te.dims import MAX_EXTENT
from schedules.te.open_sizes import OpenSize


@dataclass(frozen=True)
class StaticProgram:
    """What `read_program` takes of an exported program, of one graph for one number for each size."""

    graph: Any
    graph_signature: Any
    state_dict: Mapping[str, Any]
    constants: Mapping[str, Any]


@dataclass(frozen=True)
class Symbol:
    """A symbol of torch for a size. It is extent ``at`` of argument ``of`` of the program, or a part of the
    expression of that one if not ``is_extent``."""

    symbol: Any
    size: OpenSize
    of: int
    at: int
    is_extent: bool


def is_open(program: Any) -> bool:
    """Whether an input of a program has a size that is not a number."""
    return any(not isinstance(n, int) for _, val in _given(program).values() for n in _extents(val))


def symbols_of(program: Any, label: str, largest: int | None) -> list[Symbol]:
    """The sizes of a program that was exported with ``dynamic_shapes=``. ``largest``: of those that the
    export gives none. Raises ModelError for sizes that have no largest number, and for numbers that a call
    tells."""
    found: dict[Any, Symbol] = {}
    told: dict[Any, str] = {}
    numbers: dict[Any, str] = {}
    for given, (i, val) in _given(program).items():
        if hasattr(val, "node"):
            numbers.setdefault(val.node.expr, given)
        for d, n in enumerate(_extents(val)):
            expr = getattr(getattr(n, "node", None), "expr", None)
            for symbol in sorted(getattr(expr, "free_symbols", ()), key=str):
                if symbol in found and (found[symbol].is_extent or expr != symbol):
                    continue
                name = identifier(f"{given}_{d}") if expr == symbol else str(symbol)
                least, most = _range(program, symbol)
                told[symbol] = f"dimension {d} of input {given!r}"
                size = OpenSize(name, max(1, least), most or largest or 0)
                found[symbol] = Symbol(symbol, size, i, d, expr == symbol)
    if free := [name for expr, name in numbers.items() if not expr.free_symbols <= found.keys()]:
        raise ModelError(
            f"{label}: input {free[0]!r} is a number that each call tells, and no size of a tensor: export "
            "with the number that is wanted, once for each, or give it as a tensor"
        )
    if boundless := [told[x] for x, s in found.items() if not s.size.most]:
        raise ModelError(
            f"{label}: {' and '.join(boundless)} has no largest size: give one in the export, as "
            'dynamic_shapes={"x": {0: torch.export.Dim("n", max=512)}}, or import_torch(exported, '
            "largest=512)"
        )
    for x, s in found.items():
        if s.size.most <= s.size.least:
            raise ModelError(
                f"{label}: the size of {told[x]} is {s.size.least} to {s.size.most}: give a larger largest "
                "one, or export it with one size"
            )
    return list(found.values())


def _range(program: Any, symbol: Any) -> tuple[int, int | None]:
    """The least and the largest number of a symbol; None: it has no largest."""
    bounds = program.range_constraints.get(symbol)
    if bounds is None:
        return 1, None
    most = bound(bounds.upper)
    return bound(bounds.lower) or 1, None if most is None or most >= MAX_EXTENT else most


def numbers_in(program: Any) -> set[int]:
    """Numbers that are extents or arguments in a program."""
    import torch

    out: set[int] = set()

    def note(x: Any) -> Any:
        if isinstance(x, int) and not isinstance(x, bool):
            out.add(x)
        return x

    for node in program.graph.nodes:
        for val in flat(node.meta.get("val")):
            for n in _extents(val):
                note(n)
        torch.fx.node.map_aggregate((node.args, node.kwargs), note)
    return out


def at_numbers(program: Any, numbers: Mapping[Any, int]) -> StaticProgram:
    """A decomposed program with a number for each symbol. ``numbers``: {symbol: number}."""
    import torch

    number = _Numbers(numbers)
    graph, env = torch.fx.Graph(), dict[Any, Any]()
    with torch._subclasses.FakeTensorMode():
        for node in program.graph.nodes:
            val = node.meta.get("val")
            fixed = number.of_value(val) if node.op == "call_function" else None
            if fixed is not None:
                env[node] = fixed  # arithmetic of sizes
                continue
            made = env[node] = graph.node_copy(node, env.__getitem__)
            made.name = node.name  # the signature knows it by that
            if "val" in node.meta:
                made.meta = {**node.meta, "val": number.of(val)}
    return StaticProgram(graph, program.graph_signature, program.state_dict, program.constants)


class _Numbers:
    """What values of nodes are where symbols are numbers."""

    def __init__(self, numbers: Mapping[Any, int]) -> None:
        self.numbers = numbers
        self.known: dict[Any, Any] = {}

    def of_value(self, x: Any) -> bool | int | float | None:
        """A symbolic number as a number; None for what is none, or depends on data."""
        expr = getattr(getattr(x, "node", None), "expr", None)
        if expr is None or hasattr(x, "shape"):
            return None
        if expr not in self.known:
            found = expr.subs(self.numbers)
            known = None
            if not getattr(found, "free_symbols", ()):
                known = bool(found) if found in (True, False) else _plain(found, x)
            self.known[expr] = known
        return self.known[expr]

    def of(self, val: Any) -> Any:
        """The value of a node: tensors of numbers for sizes, as far as they are known."""
        import torch

        if isinstance(val, (list, tuple)):
            return type(val)(map(self.of, val))
        if not isinstance(val, torch.Tensor):
            found = self.of_value(val)
            return val if found is None else found
        shape, strides, first = (
            tuple(map(self._int, x)) for x in (val.shape, val.stride(), (val.storage_offset(),))
        )
        if all(isinstance(n, int) for n in (*val.shape, *val.stride(), val.storage_offset())):
            return val
        if not all(isinstance(n, int) for n in (*shape, *strides, *first)):
            return val  # its shape depends on data
        size = self._int(val.untyped_storage().nbytes())
        whole = torch.empty(size // val.dtype.itemsize, dtype=val.dtype, device=val.device)
        return whole.as_strided(shape, strides, first[0])

    def _int(self, n: Any) -> Any:
        if isinstance(n, int):
            return n
        found = self.of_value(n)
        return n if found is None else int(found)


def _plain(found: Any, x: Any) -> int | float:
    import torch

    return float(found) if isinstance(x, torch.SymFloat) else int(found)


def _given(program: Any) -> dict[str, tuple[int, Any]]:
    """{what a caller gives: its place among the arguments, its value}."""
    values = {n.name: n.meta.get("val") for n in program.graph.nodes if n.op == "placeholder"}
    every = [s.arg for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    return {x.name: (i, values[x.name]) for i, x in enumerate(every) if x.name in values}


def _extents(val: Any) -> Iterable[Any]:
    return getattr(val, "shape", ())


def bound(x: Any) -> int | None:
    """A bound of a range; None for an infinite one."""
    try:
        return int(x)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None


def flat(x: Any) -> list[Any]:
    """What lists and tuples in each other hold, in order."""
    return [y for v in x for y in flat(v)] if isinstance(x, (list, tuple)) else [x]
