"""Graphs of torch.compile whose sizes vary, as one program of open sizes.

torch gives such a graph its sizes as numbers beside the tensors. Here they are read from the shapes of
tensors, so that the exported program has no other inputs than those. A number that is no extent of a tensor
stays a number: each value of it is a program of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import ModelError
from autotune.models.model import Model
from autotune.models.open_import import open_model
from autotune.models.torch_import import Imported
from autotune.models.torch_sizes import StaticProgram, Symbol, at_numbers, is_open, numbers_in, symbols_of

# Room for what is not seen yet: a size without a largest number has the power of two from so many times the
# first one on, and at least so many.
ROOM, LEAST_ROOM = 4, 64
# A range that ends here has no end.
ENDLESS = 2**31
# Where a size cannot stay open.
FIXED = "mark it with torch._dynamo.mark_static(tensor, dimension)"


@dataclass(frozen=True)
class GivenSize:
    """A size of a graph: extent ``at`` of argument ``of``, from ``least`` on, to ``most`` if torch knows."""

    of: int
    at: int
    least: int
    most: int | None


@dataclass(frozen=True)
class OpenGraph:
    """A graph of which extents vary. ``sizes``: those that torch left open. ``fixed``: numbers of arguments
    that are numbers, and no extent of a tensor."""

    graph: Any
    sizes: tuple[GivenSize, ...]
    fixed: tuple[int, ...]

    @classmethod
    def of(cls, graph: Any) -> OpenGraph:
        """The graph of torch without sizes beside its tensors."""
        import torch

        values = [n.meta.get("example_value") for n in graph.graph.nodes if n.op == "placeholder"]
        extents: dict[Any, tuple[int, int]] = {}
        sizes = []
        for i, x in enumerate(values):
            for d, n in enumerate(getattr(x, "shape", ())):
                if not isinstance(n, int):
                    expr = n.node.expr
                    extents.setdefault(expr, (i, d))
                    bounds = n.node.shape_env.bound_sympy(expr)
                    sizes.append(GivenSize(i, d, _bound(bounds.lower) or 1, _bound(bounds.upper)))
        plain = torch.fx.Graph()
        env: dict[Any, Any] = {}
        given = [n for n in graph.graph.nodes if n.op == "placeholder"]
        for n in given:
            env[n] = plain.node_copy(n)
        fixed = []
        for i, (n, x) in enumerate(zip(given, values, strict=True)):
            if hasattr(x, "shape"):
                continue
            if hasattr(x, "node") and x.node.expr in extents:
                of, at = extents[x.node.expr]
                env[n] = plain.call_function(torch.ops.aten.sym_size.int, (env[given[of]], at))
            else:
                fixed.append(i)
        for n in graph.graph.nodes:
            if n.op != "placeholder":
                env[n] = plain.node_copy(n, env.__getitem__)
        return cls(torch.fx.GraphModule(graph, plain), tuple(sizes), tuple(fixed))

    def values(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments that are numbers, of each of which there is a program."""
        return tuple(args[i] for i in self.fixed)

    def exported(self, args: Sequence[Any]) -> Any:
        """The program that torch exports, its sizes open."""
        import torch
        from torch.export import Dim

        dims: list[Any] = [{} if hasattr(x, "shape") else None for x in args]
        for s in self.sizes:
            dims[s.of][s.at] = Dim.AUTO
        return torch.export.export(self.graph, tuple(args), dynamic_shapes=tuple(dims))

    def open_symbols(self, program: Any, args: Sequence[Any], label: str) -> list[Symbol]:
        """The sizes of the decomposed program, each with a largest one for these arguments. Raises
        ModelError where one is no extent of an input."""
        out = []
        given = [s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        told = {f"dimension {s.at} of input {given[s.of]!r}": s for s in self.sizes}
        for symbol in symbols_of(program, label, ENDLESS):
            s = told[symbol.where]
            if not symbol.is_extent:
                raise ModelError(f"{label}: {symbol.where} is {symbol.symbol} in an expression: {FIXED}")
            seen = int(args[s.of].shape[s.at])
            least = max(symbol.size.least, s.least)
            most = symbol.size.most if s.most is None else min(s.most, symbol.size.most)
            if most >= ENDLESS:
                most = with_room(seen)
            if least < most:
                out.append(replace(symbol, size=replace(symbol.size, least=least, most=most)))
        return out


def with_room(seen: int) -> int:
    """The largest size where there is no other: a power of two.

    >>> with_room(5), with_room(32), with_room(33)
    (64, 128, 256)
    """
    return max(LEAST_ROOM, 1 << (ROOM * seen - 1).bit_length())


