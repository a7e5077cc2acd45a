"""Products of weights that lie transposed, read as products of matrices.

A linear layer of torch has weights of (outputs, inputs). What knows products of matrices alone
(`schedules.substitutions`) finds them in `turned`, and `turned_back` restores the products that it left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from schedules.expr import Expr, Load, Var
from schedules.graph.edit import is_product, remade
from schedules.graph.graph import Array, Graph
from schedules.loads import with_loads
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.unique import Taken


def turned(graph: Graph) -> Graph:
    """The graph with each constant that a product reads as (axis, summed axis) as a transposed constant."""
    taken = Taken(graph.dag.tensors)
    names: dict[str, str] = {}
    stages = []
    for s in graph.dag.stages:
        for name in _transposed(s, graph) if is_product(s) else ():
            names[name] = names.get(name) or taken.add(f"{name}_turned")
            s = _reading(s, name, names[name])
        stages.append(s)
    if not names:
        return graph
    values: dict[str, Array] = {**graph.values, **{new: graph.values[old].T for old, new in names.items()}}
    own = graph.dag.tensors
    more = [Tensor(new, own[old].shape[::-1], own[old].dtype) for old, new in names.items()]
    return remade(graph, stages, [*graph.dag.inputs, *more], values)


def turned_back(now: Graph, before: Graph, plain: Graph) -> Graph:
    """The graph ``now`` with the products that are as in ``before``, which is ``plain`` turned, as they are
    in ``plain``."""
    was = {s.name: s for s in before.dag.stages}
    own = {s.name: s for s in plain.dag.stages}
    stages = [own[s.name] if s.name in own and was.get(s.name) == s else s for s in now.dag.stages]
    known = {t.name for t in now.dag.inputs}
    inputs = [*now.dag.inputs, *(t for t in plain.dag.inputs if t.name not in known)]
    made = remade(now, stages, inputs, {**plain.values, **now.values})
    laid = {n: v if n in plain.values else np.ascontiguousarray(v) for n, v in made.values.items()}
    return replace(made, values=laid)


def _transposed(s: Stage, graph: Graph) -> list[str]:
    """The constants of two axes that a product reads the other way round."""
    axes, summed = {a.var for a in s.axes}, {a.var for a in s.reduce_axes}
    found = []
    for x in s.reads():
        match x.indices:
            case (Var(name=i), Var(name=k)) if x.buffer in graph.values and i in axes and k in summed:
                found.append(x.buffer)
    return list(dict.fromkeys(found))


def _reading(s: Stage, old: str, new: str) -> Stage:
    def load(x: Load) -> Expr | None:
        return replace(x, buffer=new, indices=x.indices[::-1]) if x.buffer == old else None

    return replace(s, values=tuple(with_loads(v, load) for v in s.values))
