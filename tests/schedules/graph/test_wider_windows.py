"""Convolutions of one tensor with unequal windows lie side by side. What is joined of both is the whole."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune as at
from schedules.graph.edit import is_product
from schedules.graph.graph import Graph
from schedules.graph.optimize import MAY_LOSE, optimized
from schedules.graph.rewrite import Choices, RewritePlace
from schedules.graph.side_by_side import stack_unequal
from schedules.graph.wider_windows import MOST, widen_windows

te = at.te


def expand(
    first: tuple[int, int],
    second: tuple[int, int],
    stride: int = 1,
    joined: bool = True,
    turned: bool = False,
) -> Graph:
    """Two convolutions of an image, (window, channels) each, with ReLUs, and a convolution of both joined.
    ``turned``: the second lies before the first there."""
    b = cases.Builder()
    x = cases.relu(b.input("x", 1, 3, 8, 7))
    y, z = (
        cases.relu(cases.conv(b, x, n, k, stride, k // 2, name))
        for name, (k, n) in (("e1", first), ("e2", second))
    )
    if not joined:
        return b.graph(cases.max_pool(y, 2, 1), cases.max_pool(z, 2, 1))
    ny, nz = y.shape[1], z.shape[1]

    def value(a: Any, c: Any, i: Any, j: Any) -> Any:
        if turned:
            return te.select(c >= nz, y[a, c - nz, i, j], z[a, c, i, j])
        return te.select(c < ny, y[a, c, i, j], z[a, c - ny, i, j])

    join = cases.stage((1, ny + nz, *y.shape[2:]), value, "join")
    return b.graph(cases.relu(cases.conv(b, join, 2, 1, name="after")))


def same(a: Graph, b: Graph) -> None:
    arrays = cases.inputs_of(a)
    for x, y in zip(evaluate(a, arrays), evaluate(b, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


def products(graph: Graph) -> int:
    return sum(map(is_product, graph.dag.stages))


def widened(graph: Graph) -> Graph:
    """The graph with each place of these windows decided the other way."""
    places = [a for a in optimized(graph, Choices(looks=True)).asked if a.rewrite == "widen_windows"]
    return optimized(graph, Choices().turned(places)).graph


@settings(max_examples=10, deadline=None)
@given(
    st.tuples(st.sampled_from((1, 3)), st.integers(1, 4)),
    st.tuples(st.sampled_from((1, 3, 5)), st.integers(1, 4)),
    st.integers(1, 2),
    st.booleans(),
)
def test_both_are_one_product(
    first: tuple[int, int], second: tuple[int, int], stride: int, joined: bool
) -> None:
    graph = expand(first, second, stride, joined)
    same(graph, widened(graph))


def test_an_expand_layer_is_one_convolution_and_no_join() -> None:
    graph = expand((1, 4), (3, 4))
    made = optimized(graph, Choices(looks=True))
    (place,) = [a for a in made.asked if a.rewrite == "widen_windows"]
    assert place.place.name == "e1" and not place.taken and products(made.graph) == 3
    after = widened(graph)
    assert products(after) == 2 and not after.joins
    (wide,) = [s for s in after.dag.stages if s.name == "e1_wide"]
    assert sorted(int(a.extent) for a in wide.reduce_axes) == [3, 3, 3]


@pytest.mark.parametrize("graph", [expand((1, 9), (3, 2)), expand((1, 4), (3, 6), turned=True)])
def test_what_is_no_place(graph: Graph) -> None:
    """It is much more work, or both cannot be one."""
    asked: list[RewritePlace] = []
    widen_windows.run(optimized(graph, Choices("none")).graph, lambda p: bool(asked.append(p)))  # type: ignore[func-returns-value]
    assert not asked and MOST < 9
    assert not MAY_LOSE["widen_windows"].usual


@pytest.mark.parametrize("widths", [(4, 6), (5, 5)])
def test_equal_windows_that_are_joined_are_one(widths: tuple[int, int]) -> None:
    graph = expand((1, widths[0]), (1, widths[1]))
    after = optimized(graph).graph
    same(graph, after)
    assert products(after) == 2 and not after.joins
    (join,) = [s for s in after.dag.stages if s.name == "join"]
    assert [x.buffer for x in join.reads()] == ["e1_wide"]


def test_parts_that_are_joined_in_another_order_stay() -> None:
    graph = expand((1, 4), (1, 6), turned=True)
    after = optimized(graph).graph
    same(graph, after)
    assert products(after) == 3


def test_a_join_that_others_share_stays() -> None:
    """Of three parts, one is no product of the tensor."""
    b = cases.Builder()
    x = cases.relu(b.input("x", 1, 3, 6, 6))
    y, z = cases.conv(b, x, 4, 1, name="y"), cases.conv(b, x, 6, 1, name="z")
    parts = (cases.relu(y), cases.relu(z), cases.max_pool(x, 1, 1))

    def value(n: Any, c: Any, i: Any, j: Any) -> Any:
        high = te.select(c < 10, parts[1][n, c - 4, i, j], parts[2][n, c - 10, i, j])
        return te.select(c < 4, parts[0][n, c, i, j], high)

    graph = b.graph(cases.stage((1, 13, 6, 6), value, "join"))
    assert stack_unequal(graph) is graph
    same(graph, optimized(graph).graph)


def test_a_join_that_is_returned_keeps_its_name() -> None:
    b = cases.Builder()
    x = cases.relu(b.input("x", 2, 5))
    y, z = cases.dense(b, x, 3, "y"), cases.dense(b, x, 4, "z")
    join = te.compute((2, 7), lambda i, j: te.select(j < 3, y[i, j], z[i, j - 3]), "join")
    graph = b.graph(join)
    after = optimized(graph).graph
    same(graph, after)
    assert after.outputs == ("join",) and products(after) == 1
