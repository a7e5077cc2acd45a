"""Common subexpression elimination: what is computed or stored twice is kept once."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from schedules import expr as E
from schedules.expr import Expr
from schedules.graph.edit import remade, without_names
from schedules.graph.graph import Array, Graph
from schedules.loads import with_loads
from schedules.te.compute_dag import Stage

# Constants of more elements are weights: that two are equal may change with the next training.
MAX_ELEMENTS = 16


def eliminate_common(graph: Graph) -> Graph:
    """The graph with equal stages as one, and small constants of equal values as one. An output stays itself
    where an equal one is an output too, because both are returned."""
    names: dict[str, str] = {}
    first: dict[Any, str] = {}
    for t in graph.dag.inputs:
        if t.name in graph.values and graph.values[t.name].size <= MAX_ELEMENTS:
            key = t.dtype, t.shape, _digest(graph.values[t.name])
            one = first.setdefault(key, t.name)
            if one != t.name:
                names[t.name] = one

    def renamed(x: E.Load) -> Expr | None:
        return replace(x, buffer=names[x.buffer]) if x.buffer in names else None

    known: dict[Any, Stage] = {}
    stages: list[Stage] = []
    for s in graph.dag.stages:
        if names:
            s = replace(s, values=tuple(with_loads(v, renamed) for v in s.values))
        one_stage = known.setdefault(without_names(s), s)
        both = {t.name for t in (*s.outputs, *one_stage.outputs)} & set(graph.dag.outputs)
        if one_stage is s or len(both) > 1 or (both and both <= {t.name for t in s.outputs}):
            stages.append(s)
        else:
            names |= {t.name: o.name for t, o in zip(s.outputs, one_stage.outputs, strict=True)}
    return remade(graph, stages) if names else graph


def _digest(value: Array) -> bytes:
    return hashlib.sha256(value.tobytes()).digest()
