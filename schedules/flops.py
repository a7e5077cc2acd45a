"""How much arithmetic a DAG is."""

from __future__ import annotations

from math import prod

from schedules import expr as E
from schedules.dag import ComputeDAG


def count_flops(dag: ComputeDAG) -> int:
    """Arithmetic operations of a DAG on its tensors' elements, comparisons and selections left out:
    2 per multiply-add of a contraction, as for library operators."""
    total = 0
    for s in dag.stages:
        points = prod(a.extent for a in (*s.axes, *s.reduce_axes))
        per_point = sum(map(_operations, s.values))
        if s.reducer is not None:
            per_point += sum(map(_operations, s.reducer.combine))
        total += points * per_point
    return total


def _operations(e: E.Expr) -> int:
    if isinstance(e, (E.Load, E.Compare, E.Logic)):  # indices and conditions are not the tensors' arithmetic
        return 0
    return isinstance(e, (E.Binary, E.Call)) + sum(map(_operations, E.children(e)))
