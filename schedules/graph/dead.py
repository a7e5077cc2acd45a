"""Dead code elimination: stages and constants that no output needs are dropped."""

from __future__ import annotations

from schedules.graph.edit import remade
from schedules.graph.graph import Graph


def eliminate_dead(graph: Graph) -> Graph:
    """The graph without what no output needs. Its inputs stay, because callers give them."""
    return remade(graph, graph.dag.stages)
