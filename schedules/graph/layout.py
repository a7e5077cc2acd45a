"""Layout: the order of dimensions of everything between inputs and outputs.

Kernels read and write fastest along the last dimension, and a product vectorises along the axes that only
its weights walk. So a product's output has last what its weights walk, and before that what its data walk, in
the order of the data. Any other stage takes the order of the largest tensor that it reads. So channels of an
image are last (NHWC), whatever the model's file has, and weights of a convolution are (rows, columns, input
channels, output channels). Inputs and outputs keep their order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

from schedules import expr as E
from schedules.expr import Const, Expr, Load, Var
from schedules.graph.edit import factors, is_plain, is_product, is_sum_of_products, loads_of, readers, remade
from schedules.graph.graph import Graph
from schedules.loads import with_loads
from schedules.strides import inner_first
from schedules.te.compute_dag import Axis, Stage


def order_dimensions(graph: Graph) -> Graph:
    """The graph with the dimensions of tensors between stages, and of constants, in the order that kernels
    like."""
    return _constants(_tensors(graph))


def _tensors(graph: Graph) -> Graph:
    fixed = {*graph.dag.outputs, *_summed(graph)}
    batches = _batches(graph)
    remainders = _remainders(graph)
    orders: dict[str, tuple[int, ...]] = {}  # {tensor: its old dimension at each new place}
    stages: list[Stage] = []
    for s in graph.dag.stages:
        s = _reordered(s, orders)
        data = _largest(s, graph)
        reduce_axes = s.reduce_axes if data is None else _along(s.reduce_axes, _in_memory(data, graph))
        s = replace(s, reduce_axes=reduce_axes)
        if not any(t.name in fixed for t in s.outputs):
            ranks = {s.axes[d]: rank for d, rank in batches.get(s.name, {}).items()}
            natural = _natural(s, data, graph, remainders.get(s.name, frozenset()))
            axes = tuple(a for rank in (0, 1, 2) for a in natural if ranks.get(a, 2) == rank)
            order = tuple(s.axes.index(a) for a in axes)
            orders |= {t.name: order for t in s.outputs}
            outputs = tuple(replace(t, shape=tuple(a.extent for a in axes)) for t in s.outputs)
            s = replace(s, axes=axes, outputs=outputs)
        stages.append(s)
    return remade(graph, stages)


def _summed(graph: Graph) -> set[str]:
    """Products that are summed again, what they read, what their sums read, and reductions that only such are
    made of: rows of groups, as they are. In that order rules of spaces look for them."""
    read = readers(graph.dag.stages)
    found: set[str] = set()
    for p in graph.dag.stages:
        for s in read.get(p.name, ()):
            if is_sum_of_products(s, p):
                found |= {x.buffer for x in (*p.reads(), *s.reads())}
    for s in reversed(graph.dag.stages):
        users = [r.name for r in read.get(s.name, ())]
        if s.reducer is not None and not is_product(s) and found.issuperset(users):
            found.add(s.name)
    return found


def _constants(graph: Graph) -> Graph:
    """The graph with constants that products read, and nothing else, in the order of the products' axes.
    Those of products that are summed again stay: their kernel packs them together with their scales."""
    orders: dict[str, tuple[int, ...]] = {}
    summed = _summed(graph)
    for name, loads in loads_of(graph.dag.stages).items():
        if name in graph.values and name not in summed and all(is_product(s) for s, _ in loads):
            s, x = loads[0]
            axes = [a.var for a in (*s.reduce_axes, *s.axes)]
            orders[name] = tuple(sorted(range(len(x.indices)), key=lambda d: (_place(x.indices[d], axes), d)))
    inputs = tuple(
        replace(t, shape=tuple(t.shape[d] for d in orders[t.name])) if t.name in orders else t
        for t in graph.dag.inputs
    )
    values = {n: v.transpose(orders[n]) if n in orders else v for n, v in graph.values.items()}
    return remade(graph, [_reordered(s, orders) for s in graph.dag.stages], inputs, values)


def _reordered(s: Stage, orders: Mapping[str, tuple[int, ...]]) -> Stage:
    def moved(x: Load) -> Expr | None:
        order = orders.get(x.buffer)
        return None if order is None else replace(x, indices=tuple(x.indices[d] for d in order))

    return replace(s, values=tuple(with_loads(v, moved) for v in s.values))


def _place(index: Expr, axes: Sequence[str]) -> int:
    """Where the first axis of an index stands among ``axes``; -1 for a number."""
    return min((axes.index(v) for v in E.variables(index) if v in axes), default=-1)


def _along(axes: Sequence[Axis], indices: Sequence[Expr]) -> tuple[Axis, ...]:
    """Axes in the order in which indices have them; others last, as they were."""
    dims = [E.variables(i) for i in indices]
    place = {v: d for d, vs in reversed(list(enumerate(dims))) for v in vs}
    return tuple(sorted(axes, key=lambda a: place.get(a.var, len(dims))))


def _in_memory(x: Load, graph: Graph) -> Sequence[Expr]:
    """The indices of a load, in the order in which its dimensions lie in memory."""
    t = graph.dag.tensors.get(x.buffer)
    if t is None or t.strides is None:
        return x.indices
    return [x.indices[d] for d in reversed(inner_first(t.strides))]


def _largest(s: Stage, graph: Graph) -> Load | None:
    """The load that walks most of a stage's points, no constant where another does; of equal ones the first
    that is no input."""
    extents = {a.var: int(a.extent) for a in (*s.axes, *s.reduce_axes)}

    def rank(x: Load) -> tuple[bool, int, bool]:
        walked = {v for i in x.indices for v in E.variables(i)}
        points = prod(extents[v] for v in walked if v in extents)
        return x.buffer not in graph.values, points, x.buffer not in graph.inputs

    return max(s.reads(), key=rank, default=None)


def _natural(s: Stage, data: Load | None, graph: Graph, phases: Collection[int]) -> tuple[Axis, ...]:
    """The axes of a stage in the order of what it reads. ``phases``: dimensions that its readers read by a
    remainder, so that nobody walks along them."""
    if data is None:
        return s.axes
    axes = _along(s.axes, _in_memory(data, graph))
    if not is_product(s):
        return axes
    pair = factors(s.values[0])
    constant = [x for x in pair if x.buffer in graph.values]
    weight = constant[0] if constant else pair[1]
    other = pair[0] if weight is pair[1] else pair[1]
    own, others = ({v for i in x.indices for v in E.variables(i)} for x in (weight, other))
    if constant:  # what the weights walk is last, but for phases; of that what they walk alone
        apart = {s.axes[d].var for d in phases}
        key = {a: (a.var in own, a.var not in apart, a.var not in others) for a in axes}
        return tuple(sorted(axes, key=lambda a: key[a]))
    axes = _along(s.axes, _in_memory(other, graph))
    return tuple(sorted(axes, key=lambda a: (not (a.var in own and a.var in others), a.var in own)))


def _remainders(graph: Graph) -> dict[str, set[int]]:
    """{tensor: dimensions in which some stage reads it by a remainder}: the phases of interleaved results."""
    found: dict[str, set[int]] = {}
    for s in graph.dag.stages:
        for x in s.reads():
            for d, i in enumerate(x.indices):
                if isinstance(i, E.Binary) and i.op == "%":
                    found.setdefault(x.buffer, set()).add(d)
    return found


def _batches(graph: Graph) -> dict[str, dict[int, int]]:
    """{tensor: {dimension: its rank}} of those along which a product of two tensors reads it as a batch, so
    that each matrix of the batch lies in one piece: numbers are before axes. What a map reads one to one is
    read as its result is."""
    found: dict[str, dict[int, int]] = {}
    for s in reversed(graph.dag.stages):
        pair = factors(s.values[0]) if is_product(s) else ()
        spatial = {a.var for a in s.axes}
        if pair and not any(f.buffer in graph.values for f in pair):
            for x, other in (pair, pair[::-1]):
                theirs = {v for i in other.indices for v in E.variables(i)} & spatial
                for d, i in enumerate(x.indices):
                    if isinstance(i, Const) or (E.variables(i) and E.variables(i) <= theirs):
                        found.setdefault(x.buffer, {})[d] = 0 if isinstance(i, Const) else 1
        ranks = found.get(s.name)
        if ranks is not None and s.reducer is None:
            own = {s.axes[d].var: rank for d, rank in ranks.items()}
            for x in s.reads():
                if is_plain(x.indices) and len(x.indices) == len(s.axes):
                    mine = {
                        d: own[i.name]
                        for d, i in enumerate(x.indices)
                        if isinstance(i, Var) and i.name in own
                    }
                    found.setdefault(x.buffer, mine)
    return found
