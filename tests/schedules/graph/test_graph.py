"""What a graph must hold, and how a group reads tensors of others."""

from __future__ import annotations

from dataclasses import replace

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate

from schedules.graph.graph import Island
from schedules.graph.partition import partition
from schedules.te.compute_dag import Tensor


def dense() -> cases.Graph:
    b = cases.Builder()
    return b.graph(cases.dense(b, b.input("x", 2, 3), 4, "d"))


def test_values_must_be_those_of_the_constants() -> None:
    graph = dense()
    with pytest.raises(ValueError, match=r"values and constants of the graph differ: d_w$"):
        replace(graph, values={n: v for n, v in graph.values.items() if n != "d_w"})
    with pytest.raises(ValueError, match=r"constant d_b: float32\[5\] is no float32\[4\]"):
        replace(graph, values=graph.values | {"d_b": np.zeros(5, "float32")})
    with pytest.raises(ValueError, match=r"constant d_b: float64\[4\] is no float32\[4\]"):
        replace(graph, values=graph.values | {"d_b": np.zeros(4)})


def test_every_input_is_given_and_every_output_computed() -> None:
    graph = dense()
    with pytest.raises(ValueError, match=r"nothing gives the graph's x$"):
        replace(graph, inputs=())
    with pytest.raises(ValueError, match=r"output 'z' of the graph is not computed"):
        replace(graph, outputs=("z",))


def test_islands_stand_between_what_they_need_and_what_needs_them() -> None:
    b = cases.Builder()
    x = b.input("x", 2, 3)
    before = cases.relu(x)
    made = b.input("made", 2, 3)
    after = cases.add(made, before)
    graph = b.graph(before, after)
    inside, last = graph.dag.outputs
    island = Island("odd", "Odd", (inside,), (Tensor("made", (2, 3), "float32"),))
    graph = replace(graph, inputs=("x",), outputs=(last,), islands=(island,))
    order = [item.name if isinstance(item, Island) else item.outputs[0] for item in partition(graph)]
    assert order == [inside, "odd", last]
    with pytest.raises(ValueError, match="island odd is not an expression"):
        evaluate(graph, [np.zeros((2, 3), "float32")])


def test_a_part_of_a_tensor_is_an_argument_from_its_start() -> None:
    b = cases.Builder()
    x = b.input("x", 3, 4, 5)
    graph = b.graph(cases.stage((4, 5), lambda i, j: x[0, i, j] + x[2, i, j]))
    (group,) = partition(graph)
    assert [(a.tensor, a.start) for a in group.inputs] == [("x", 0), ("x", 40)]
    assert [t.shape for t in group.dag.inputs] == [(20,), (20,)]
