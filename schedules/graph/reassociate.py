"""Products of products in another order: (A B) C is A (B C).

The number of operations of a chain of products depends on its order, as in the classical matrix-chain
problem (Cormen et al., *Introduction to Algorithms*, section 15.2): ``(A @ B) @ c`` of a vector ``c`` makes a
matrix that ``A @ (B @ c)`` does not. And where both matrices are weights, their product is known ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from schedules import expr as E
from schedules.dtypes import is_float, is_storage
from schedules.expr import Binary, Expr, Load, Var
from schedules.graph.edit import alike, is_plain, is_product, readers, remade
from schedules.graph.graph import Graph
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.loads import read_at
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.extent import is_open
from schedules.te.unique import Taken

# Operations of the other order over those of the one in the model: above the first it is no place, up to the
# second it is usual.
MOST, SURE = 1.5, 0.5


@may_lose(usual=False)
def reassociate(graph: Graph, take: Take) -> Graph:
    """The graph with products of products in another order: (A B) C as A (B C)."""
    return at_each(graph, take, _places, _applied)


@dataclass(frozen=True)
class _Chain:
    """``last`` is a sum of products of ``first``, which nobody else reads, and ``right``. ``first`` is one of
    ``left`` and ``middle``, and only ``middle`` walks what ``last`` sums over. ``to_last``: {axis of
    ``first``: what it is in ``last``}."""

    first: Stage
    last: Stage
    left: Load
    middle: Load
    right: Load
    to_last: dict[str, Expr]

    @property
    def inner(self) -> tuple[Axis, ...]:
        """The axes of ``middle * right``, but for those that it is summed over: in order those that the sum
        of ``first`` has, then those of ``last`` that one of the two walks."""
        walked = _walked(self.right)
        walked |= {v for a in _walked(self.middle) if a in self.to_last for v in E.variables(self.to_last[a])}
        return (*self._summed, *(a for a in self.last.axes if a.var in walked))

    @property
    def _summed(self) -> tuple[Axis, ...]:
        """The axes that ``first`` sums over, with names that ``last`` has not."""
        taken = Taken(a.var for a in (*self.last.axes, *self.last.reduce_axes))
        return tuple(replace(a, var=taken.add(a.var)) for a in self.first.reduce_axes)

    def in_last(self, x: Load) -> Load:
        """A load of ``first`` with the axes of the new stages."""
        pairs = zip(self.first.reduce_axes, self._summed, strict=True)
        names = self.to_last | {a.var: Var(b.var) for a, b in pairs}
        return read_at(x, names)

    @property
    def ratio(self) -> float:
        """Operations of the other order, over those of this one. What is known ahead costs nothing."""
        before = _steps(self.first) + _steps(self.last)
        ahead = prod(int(a.extent) for a in (*self.inner, *self.last.reduce_axes))
        return (ahead + _steps(self.last, self.first.reduce_axes)) / before


def _steps(s: Stage, over: tuple[Axis, ...] | None = None) -> int:
    return prod(int(a.extent) for a in (*s.axes, *(s.reduce_axes if over is None else over)))


def _walked(x: Load) -> set[str]:
    return {v for i in x.indices for v in E.variables(i)}


def _pair(s: Stage) -> tuple[Load, Load] | None:
    """The two loads of a plain product of floats; None of any other stage."""
    e = s.values[0]
    if not is_product(s) or not isinstance(e, Binary) or not is_float(s.outputs[0].dtype):
        return None
    if any(is_open(a.extent) for a in (*s.axes, *s.reduce_axes)):
        return None
    a, b = e.a, e.b
    plain = isinstance(a, Load) and isinstance(b, Load) and a.dtype == b.dtype == s.outputs[0].dtype
    return (a, b) if plain and isinstance(a, Load) and isinstance(b, Load) else None


def _chains(graph: Graph) -> Iterator[_Chain]:
    made = {s.name: s for s in graph.dag.stages}
    read, kept = readers(graph.dag.stages), set(graph.dag.outputs)
    for last in graph.dag.stages:
        pair = _pair(last)
        for x, right in () if pair is None else (pair, pair[::-1]):
            first = made.get(x.buffer)
            alone = first is not None and first.name not in kept and len(read[first.name]) == 1
            inside = None if first is None or not alone else _pair(first)
            if inside is None or first is None or x.buffer == right.buffer or not is_plain(x.indices):
                continue
            if is_storage(first.outputs[0].dtype):
                continue  # what lies between is rounded
            to_last = {a.var: i for a, i in zip(first.axes, x.indices, strict=True)}
            summed = {a.var for a in last.reduce_axes}
            for left, middle in (inside, inside[::-1]):
                own = {a for a, i in to_last.items() if isinstance(i, Var) and i.name in summed}
                if summed <= _walked(x) and not own & _walked(left) and own <= _walked(middle):
                    yield _Chain(first, last, left, middle, right, to_last)
                    break


def _work(chain: _Chain, graph: Graph) -> float:
    """Operations of the other order of a chain, over those of this one."""
    if chain.middle.buffer in graph.values and chain.right.buffer in graph.values:
        return _steps(chain.last, chain.first.reduce_axes) / (_steps(chain.first) + _steps(chain.last))
    return chain.ratio


def _best(graph: Graph) -> dict[str, tuple[_Chain, float]]:
    """{last product: (its chain, work of the other order)}. Of a product of two products, the chain whose
    other order is less work; none that is much more."""
    found: dict[str, tuple[_Chain, float]] = {}
    for chain in _chains(graph):
        work = _work(chain, graph)
        if work <= MOST and (chain.last.name not in found or work < found[chain.last.name][1]):
            found[chain.last.name] = chain, work
    return found


def _places(graph: Graph) -> Iterator[RewritePlace]:
    for name, (chain, work) in _best(graph).items():
        yield RewritePlace(name, (*alike(chain.first, chain.last), work), work <= SURE)


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    chain, _ = _best(graph)[place.name]
    taken = Taken(graph.dag.tensors)
    last = chain.last
    dtype = last.outputs[0].dtype
    axes = chain.inner
    name = taken.add(f"{last.name}_inner")
    inner = replace(
        last,
        outputs=(Tensor(name, tuple(a.extent for a in axes), dtype),),
        axes=axes,
        values=(chain.in_last(chain.middle) * chain.right,),
    )
    load = Load(name, tuple(Var(a.var) for a in axes), dtype)
    outer = replace(
        last, reduce_axes=axes[: len(chain.first.reduce_axes)], values=(chain.in_last(chain.left) * load,)
    )
    stages: list[Stage] = []
    for s in graph.dag.stages:
        if s.name == last.name:
            stages += [inner, outer]
        elif s.name != chain.first.name:
            stages.append(s)
    origins = dict(graph.origins) | {name: graph.origins.get(last.name, last.name)}
    return remade(replace(graph, origins=origins), stages)
