"""Depthwise convolutions are computed by the kernels of the products that read them, where that is chosen."""

from __future__ import annotations

from typing import Any

import graph_cases as cases
import numpy as np
import pytest
from graph_meaning import evaluate
from test_rewrites import run_groups

from schedules.graph.graph import Graph, Group
from schedules.graph.optimize import optimized
from schedules.graph.partition import partition
from schedules.graph.rewrite import Choices

te = cases.te


def depthwise(b: cases.Builder, x: Any, name: str, k: int = 3) -> Any:
    """A padded depthwise convolution over NCHW."""
    n, c, h, w = x.shape
    weight, pad = b.constant(f"{name}_w", c, k, k), k // 2
    inside = lambda i, j: te.all(i >= pad, i < h + pad, j >= pad, j < w + pad)  # noqa: E731
    padded = cases.stage(
        (n, c, h + 2 * pad, w + 2 * pad),
        lambda a, q, i, j: te.select(inside(i, j), x[a, q, i - pad, j - pad], 0.0),
    )
    r, s = te.reduce_axis(k, "r"), te.reduce_axis(k, "s")
    return cases.stage(
        x.shape,
        lambda a, q, i, j: te.sum(padded[a, q, i + r, j + s] * weight[q, r, s], axis=(r, s)),
        name,
    )


def separable(twice: bool = False, k: int = 3) -> Graph:
    b = cases.Builder()
    x = b.input("x", 1, 6, 5, 7)
    made = cases.relu(depthwise(b, cases.conv(b, x, 9, 1, name="first"), "deep", k))
    y = cases.relu(cases.conv(b, made, 4, 1, name="last"))
    return b.graph(y, cases.max_pool(made, 2, 1)) if twice else b.graph(y)


def places(graph: Graph, looks: bool = True) -> dict[str, bool]:
    return {
        a.place.name: a.taken
        for a in optimized(graph, Choices(looks=looks)).asked
        if a.rewrite == "fuse_windows"
    }


def products(graph: Graph) -> list[int]:
    return [
        sum(s.reducer is not None for s in g.dag.stages) for g in partition(graph) if isinstance(g, Group)
    ]


def test_a_choice_makes_one_kernel_of_two() -> None:
    graph = separable()
    assert places(graph) == {"deep": False} and places(graph, looks=False) == {}
    apart = optimized(graph).graph
    fused = optimized(graph, Choices(other=frozenset({("fuse_windows", "deep")}))).graph
    assert products(apart) == [1, 1, 1] and products(fused) == [1, 2]
    arrays = [np.rint(a * 3) for a in cases.inputs_of(graph)]
    for x, y in zip(evaluate(graph, arrays), run_groups(fused, arrays), strict=True):
        np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(
    "graph", [separable(twice=True), separable(k=9)], ids=["read outside", "large window"]
)
def test_where_more_is_read_or_windows_are_large_it_is_no_place(graph: Graph) -> None:
    assert places(graph) == {}


def test_other_convolutions_are_no_place() -> None:
    b = cases.Builder()
    x = b.input("x", 1, 4, 5, 7)
    y = cases.conv(b, cases.relu(cases.conv(b, x, 6, 3, pad=1, name="dense")), 4, 1, name="last")
    y = cases.relu(y)
    assert places(b.graph(y)) == {}
