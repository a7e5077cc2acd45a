"""Graphs of torch.compile whose sizes vary, as one program of open sizes.

torch gives such a graph its sizes as numbers beside the tensors. Here they are read from the shapes of
tensors, so that the exported program has no other inputs than those. A number that is no extent of a tensor
stays a number: each value of it is a program of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.errors import ModelError
from autotune.models.torch_sizes import Symbol, bound, symbols_of
from schedules.te.dims import MAX_EXTENT

# Room for what is not seen yet: a size without a largest number has the power of two from so many times the
# first one on, and at least so many.
ROOM, LEAST_ROOM = 4, 64
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
    def of(cls, graph: Any) -> OpenGraph | None:
        """A graph of torch without sizes beside its tensors; None where no extent of one varies."""
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
                    sizes.append(GivenSize(i, d, bound(bounds.lower) or 1, bound(bounds.upper)))
        if not sizes:
            return None
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

    def open_symbols(self, program: Any, args: Sequence[Any]) -> list[Symbol]:
        """The sizes of the decomposed program, each with a largest one for these arguments. Raises
        ModelError where one is no extent of an argument, or torch's export fixed one."""
        values = [x.meta.get("val") for x in program.graph.nodes if x.op == "placeholder"]
        for s in self.sizes:
            if isinstance(values[s.of].shape[s.at], int):
                raise ModelError(f"torch's export fixes dimension {s.at} of argument {s.of}")
        out = []
        told = {(s.of, s.at): s for s in self.sizes}
        for symbol in symbols_of(program, "the graph", MAX_EXTENT):
            if not symbol.is_extent:
                raise ModelError(f"a size of argument {symbol.of} is told by no extent alone")
            s = told[symbol.of, symbol.at]
            least = max(symbol.size.least, s.least)
            most = min(symbol.size.most, s.most or MAX_EXTENT)
            if most == MAX_EXTENT:
                most = with_room(args[s.of].shape[s.at])
            out.append(replace(symbol, size=replace(symbol.size, least=least, most=most)))
        return out


def with_room(seen: int) -> int:
    """The largest size where there is no other: a power of two.

    >>> with_room(5), with_room(32), with_room(33)
    (64, 128, 256)
    """
    return max(LEAST_ROOM, 1 << (ROOM * seen - 1).bit_length())
