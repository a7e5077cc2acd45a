"""A convolution with a small window is one with a larger window, so that it lies beside another one.

A convolution of 1 x 1 beside one of 3 x 3 of the same tensor, as in SqueezeNet, becomes 3 x 3 with zeros
around. Then both are one product (`stack_unequal`, `stack_equal`). That reads the tensor once, but multiplies
with zeros (as in Jia et al., *TASO*, SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from schedules.expr import Load, Var
from schedules.graph.edit import alike, in_topological_order, is_product, mapped, points, remade
from schedules.graph.graph import Graph
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.graph.side_by_side import stack_unequal
from schedules.graph.stack import stack_equal
from schedules.graph.windows import Window, WindowFinder, weight_inside
from schedules.te.compute_dag import ComputeDAG, Stage, Tensor
from schedules.te.evaluator import evaluate
from schedules.te.unique import Taken

# Operations of both with equal windows over those of both as they are, at most.
MOST = 2.0


@may_lose(usual=False, lazy=True)
def widen_windows(graph: Graph, take: Take) -> Graph:
    """The graph with convolutions in the larger window of another one of the same tensor, beside which they
    can lie then."""
    return at_each(graph, take, _places, _applied)


@dataclass(frozen=True)
class _Pair:
    """A product ``small``, and one of the same tensor whose ``window`` has all of that of ``small``.
    ``inner``: that, by the axes of the other."""

    small: Stage
    window: Window
    inner: Window

    @property
    def wide(self) -> Stage:
        """The product with the larger window."""
        assert self.window.product is not None
        return self.window.product

    @property
    def ratio(self) -> float:
        """Operations of both with equal windows, over those as they are."""
        other = points(self.wide) * self.window.size
        after = other + points(self.small) * self.window.size
        return after / (other + points(self.small) * self.inner.size)


def _pairs(graph: Graph) -> Iterator[_Pair]:
    """Pairs of products, each small one with the first that has a larger window."""
    windows = WindowFinder(graph)
    products = [s for s in graph.dag.stages if is_product(s)]
    own = [(s, windows.product(s, tuple(Var(a.var) for a in s.axes), s.axes)) for s in products]
    known = [(s, w) for s, w in own if w is not None]
    for small, mine in known:
        for wide, window in known:
            if window.buffer != mine.buffer or window.size <= mine.size or len(wide.axes) != len(small.axes):
                continue
            inner = windows.product(small, tuple(Var(a.var) for a in wide.axes), wide.axes)
            walked = {v for i in window.at for v in i.steps}
            even = all(
                a.extent == b.extent for a, b in zip(wide.axes, small.axes, strict=True) if a.var in walked
            )
            pair = None if inner is None or not even else _Pair(small, window, inner)
            if pair and pair.ratio <= MOST and weight_inside(window, pair.inner, wide.axes) is not None:
                yield pair
                break


def _places(graph: Graph) -> Iterator[RewritePlace]:
    for pair in _pairs(graph):
        beside = stack_equal(stack_unequal(_widened(graph, pair)))
        left = {s.name for s in beside.dag.stages if is_product(s)}
        if left.isdisjoint((pair.small.name, pair.wide.name)):
            yield RewritePlace(pair.small.name, alike(pair.small, pair.wide))


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    return _widened(graph, next(p for p in _pairs(graph) if p.small.name == place.name))


def _widened(graph: Graph, pair: _Pair) -> Graph:
    """The graph with the small product in the window of the other, and its weights with zeros."""
    old, more = pair.window.weight, weight_inside(pair.window, pair.inner, pair.wide.axes)
    assert isinstance(old, Load) and more is not None and isinstance(pair.inner.weight, Load)
    axes = tuple(replace(a, extent=b.extent) for a, b in zip(pair.wide.axes, pair.small.axes, strict=True))
    by_name = {a.var: a for a in (*axes, *pair.window.axes)}
    own = tuple(by_name[i.name] for i in old.indices if isinstance(i, Var))
    read = graph.dag.tensors[pair.inner.weight.buffer]
    name = Taken(graph.dag.tensors).add(f"{read.name}_wider")
    out = Tensor(name, tuple(a.extent for a in own), old.dtype)
    part = ComputeDAG((read,), (Stage((out,), own, (), (more,)),), (name,))
    (made,) = evaluate(part, [graph.values[read.name]])

    def load(x: Load) -> Load | None:
        return replace(x, buffer=name) if x.buffer == old.buffer else None

    new = mapped(replace(pair.wide, outputs=pair.small.outputs, axes=axes), load)
    stages = [new if s.name == pair.small.name else s for s in graph.dag.stages]
    inputs = (*graph.dag.inputs, out)
    return remade(graph, in_topological_order(stages), inputs, {**graph.values, name: made})
