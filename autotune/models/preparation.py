"""From a model to the outline of what runs: rewritten, cut into groups, each group a task."""

from __future__ import annotations

from autotune.errors import ModelError
from autotune.models.model import Model
from autotune.models.outline import Outline, Part, outline
from schedules.graph.graph import Graph


def prepared(model: Model) -> tuple[Graph, Outline]:
    """(The rewritten graph, its outline with the names that users know). Raises `ModelError`."""
    try:
        graph, parts = cut(model.graph)
        labels = {name: port.name for name, port in zip(graph.inputs, model.inputs, strict=True)}
        labels |= {name: port.name for name, port in zip(graph.outputs, model.outputs, strict=True)}
        return graph, outline(graph, parts, labels)
    except ValueError as err:
        raise ModelError(f"{model.source} cannot be cut into kernels: {err}") from err


def cut(graph: Graph) -> tuple[Graph, tuple[Part, ...]]:
    """(A graph of the same meaning, what runs of it in order)."""
    from schedules.graph.optimize import optimize
    from schedules.graph.partition import partition

    graph = optimize(graph)
    return graph, partition(graph)
