"""Of each tensor, only the elements that are read are computed.

A model that takes the first token of a sequence, or half of a layer's outputs, needs that part alone of all
that was computed row by row before it. The part that is read is a box: it follows from the ranges of indices,
from the outputs backwards. It is the loop domain of a producer, as Halide's bounds inference has it
(Ragan-Kelley et al., PLDI 2013).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from math import prod

from schedules import affine
from schedules import expr as E
from schedules.affine import Range
from schedules.expr import Const, Expr, Load, Var
from schedules.graph.edit import mapped, ranges, remade, simplified
from schedules.graph.graph import Graph
from schedules.te.compute_dag import Stage
from schedules.te.extent import is_open

# For each dimension of a tensor: the first and the last index that is read.
Box = tuple[Range, ...]
# A stage is cut to at most this share of its elements: a box of a few elements less has odd extents.
MOST = 0.75


def narrow(graph: Graph) -> Graph:
    """The graph with stages cut to the part of them that is read, where that is much smaller. Outputs,
    constants and axes of open extents stay whole."""
    lie = {a.tensor for a in graph.views.values()} | graph.views.keys() | graph.joins.keys()
    lie |= {n for of in graph.joins.values() for n in of}
    kept = {*graph.dag.outputs, *lie, *(t.name for t in graph.dag.inputs)}
    read: dict[str, Box] = {}
    first: dict[str, tuple[int, ...]] = {}  # of a stage that was cut: its old indices of what is now 0
    stages: list[Stage] = []
    for s in reversed(graph.dag.stages):
        whole = tuple((0, int(a.extent) - 1) for a in s.axes)
        names = [t.name for t in s.outputs]
        boxes = [read[n] for n in names if n in read]
        box = reduce(_hull, boxes) if boxes and s.plain and kept.isdisjoint(names) else whole
        if _points(box) <= MOST * _points(whole):
            first |= dict.fromkeys(names, tuple(a for a, _ in box))
            s = _cut(s, box)
        stages.append(s)
        _add(read, s, graph)
    if not first:
        return graph
    return remade(graph, [mapped(s, lambda x: _moved(x, first)) for s in reversed(stages)])


def _add(read: dict[str, Box], s: Stage, graph: Graph) -> None:
    """Note what a stage reads."""
    inside = ranges(s)
    for x in s.reads():
        shape = graph.dag.tensors[x.buffer].shape
        box = tuple(_range(i, n, inside) for i, n in zip(x.indices, shape, strict=True))
        read[x.buffer] = _hull(read.get(x.buffer, box), box)


def _points(box: Box) -> int:
    return prod(last - first + 1 for first, last in box)


def _hull(a: Box, b: Box) -> Box:
    return tuple(map(affine.hull, a, b))


def _range(index: Expr, extent: int, inside: Mapping[str, Range]) -> Range:
    """The indices of a dimension that are read. Those outside are guarded, and nobody uses them."""
    whole = (0, int(extent) - 1)
    found = None if is_open(extent) else affine.bounds(index, inside)
    if found is None or found[1] < 0 or found[0] > whole[1]:
        return whole
    return max(found[0], 0), min(found[1], whole[1])


def _cut(s: Stage, box: Box) -> Stage:
    axes = tuple(
        replace(a, extent=last - first + 1) if last - first + 1 < int(a.extent) else a
        for a, (first, last) in zip(s.axes, box, strict=True)
    )
    moved: dict[str, Expr] = {
        a.var: Var(a.var) + first for a, (first, _) in zip(s.axes, box, strict=True) if first
    }
    values = tuple(E.substitute(v, moved) for v in s.values)
    shape = tuple(a.extent for a in axes)
    outputs = tuple(replace(t, shape=shape) for t in s.outputs)
    return simplified(replace(s, axes=axes, outputs=outputs, values=values))


def _moved(x: Load, first: Mapping[str, tuple[int, ...]]) -> Expr | None:
    at = first.get(x.buffer)
    if at is None:
        return None
    return replace(x, indices=tuple(i - Const(n) if n else i for i, n in zip(x.indices, at, strict=True)))
