"""Convolutions as products of rows that are gathered first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rewrites import run_groups

import autotune as at
from schedules.graph.gathered_rows import gather_rows
from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import MAY_LOSE, optimized
from schedules.graph.partition import partition
from schedules.graph.rewrite import Choices, RewritePlace

te = at.te


def convolution(k: int, stride: int, pad: int, channels: tuple[int, int] = (3, 4), batch: int = 1) -> Graph:
    b = cases.Builder()
    x = cases.relu(b.input("x", batch, channels[0], 9, 8))
    return b.graph(cases.relu(cases.conv(b, x, channels[1], k, stride, pad, "c")))


def gathered(graph: Graph) -> Graph:
    """The graph with all convolutions as products of rows."""
    places = [a for a in optimized(graph, Choices(looks=True)).asked if a.rewrite == "gather_rows"]
    return optimized(graph, Choices().turned(places)).graph


def same(a: Graph, b: Graph) -> None:
    arrays = cases.inputs_of(a)
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 2),
    st.tuples(st.integers(1, 3), st.integers(1, 3)), st.integers(1, 2),
)  # fmt: skip
def test_rows_make_the_convolution(
    k: int, stride: int, pad: int, channels: tuple[int, int], batch: int
) -> None:
    graph = convolution(k, stride, pad, channels, batch)
    same(graph, gathered(graph))


def test_rows_are_a_kernel_and_the_product_is_one() -> None:
    graph = convolution(3, 1, 1)
    after = gathered(graph)
    groups = [[s.name for s in g.dag.stages] for g in partition(after) if isinstance(g, Group)]
    assert [g[-1] if "c" not in g else g[0] for g in groups] == ["c_rows", "c"]
    (product,) = [s for s in after.dag.stages if s.name == "c"]
    assert [int(a.extent) for a in product.reduce_axes] == [27]
    assert after.values["c_w_rows"].shape == (27, 4)
    arrays = cases.inputs_of(graph)
    np.testing.assert_array_equal(run_groups(after, arrays)[0], evaluate(graph, arrays)[0])
    assert not MAY_LOSE["gather_rows"].usual and MAY_LOSE["gather_rows"].exact


def of_groups() -> Graph:
    """Each channel has a window of its own."""
    b = cases.Builder()
    x, w = cases.relu(b.input("x", 3, 9)), b.constant("w", 3, 3)
    r = te.reduce_axis(3, "r")
    return b.graph(te.compute((3, 7), lambda c, i: te.sum(x[c, i + r] * w[c, r], axis=r), "c"))


def dense() -> Graph:
    b = cases.Builder()
    return b.graph(cases.dense(b, cases.relu(b.input("x", 3, 5)), 4, "d"))


def of_inputs() -> Graph:
    b = cases.Builder()
    x, w, r = cases.relu(b.input("x", 9)), b.input("w", 3, 4), te.reduce_axis(3, "r")
    return b.graph(te.compute((7, 4), lambda i, o: te.sum(x[i + r] * w[r, o], axis=r), "c"))


def of_another() -> Graph:
    """A convolution of an input, and one of what ends the kernel of that."""
    b = cases.Builder()
    y = cases.relu(cases.conv(b, b.input("x", 1, 3, 9, 8), 4, 3, 1, 1, "c"))
    return b.graph(cases.relu(cases.conv(b, y, 4, 3, 1, 1, "d")))


@pytest.mark.parametrize("graph", [of_groups, dense, of_inputs, of_another, lambda: convolution(1, 1, 0)])
def test_what_is_no_place(graph: Callable[[], Graph]) -> None:
    asked: list[Any] = []

    def take(place: RewritePlace) -> bool:
        asked.append(place)
        return True

    made = optimized(graph(), Choices("none")).graph
    assert gather_rows.run(made, take) is made and not asked
