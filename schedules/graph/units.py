"""Dimensions of extent 1 are dropped between inputs and outputs, so that rewrites see axes alone."""

from __future__ import annotations

from dataclasses import replace

from schedules.graph.graph import Graph
from schedules.graph.tidy import drop_units


def drop_unit_dimensions(graph: Graph) -> Graph:
    """The graph without dimensions and axes of one point, but for what callers and islands see."""
    given = [t.name for t in graph.dag.inputs if t.name not in graph.values]
    dag = drop_units(graph.dag, {*given, *graph.dag.outputs})
    values = {n: v.reshape(dag.tensors[n].shape) for n, v in graph.values.items()}
    return replace(graph, dag=dag, values=values)
