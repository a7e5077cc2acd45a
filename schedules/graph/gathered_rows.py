"""A convolution is a product of matrices, of rows that are gathered first.

Each row has what one window reads, so that the sum is along one axis, as long as the window times the
channels (Chellapilla, Puri and Simard, 2006). Kernels of convolutions are as fast as those of products, so
rows alone gain nothing. But a map that ends no other kernel is computed again for each element of a window,
where it is a part of the convolution's kernel. Rows are gathered of such maps only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from schedules.expr import Expr, Load, Var
from schedules.graph.edit import alike, is_map, is_product, remade, simplified
from schedules.graph.graph import Graph
from schedules.graph.kinds import is_joined
from schedules.graph.rewrite import RewritePlace, Take, at_each, may_lose
from schedules.graph.windows import Window, WindowFinder
from schedules.loads import read_at, with_loads
from schedules.te.compute_dag import Axis, Stage, Tensor
from schedules.te.unique import Taken

ROW = "k"  # the axis along a row


@may_lose(usual=False, lazy=True)
def gather_rows(graph: Graph, take: Take) -> Graph:
    """The graph with convolutions of maps as products of rows that are gathered first."""
    return at_each(graph, take, _places, _applied)


def _places(graph: Graph) -> Iterator[RewritePlace]:
    windows = WindowFinder(graph)
    products = {s.name for s in graph.dag.stages if is_product(s)}
    for s in graph.dag.stages:
        w = _window(windows, s)
        made = None if w is None else windows.stages.get(w.buffer)
        if made is not None and is_map(made) and not is_joined(made) and w is not None:
            if products.isdisjoint(x.buffer for x in made.reads()):
                yield RewritePlace(s.name, alike(made, s))


def _window(windows: WindowFinder, s: Stage) -> Window | None:
    """The window of a convolution whose weights lie as rows, what is summed first; None of any other
    product."""
    w = windows.product(s, tuple(Var(a.var) for a in s.axes), s.axes) if is_product(s) else None
    if w is None or not isinstance(w.weight, Load):
        return None
    moved = any(i.steps and (i.over is not None or max(i.steps.values()) > 1) for i in w.at)
    names = [i.name for i in w.weight.indices if isinstance(i, Var)]
    walked = {v for i in w.at for v in i.steps}
    own = [a.var for a in s.axes if a.var not in walked]
    shared = any(v in walked for v in names)  # of groups, each has weights of its own
    rows = names[: len(s.reduce_axes)]
    lies = len(own) == 1 and names[len(rows) :] == own and not shared
    return w if moved and lies and s.reduce_axes and walked else None


def _applied(graph: Graph, place: RewritePlace) -> Graph:
    s = next(x for x in graph.dag.stages if x.name == place.name)
    w = _window(WindowFinder(graph), s)
    assert w is not None and isinstance(w.weight, Load)
    weight, data = _loads(s, w.weight.buffer)
    taken = Taken(graph.dag.tensors)
    reduced = {a.var: a for a in s.reduce_axes}
    summed = [reduced[i.name] for i in weight.indices if isinstance(i, Var) and i.name in reduced]
    walked = {v for i in w.at for v in i.steps}
    names = Taken(a.var for a in s.axes)
    row = Axis(names.add(ROW), prod(int(a.extent) for a in summed))
    axes = (*(a for a in s.axes if a.var in walked), row)
    place_of: dict[str, Expr] = {}
    rest: Expr = Var(row.var)
    for n, a in enumerate(reversed(summed)):
        last = n == len(summed) - 1
        place_of[a.var] = rest if last else rest % int(a.extent)
        rest = rest // int(a.extent)
    gathered = Tensor(taken.add(f"{s.name}_rows"), tuple(a.extent for a in axes), data.dtype)
    rows = Stage((gathered,), axes, (), (read_at(data, place_of),))
    old = graph.dag.tensors[weight.buffer]
    value = graph.values[weight.buffer].reshape(int(row.extent), -1)
    matrix = Tensor(taken.add(f"{old.name}_rows"), value.shape, old.dtype)
    out = next(a for a in s.axes if a.var not in walked)

    def load(x: Load) -> Expr:
        if x == weight:
            return Load(matrix.name, (Var(row.var), Var(out.var)), x.dtype)
        return Load(gathered.name, tuple(Var(a.var) for a in axes), x.dtype)

    product = replace(s, reduce_axes=(row,), values=tuple(with_loads(v, load) for v in s.values))
    stages: list[Stage] = []
    for one in graph.dag.stages:
        stages += [simplified(rows), product] if one.name == s.name else [one]
    origins = dict(graph.origins) | {gathered.name: graph.origins.get(s.name, s.name)}
    values = {**graph.values, matrix.name: value}
    return remade(replace(graph, origins=origins), stages, (*graph.dag.inputs, matrix), values)


def _loads(s: Stage, weight: str) -> tuple[Load, Load]:
    """(The load of the weights of a product, that of its data)."""
    first, second = dict.fromkeys(s.reads())
    return (first, second) if first.buffer == weight else (second, first)
