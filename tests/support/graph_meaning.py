"""The meaning of a graph without islands: what its DAG computes of the inputs and the constants' values."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.graph.graph import Array, Graph
from schedules.te.evaluator import evaluate as evaluate_dag


def evaluate(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph, in order. ``inputs``: arrays for ``graph.inputs``, in order. Raises ValueError
    where it has islands."""
    if graph.islands:
        raise ValueError(f"island {graph.islands[0].name} is not an expression")
    given = dict(zip(graph.inputs, inputs, strict=True)) | dict(graph.values)
    made = evaluate_dag(graph.dag, [given[t.name] for t in graph.dag.inputs])
    found = dict(zip(graph.dag.outputs, made, strict=True))
    return [found[name] for name in graph.outputs]
