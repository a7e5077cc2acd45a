"""A long sum of few results is made in parts, which threads share, and a second kernel adds them up.

Kernels of products share their results among threads. Where one or two tiles have all results, such as a
product of 16 × 16 numbers over 100,000, one thread works. (Sums of rows are split inside their kernel.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from schedules import expr as E
from schedules.expr import Load, Var
from schedules.graph.edit import alike, free_axis, is_product, points, remade, simplified
from schedules.graph.graph import Graph
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.graph.windows import is_open_stage
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.unique import Taken

# Parts; most results, of some tiles, and least terms of a sum that is split.
PARTS, FEW, LONG = 8, 2048, 1 << 14


@may_lose(usual=False, lazy=True)
def split_sums(graph: Graph, take: Take) -> Graph:
    """The graph with long sums of few products in parts, each with a kernel that threads share."""
    return at_each(graph, take, _places, _applied)


def _places(graph: Graph) -> Iterator[RewritePlace]:
    for s in graph.dag.stages:
        if is_product(s) and s.name not in graph.recut and not is_open_stage(s):
            terms = prod(int(a.extent) for a in s.reduce_axes)
            if points(s) <= FEW and terms >= LONG and _axis(s) is not None:
                yield RewritePlace(s.name, alike(s))


def _axis(s: Stage) -> Axis | None:
    """The longest axis of a sum that is cut into whole parts."""
    whole = [a for a in s.reduce_axes if a.extent % PARTS == 0 and a.extent > PARTS]
    return max(whole, key=lambda a: int(a.extent), default=None)


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    s = next(x for x in graph.dag.stages if x.name == place.name)
    axis = _axis(s)
    assert axis is not None
    out, n = s.outputs[0], int(axis.extent) // PARTS
    part = free_axis("part", {a.var for a in (*s.axes, *s.reduce_axes)})
    made = Tensor(Taken(graph.dag.tensors).add(f"{s.name}_parts"), (PARTS, *out.shape), out.dtype)
    inside = {axis.var: Var(part) * n + Var(axis.var)}
    first = replace(
        s,
        outputs=(made,),
        axes=(Axis(part, PARTS), *s.axes),
        reduce_axes=tuple(replace(a, extent=n) if a is axis else a for a in s.reduce_axes),
        values=tuple(E.substitute(v, inside) for v in s.values),
    )
    load = Load(made.name, (Var(part), *(Var(a.var) for a in s.axes)), made.dtype)
    last = replace(s, reduce_axes=(Axis(part, PARTS),), values=(load,))
    stages = [y for x in graph.dag.stages for y in ((simplified(first), last) if x is s else (x,))]
    after = remade(graph, stages)
    return replace(after, recut=after.recut | {made.name})
