"""The meaning of a graph without islands: what its DAG computes of the inputs and the constants' values."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.graph.graph import Array, Graph
from schedules.te.evaluator import evaluate as evaluate_dag


def evaluate(
    graph: Graph, inputs: Sequence[Array], states: dict[str, Array] | None = None
) -> list[Array]:
    """The outputs of a graph, in order. ``inputs``: arrays for ``graph.inputs``, in order. ``states``: those
    of the graph, which get their new values. Raises ValueError where it has islands."""
    if graph.islands:
        raise ValueError(f"island {graph.islands[0].name} is not an expression")
    given = dict(zip(graph.inputs, inputs, strict=True)) | dict(graph.values)
    given |= {s.tensor: (states or {})[name] for name, s in graph.states.items()}
    made = evaluate_dag(graph.dag, [given[t.name] for t in graph.dag.inputs])
    found = dict(zip(graph.dag.outputs, made, strict=True))
    for name, s in graph.states.items():
        assert states is not None
        states[name] = found[s.new]
    return [found[name] for name in graph.outputs]
