"""Models of open sizes: what they compute at the sizes of their inputs, by the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graph_meaning import evaluate

from autotune.models.model import Model
from schedules.graph.graph import Array
from schedules.te.open_sizes import at, sizes_of


def computed(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a model, in order. Raises WorkloadError for inputs of other sizes."""
    given = dict(zip(model.graph.inputs, inputs, strict=True))
    dag = model.graph.dag
    shapes = [given[t.name].shape if t.name in given else t.shape for t in dag.inputs]
    return evaluate(replace(model.graph, dag=at(dag, sizes_of(dag, shapes))), inputs)
