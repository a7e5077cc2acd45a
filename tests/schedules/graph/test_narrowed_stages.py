"""Only the part of a tensor that is read is computed."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from substitution_graphs import random_graph

from schedules.graph.graph import Graph
from schedules.graph.narrow import narrow

te = cases.te


def same(a: Graph, b: Graph) -> None:
    arrays = cases.inputs_of(a)
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


def dense(x: Any, w: Any) -> Any:
    k = te.reduce_axis(x.shape[1], "k")
    return te.compute((x.shape[0], w.shape[1]), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k))


def part(x: Any, rows: tuple[int, int], step: int = 1) -> Any:
    first, last = rows
    return te.compute(((last - first) // step + 1, x.shape[1]), lambda i, j: x[i * step + first, j])


def layers(*parts: Any, keep: bool = False) -> Graph:
    """Two layers of which parts are read. ``keep``: the second is an output too."""
    b = cases.Builder()
    x = b.input("x", 9, 4)
    y = dense(cases.relu(dense(x, b.constant("v", 4, 6))), b.constant("w", 6, 5))
    return b.graph(*(f(y) for f in parts), *([y] if keep else []))


def rows_of(graph: Graph) -> list[int]:
    return [int(s.axes[0].extent) for s in graph.dag.stages]


@pytest.mark.parametrize(
    "parts, rows",
    [
        ([(8, 8)], 1),
        ([(0, 0)], 1),
        ([(3, 5)], 3),
        ([(1, 2), (4, 6)], 6),  # the box that holds both
        ([(0, 6)], 9),  # a few elements less are not worth odd extents
        ([(0, 8)], 9),
    ],
)
def test_the_rows_that_are_read_are_computed(parts: list[tuple[int, int]], rows: int) -> None:
    graph = layers(*(lambda y, p=p: part(y, p) for p in parts))
    after = narrow(graph)
    same(graph, after)
    assert rows_of(after)[:3] == [rows] * 3
    assert (after is graph) == (rows == 9)


def test_strided_rows_are_within_a_box() -> None:
    graph = layers(lambda y: part(y, (2, 6), 2))
    after = narrow(graph)
    same(graph, after)
    assert rows_of(after) == [5, 5, 5, 3]


def test_an_output_stays_whole() -> None:
    graph = layers(lambda y: part(y, (1, 1)), keep=True)
    assert narrow(graph) is graph


def test_windows_read_what_is_around() -> None:
    b = cases.Builder()
    x = b.input("x", 12)
    y = te.compute((12,), lambda i: x[i] * 2.0)
    r = te.reduce_axis(3, "r")
    z = te.compute((10,), lambda i: te.sum(y[i + r], axis=r))
    graph = b.graph(te.compute((2,), lambda i: z[i + 4]))
    after = narrow(graph)
    same(graph, after)
    assert rows_of(after) == [4, 2, 2]


def test_guarded_reads_outside_count_for_nothing() -> None:
    """Zeros around: the first row that is padded reads one row of two."""
    b = cases.Builder()
    y = cases.relu(b.input("x", 6, 3))
    padded = te.compute((8, 3), lambda i, j: te.select(te.all(i >= 1, i < 7), y[i - 1, j], 0.0))
    for first, last, rows in ((0, 1, 1), (6, 7, 1), (2, 3, 2)):
        graph = b.graph(part(padded, (first, last)))
        after = narrow(graph)
        same(graph, after)
        assert rows_of(after)[0] == rows


def test_gathers_read_all() -> None:
    b = cases.Builder()
    x = b.input("x", 5, 3)
    ids = te.placeholder((2,), "int32", "ids")
    y = cases.relu(x)
    rows = te.compute((2, 3), lambda i, j: y[ids[i], j])
    dag = te.dag([x, ids, rows])
    graph = Graph(dag, {}, ("x", "ids"), dag.outputs)
    assert narrow(graph) is graph


def test_results_of_one_stage_are_cut_together() -> None:
    b = cases.Builder()
    x = b.input("x", 7, 4)
    k = te.reduce_axis(4, "k")
    both = te.reducer((0.0, 0.0), lambda x, y: (x[0] + y[0], x[1] + y[1]), "both")
    total, square = te.compute((7,), lambda i: both((x[i, k], x[i, k] * x[i, k]), axis=k))
    graph = b.graph(te.compute((2,), lambda i: total[i + 1] + square[i + 3]))
    after = narrow(graph)
    same(graph, after)
    assert rows_of(after) == [4, 2]


def check(data: Any, image: bool) -> None:
    graph = random_graph(data.draw, image)
    same(graph, narrow(graph))


@settings(max_examples=10, deadline=None)
@given(st.data(), st.booleans())
@pytest.mark.slow
def test_random_graphs_mean_the_same(data: Any, image: bool) -> None:
    check(data, image)
